"""Sizes and names as they are typed: ``128,256``, ``128:16384:x2``, ``100:1000:+100``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attnprof.algebra.parser import name_of, short
from attnprof.arguments import LARGEST
from attnprof.errors import RequestError

MOST = 100_000
#: Points of a request that each have a closed form of their own: more take minutes.
MOST_POINTS = 2000
HOW = "type a size like 128, a list like 128,256,512, or a range like 128:16384:x2 or 100:1000:+100"


def parse_sizes(text: str, flag: str) -> list[int]:
    """Sizes from a list of numbers and ranges (both ends included), in the order typed.

    ``flag`` is what the message names. Raises :class:`RequestError` for anything that is not a
    whole number from 1 to 2**40, for ranges that go nowhere, and for more than 100000 values.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        for value in _part(part.strip(), flag):
            found[value] = None
            if len(found) > MOST:
                raise RequestError(f"{flag} {text}: more than {MOST} values; take a larger step")
    return list(found)


def check_points(count: int, flag: str) -> None:
    """Refuse more points than a command answers in a minute or two."""
    if count > MOST_POINTS:
        raise RequestError(
            f"{flag}: {count} points are more than the {MOST_POINTS} that one command computes; "
            "take a larger step, or fewer mechanisms"
        )


def parse_size(text: str, flag: str) -> int:
    """One size; :class:`RequestError` where several are given or it is unusable."""
    sizes = parse_sizes(text, flag)
    if len(sizes) != 1:
        raise RequestError(f"{flag} {text}: this command takes one value here, not {len(sizes)}")
    return sizes[0]


def parse_named_sizes(text: str | None, flag: str) -> dict[str, int]:
    """``B=1,N=4096`` as a mapping; none where nothing is asked."""
    found: dict[str, int] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name_of(name):
            raise RequestError(
                f"{flag} {short(str(text))}: type names and sizes, like B=1,N=4096,h=8,d=64"
            )
        found[name_of(name)] = parse_size(value, f"{flag} {name} =")
    return found


def parse_names(text: str, flag: str = "--attention") -> list[str]:
    """Names from a comma-separated list, each once, in the order typed."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise RequestError(f"{flag} '{text}': an empty name; type names like standard,efficient")
    return list(dict.fromkeys(names))


def head_shape(d_model: str | None, heads: str | None, d: str | None) -> tuple[int, int]:
    """Number of heads and head width from ``--d-model``, ``--heads`` and ``--d``.

    Any two give the third; the defaults are d_model 512 and 8 heads. Raises
    :class:`RequestError` where heads do not divide the width or the three disagree.
    """
    count = None if heads is None else parse_size(heads, "--heads")
    width = None if d_model is None else parse_size(d_model, "--d-model")
    if d is None:
        return _divided(512 if width is None else width, 8 if count is None else count)
    head_dim = parse_size(d, "--d")
    if width is None:
        return (8 if count is None else count), head_dim
    if width % head_dim or (count is not None and count * head_dim != width):
        asked = f"--d-model {width} --d {head_dim}" + (f" --heads {count}" if count else "")
        raise RequestError(f"{asked}: d_model must be heads times d; leave one of them out")
    return width // head_dim, head_dim


def _divided(width: int, count: int) -> tuple[int, int]:
    if width % count:
        near = [h for h in range(1, min(width, 4096) + 1) if width % h == 0]
        below, above = [h for h in near if h < count], [h for h in near if h > count]
        options = " or ".join(str(h) for h in below[-1:] + above[:1])
        raise RequestError(
            f"{count} heads do not divide d_model {width}: try --heads {options or 1}"
        )
    return count, width // count


def _part(part: str, flag: str) -> Iterator[int]:
    if ":" not in part:
        yield _number(part, flag, part)
        return
    pieces = part.split(":")
    if len(pieces) != 3 or pieces[2][:1] not in ("x", "*", "+"):
        raise RequestError(f"{flag} {part}: not a range; {HOW}")
    first, last = _number(pieces[0], flag, part), _number(pieces[1], flag, part)
    step, multiplies = _number(pieces[2][1:], flag, part), pieces[2][0] != "+"
    if last < first:
        raise RequestError(f"{flag} {part}: the range ends before it starts; {HOW}")
    if multiplies and step < 2:
        raise RequestError(f"{flag} {part}: a factor of {step} never reaches {last}; take x2")
    value = first
    while value <= last:
        yield value
        value = value * step if multiplies else value + step


def _number(text: str, flag: str, part: str) -> int:
    shown = f"{flag} {part}" if text == part else f"{flag} {part}: '{text}'"
    if not re.fullmatch(r"[+-]?[0-9][0-9_]{0,4000}", text.strip()):
        raise RequestError(f"{shown}: not a whole number; {HOW}")
    value = int(text.strip().replace("_", ""))
    if value < 1:
        raise RequestError(f"{shown}: must be at least 1; {HOW}")
    if value > LARGEST:
        raise RequestError(f"{shown}: larger than 2**40 = {LARGEST}, the largest size taken")
    return value
