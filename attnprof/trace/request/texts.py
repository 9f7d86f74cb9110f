"""Parse ``--arg`` and ``--input``: ``d_model=h*d``, ``x: B, N, h*d``, ``mask: None``."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from attnprof.algebra.parser import name_of, parts_of, short
from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import (
    DEFAULT,
    Expression,
    Input,
    Sized,
    Sizes,
    names_used,
    parsed,
)
from attnprof.user_code import loaded

#: A tensor's element type as an input's last word, with torch's own shorter names.
DTYPES = {
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "complex64")},
    **{name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")},
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "none": None, "null": None}
INPUT_HOW = (
    '--input "{}": type a name, a colon and sizes, like --input "x: B, N, h*d", with a number '
    'format last where it is not the usual one ("ids: B, N int64"), or a value ("need_weights: '
    'False")'
)

#: Sizes that a tensor may have: torch takes no more.
MOST_SIZES = 64
Texts = Sequence[str] | Mapping[str, Any] | None
#: Most characters of a literal value.
LONGEST_VALUE = 4000


@dataclass(frozen=True, repr=False)
class Named(Sized):
    """A class or function as an argument: ``torch.nn:LayerNorm``, ``my.py:Norm``."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def at(self, sizes: Sizes) -> Any:
        """Return the class or function, at any sizes."""
        return loaded(self.text)


def parse_arguments(texts: Texts, size_names: set[str]) -> dict[str, Any]:
    """Return ``name=value`` texts (or a mapping from Python) as expressions and plain values.

    One word is a size if ``size_names`` has it or it is one letter, else text. Raises
    :class:`RequestError` for texts that are neither.
    """
    how = "--arg {}: type a name, '=' and a value, like d_model=h*d"
    return {name: _value(name, value, size_names) for name, value in _pairs(texts, "=", how)}


def _pairs(texts: Texts, sign: str, how: str) -> Iterator[tuple[str, Any]]:
    """Yield names with the text behind the sign; entries of a mapping as they are."""
    if isinstance(texts, Mapping):
        yield from texts.items()
        return
    for text in texts or ():
        name, mark, value = (part.strip() for part in text.partition(sign))
        if not mark or not _path(name) or not value:
            raise RequestError(how.format(short(text)))
        yield _path(name), value


def _path(text: str) -> str:
    """Return a name, perhaps with parts (``config.width``, ``x.0``, ``x[0]``); "" if it is none."""
    first, *rest = re.split(r"(?=[.\[])", text)
    parts = [part if _NUMBERED.fullmatch(part) else name_of(part[1:]) for part in rest]
    steps = [part if _NUMBERED.fullmatch(part) else f".{part}" for part in parts]
    return "".join((name_of(first), *steps)) if name_of(first) and all(parts) else ""


_NUMBERED = re.compile(r"\.\d+|\[\d+\]")


def _value(name: str, value: Any, size_names: set[str]) -> Any:
    """Return a typed value as an expression, a Python literal, a class, or text (a bare word)."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if (literal := _literal(text)) is not _NONE:
        return literal
    if text.endswith((".json", ".toml")):
        return text
    if re.fullmatch(r"[^\s:]+:[\w.]+", text):
        loaded(text)  # says what is wrong with it
        return Named(text)
    if name_of(text):
        return Expression(text) if name_of(text) in size_names or len(text) == 1 else text
    try:
        return parsed(text, f"--arg {name}")
    except RequestError as error:
        raise RequestError(
            f"--arg {name}={short(text)}: not a size like h*d, nor a value like 0.1, True or "
            f"'gelu': {error.__cause__}"
        ) from error


_NONE = object()


def _literal(text: str) -> Any:
    """Return the value of True, None, 0.1, 4 or "text"; ``_NONE`` for anything else."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > LONGEST_VALUE:
        return _NONE
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NONE


def parse_inputs(texts: Texts) -> dict[str, Input]:
    """Return ``name: dims`` texts (or a mapping of names to dims) as inputs, by name.

    Several shapes, like ``(B, N, d), (B, M, d)``, are a tuple of tensors: ``name.0``, ``name.1``.
    Raises :class:`RequestError` for anything else.
    """
    pairs = _pairs(texts, ":", INPUT_HOW)
    return {item.name: item for name, value in pairs for item in _inputs(name, value)}


