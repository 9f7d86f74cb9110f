"""Parse the options that most commands share into sizes, names, mechanisms and workloads.

``parse_*`` functions read one text. The groups :class:`Selection` and :class:`Conditions` make
workloads and mechanisms of all their flags together. Every refusal names the flag.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof import registry
from attnprof.algebra.parser import name_of, short
from attnprof.arguments import LARGEST, memory_bytes
from attnprof.cli import options as opt
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.workload import Workload

TAYLORSHIFT = ("taylor-direct", "taylor-efficient")
#: Sizes that one option may list.
MOST = 100_000
#: Points (mechanism × length × width) of a request; each is a formula to compute, so more than
#: these take minutes.
MOST_POINTS = 2000
HOW = "type a size like 128, a list like 128,256,512, or a range like 128:16384:x2 or 100:1000:+100"


def parse_sizes(text: str, flag: str) -> list[int]:
    """Return the sizes of a list of numbers and inclusive ranges, in the order typed.

    Sizes are whole numbers from 1 to 2**40, at most 100000 of them. Raises RequestError that names
    ``flag``, the option or argument they were typed for.
    """
    sizes: dict[int, None] = {}
    for part in text.split(","):
        for value in _part(part.strip(), flag):
            sizes[value] = None
            if len(sizes) > MOST:
                raise RequestError(f"{flag} {text}: more than {MOST} values; take a larger step")
    return list(sizes)


def parse_lengths(text: str, flag: str) -> list[int]:
    """Return the sizes of a list, each as often as it is typed: a batch may repeat a length."""
    return [size for part in text.split(",") for size in _part(part.strip(), flag)]


def check_points(count: int, flag: str) -> None:
    """Refuse more points than a command answers in a minute or two."""
    if count > MOST_POINTS:
        raise RequestError(
            f"{flag}: {count} points are more than the {MOST_POINTS} that one command computes; "
            "take a larger step, or fewer mechanisms"
        )


def parse_size(text: str, flag: str) -> int:
    """Return one size; :class:`RequestError` if the text has several, or none that can be used."""
    sizes = parse_sizes(text, flag)
    if len(sizes) != 1:
        raise RequestError(
            f"{flag} {text}: this command takes one value here, not {len(sizes)}: type "
            f"{flag} {sizes[0]}"
        )
    return sizes[0]


def parse_named_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """Return texts of ``--at`` like ``B=1,N=4096`` as one mapping; empty for none."""
    sizes: dict[str, int] = {}
    for text in filter(None, texts or ()):
        for part in text.split(","):
            typed, equals, value = (piece.strip() for piece in part.partition("="))
            name = name_of(typed)
            if not equals or not name:
                raise RequestError(
                    f"--at {short(text)}: type names and sizes, like B=1,N=4096,h=8,d=64"
                )
            size = parse_size(value, f"--at {typed} =")
            if sizes.setdefault(name, size) != size:
                raise RequestError(f"--at: {name} is {sizes[name]} and {size}; type one of them")
    return sizes


def parse_names(
    text: str, flag: str = "--attention", how: str = "type names like standard,efficient"
) -> list[str]:
    """Return the names of a comma-separated list, each once, in the order typed.

    Raises RequestError for an empty one; ``how`` says what to type.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise RequestError(f"{flag} '{text}': an empty name; {how}")
    return list(dict.fromkeys(names))


def parse_models(texts: Sequence[str] | None, flag: str) -> list[str]:
    """Return the models that a repeatable flag names, with commas between them, each once."""
    how = "type names like llama-3.1-8b,qwen3-8b"
    named = (name for text in texts or () for name in parse_names(text, flag, how))
    return list(dict.fromkeys(named))


def head_shape(d_model: str | None, heads: str | None, d: str | None) -> tuple[int, int]:
    """Return the number of heads and their width: two of the three flags give the third."""
    count = None if heads is None else parse_size(heads, "--heads")
    width = None if d_model is None else parse_size(d_model, "--d-model")
    if d is None:
        width, count = width or 512, count or 8
        if width % count:
            divisors = [h for h in range(1, min(width, 4096) + 1) if width % h == 0]
            below, above = [h for h in divisors if h < count], [h for h in divisors if h > count]
            options = " or ".join(map(str, below[-1:] + above[:1]))
            raise RequestError(
                f"{count} heads do not divide d_model {width}: try --heads {options or 1}"
            )
        return count, width // count
    head_dim = parse_size(d, "--d")
    if width is None:
        return count or 8, head_dim
    if width % head_dim or (count is not None and count * head_dim != width):
        flags = f"--d-model {width} --d {head_dim}" + (f" --heads {count}" if count else "")
        raise RequestError(f"{flags}: d_model must be heads times d; leave one of them out")
    return width // head_dim, head_dim


def _part(part: str, flag: str) -> Iterator[int]:
    """Yield the sizes of one part of a list: of a number or a range."""
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
    while first <= last:
        yield first
        first = first * step if multiplies else first + step


def _number(text: str, flag: str, part: str) -> int:
    """Return a size from 1 to ``LARGEST``; ``part`` is the range that it stands in."""
    shown = f"{flag} {part}" if text == part else f"{flag} {part}: '{text}'"
    if not re.fullmatch(r"[+-]?[0-9][0-9_]{0,4000}", text.strip()):
        raise RequestError(f"{shown}: not a whole number; {HOW}")
    if re.match(r"[+-]?0[0-9]", text.strip()):  # tables write 4,096 for 4096
        raise RequestError(f"{shown}: begins with 0; commas separate sizes: type 4096 for 4,096")
    value = int(text.strip().replace("_", ""))
    if value < 1:
        raise RequestError(f"{shown}: must be at least 1; {HOW}")
    if value > LARGEST:
        raise RequestError(f"{shown}: larger than 2**40 = {LARGEST}: type a smaller size")
    return value


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Flags for mechanisms, lengths and widths."""

    attention: opt.AttentionOption = None
    seq: opt.SeqOption = "1024"
    d_model: str | None = opt.flag("SIZE", "Model width (default 512).")
    heads: str | None = opt.flag("SIZE", "Number of heads (default 8).")
    d: str | None = opt.flag("SIZE", "Head width (default: d_model / heads).")

    def workloads(self, conditions: "Conditions", **more: Any) -> list[Workload]:
        """Return one workload per length; ``more`` are further sizes of a workload by name."""
        heads_and_width = head_shape(self.d_model, self.heads, self.d)
        lengths = parse_sizes(self.seq or "", "--seq")
        return [conditions.workload(n, *heads_and_width, **more) for n in lengths]


@dataclass(frozen=True, kw_only=True)
class FreeSizes:
    """Options for widths that released layers choose freely: of the model and of a value head."""

    width: str | None = opt.flag("SIZE", "Model width, if it is not heads times head width.")
    value_dim: str | None = opt.flag("SIZE", "Width of a value head (default: the head width).")

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that were typed, by their names in :class:`Workload`."""
        names = {"--width": "width", "--value-dim": "value_head_dim"}
        return {names[flag]: parse_size(text, flag) for flag, text in opt.typed(self).items()}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Options that hold for all points of a request; closed forms ignore the device."""

    batch: opt.BatchOption = "1"
    phase: opt.PhaseOption = "forward"
    causal: opt.CausalOption = False
    dtype: opt.DtypeOption = "float32"
    device: opt.DeviceOption = "auto"
    settings: opt.SetOption = None

    def workload(self, seq_len: int, num_heads: int, head_dim: int, **more: Any) -> Workload:
        """Return a workload under these conditions; RequestError names an option that is wrong."""
        return Workload(
            seq_len, num_heads, head_dim, parse_size(self.batch, "--batch"),
            causal=self.causal, phase=self.phase, dtype=self.dtype, **more,
        )  # fmt: skip

    def configured(self, names: Sequence[str]) -> list[Mechanism]:
        """Return the named mechanisms, each with the ``--set`` values of parameters that it has."""
        return registry.configured(names, parse_set(self.settings))


def closed_form_request(
    shape: Selection, conditions: Conditions, names: Sequence[str], **more: int | None
) -> tuple[list[Mechanism], list[Workload]]:
    """Return mechanisms and workloads of a closed-form command; ``more`` are sizes by name."""
    workloads = shape.workloads(conditions, **more)
    check_points(len(names) * len(workloads), f"--seq {short(str(shape.seq))}")
    return conditions.configured(names), workloads


def parse_set(settings: Sequence[str] | None, flag: str = "--set") -> dict[str, str]:
    """Return ``name=value`` texts as a mapping; of a name typed twice, the last value counts."""
    values: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise RequestError(f"{flag} {text}: type a name, '=' and a value, like window=256")
        values[name.strip()] = value.strip()
    return values


def some_of(text: str | None, possible: Sequence[str], flag: str) -> list[str]:
    """Return the names of a comma-separated list, all ``possible`` names without one.

    Raises RequestError for a name that is not possible, as an empty one is not.
    """
    names = possible if text is None else [name.strip() for name in text.split(",")]
    return list(dict.fromkeys(opt.one_of(name, possible, flag) for name in names))


def names_of(arguments: Sequence[str | None], attention: str | None) -> list[str]:
    """Return a command's mechanisms, from its arguments or else ``--attention``; or none."""
    typed = [name for name in arguments if name is not None]
    if typed and attention is not None:
        raise RequestError("name the mechanisms once: as A B, or as --attention A,B")
    return typed if attention is None else parse_names(attention)


def targets_of(names: list[str], conditions: Conditions, modules: opt.Modules) -> list[Any]:
    """Return a subject per name: a registered mechanism with its settings, or a user's module."""

    def is_module(name: str) -> bool:
        from attnprof.user_code import loaded

        module = loaded(name)
        return not (isinstance(module, type) and issubclass(module, Mechanism))

    module_names = [name for name in names if ":" in name and is_module(name)]
    registered = [name for name in names if name not in module_names]
    if (modules.args or modules.inputs) and not module_names:
        raise RequestError(
            "--arg and --input are for modules: leave them out, or name one, like my.py:MyAttention"
        )
    targets: dict[str, Any] = dict(zip(registered, conditions.configured(registered), strict=True))
    args, inputs = list(modules.args or ()), list(modules.inputs or ())
    for name in module_names:
        from attnprof.trace.request.lookup import target_of

        target = target_of(
            name, modules.args, modules.inputs, None, None, conditions.causal, conditions.dtype
        )
        targets[name] = replace(target, typed_texts={"args": args, "inputs": inputs})
        for line in target.notes:
            opt.note(f"{target.name}: {line}")
        if "d" not in target.symbols:
            opt.note(f"{target.name}: its sizes are its own; head widths and heads do not reach it")
    return [targets[name] for name in names]


def parse_bytes(text: str | None, flag: str) -> int | None:
    """Return the bytes of ``2GiB``, ``500MB`` or a number; None stays None."""
    if text is None:
        return None
    return memory_bytes(text, flag)