def _inputs(name: str, value: Any) -> Iterator[Input]:
    """Yield the tensors or sizes of one argument: one, or those of a tuple, a list, a dict."""
    parts = _parts(value)
    for step, part in parts.items():
        yield from _inputs(f"{name}{step}", part)
    if not parts and not isinstance(value, Mapping):
        yield _input(name, value)


def _parts(value: Any) -> dict[str, Any]:
    """Return parts by their step: ``.0`` of a tuple, ``[0]`` of a list, ``.key`` of a dict."""
    if isinstance(value, Mapping):
        return {f".{key}": part for key, part in value.items()}
    parts: Sequence[Any] = ()
    brackets = ""
    if isinstance(value, str):
        body, brackets = _without_brackets(value.removeprefix("="))
        pieces = [piece for piece in parts_of(body) if piece]
        if not brackets and len(pieces) < 2:
            return {}
        if value.startswith("="):
            parts = [f"={piece}" for piece in pieces]
        elif any(map(_is_shape, pieces)) and len(pieces) <= MOST_SIZES:
            parts = pieces
    elif isinstance(value, tuple | list) and any(isinstance(x, tuple | list) for x in value):
        parts, brackets = value, "[" if isinstance(value, list) else "("
    step = "[{}]" if brackets == "[" else ".{}"
    return {step.format(at): part for at, part in enumerate(parts)}


def _without_brackets(text: str) -> tuple[str, str]:
    """Return a text without the brackets around all of it, and the opening bracket or ""."""
    body = text.strip()
    depths = list(accumulate((sign in "([") - (sign in ")]") for sign in body))
    if body[:1] in ("(", "[") and 0 in depths and depths.index(0) == len(body) - 1:
        return body[1:-1], body[0]
    return body, ""


def _is_shape(piece: str) -> bool:
    """Return whether a text is sizes in brackets, perhaps with a number format."""
    sizes, _, last = piece.rpartition(" ")
    body, brackets = _without_brackets(sizes if last in DTYPES else piece)
    return bool(brackets) and len(parts_of(body)) > 1


def _input(name: str, value: Any) -> Input:
    if isinstance(value, tuple | list):
        value = ", ".join(map(str, value)) + ("," if len(value) == 1 else "")
    if not isinstance(value, str):
        return Input(name, value=value, literal=True)
    if value.startswith("="):
        return Input(name, value=parsed(value[1:], f"--input {name}"), literal=True)
    plain = _literal(value)
    if plain is not _NONE and not isinstance(plain, tuple):  # a shape of one size ends in ','
        return Input(name, value=plain, literal=True)
    body, dtype = _dtype(name, value)
    where = f'--input "{name}: {short(value)}"'
    pieces = [piece for piece in parts_of(_without_brackets(body)[0]) if piece]
    if len(pieces) > MOST_SIZES:
        raise RequestError(f"{where}: more than {MOST_SIZES} sizes")
    return Input(name, tuple(parsed(piece, where) for piece in pieces), dtype)


def _dtype(name: str, text: str) -> tuple[str, str]:
    """Return a text split into sizes and the number format behind them, if it has one."""
    body, _, last = text.rpartition(" ")
    if body and last in DTYPES:
        return body, DTYPES[last]
    if body and last.isidentifier() and not body.rstrip().endswith((*",+-*/%(",)):
        raise RequestError(
            f"--input \"{name}: {short(text)}\": unknown number format '{last}': "
            f"{closest(last, list(DTYPES))}"
        )
    return text, ""


def symbols_in(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the symbols of inputs and arguments: batch, tokens, heads, width, then others."""
    leaves = chain(*((*v.dims, v.value) if isinstance(v, Input) else (v,) for v in values))
    names = names_used([*leaves])
    return tuple(dict.fromkeys((*(name for name in DEFAULT if name in names), *names)))


def as_size(text: str) -> Any:
    """Return a size as a number, if it is one, or as an expression."""
    return int(text) if text.isdecimal() else Expression(text)
