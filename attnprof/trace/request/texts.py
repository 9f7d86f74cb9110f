"""Parse ``--arg`` and ``--input``: ``d_model=h*d``, ``x: B, N, h*d``, ``mask: None``."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from attnprof.algebra.parser import name_of, parts_of, short
from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import DEFAULT, Expression, Input, Sized, Sizes, at, parsed
from attnprof.user_code import loaded

#: A tensor's element type as an input's last word, with torch's own shorter names.
DTYPES = {
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "complex64")},
    **{name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")},
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32",
}  # fmt: skip
_FORMAT = re.compile(rf" +({'|'.join(DTYPES)})$")
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


@dataclass(frozen=True)
class Named(Sized):
    """A class or function as an argument: ``torch.nn:LayerNorm``, ``my.py:Norm``."""

    text: str

    def __str__(self) -> str:
        return self.text

    def at(self, sizes: Sizes) -> Any:
        """Return the class or function, at any sizes."""
        return loaded(self.text)


@dataclass(frozen=True)
class Several(Sized):
    """A list, tuple or dict as an argument, with sizes, classes or modules in it."""

    values: Any

    def __str__(self) -> str:
        return str(
            _each(
                self.values,
                lambda x: x if isinstance(x, int) else _AsWritten(getattr(x, "text", x)),
            )
        )

    @property
    def parts(self) -> Iterable[Expression]:
        """The expressions in it."""
        sizes: list[Expression] = []
        _each(self.values, lambda x: sizes.extend(x.parts if isinstance(x, Sized) else ()))
        return sizes

    def at(self, sizes: Sizes) -> Any:
        """Return the list, tuple or dict with the values at sizes."""
        return _each(self.values, lambda x: at(x, sizes))


class _AsWritten(str):
    """A text without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _each(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return lists, tuples and dicts with each leaf replaced by ``of(leaf)``."""
    if isinstance(value, dict):
        return {name: _each(x, of) for name, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each(x, of) for x in value)
    return of(value)


def parse_arguments(texts: Texts, known: set[str]) -> dict[str, Any]:
    """Return ``name=value`` texts (or a mapping from Python) as expressions and plain values.

    One word is a size if ``known`` has it or it is one letter, else text. Raises
    :class:`RequestError` for texts that are neither.
    """
    how = "--arg {}: type a name, '=' and a value, like d_model=h*d"
    return {name: _value(name, value, known) for name, value in _pairs(texts, "=", how)}


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


def _value(name: str, given: Any, known: set[str]) -> Any:
    """Return a typed value as an expression, a Python literal, a class, or text (a bare word)."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if (literal := _literal(text)) is not _NONE:
        return literal
    if text.endswith((".json", ".toml")):
        return text
    if re.fullmatch(r"[^\s:]+:[\w.]+", text):
        loaded(text)  # says what is wrong with it
        return Named(text)
    if name_of(text):
        return Expression(text) if name_of(text) in known or len(text) == 1 else text
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
    groups = (_inputs(name, value) for name, value in _pairs(texts, ":", INPUT_HOW))
    return {item.name: item for several in groups for item in several}


def _inputs(name: str, given: Any) -> Iterator[Input]:
    """Yield the tensors of one argument: one, or those of a tuple, a list, a dict."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            yield from _inputs(f"{name}.{key}", value)
    elif isinstance(given, str) and given.startswith("="):
        body, brackets = _without_brackets(given[1:])
        values = [parsed(piece, f"--input {name}") for piece in parts_of(body)]
        for at, value in enumerate(values):
            place = f"[{at}]" if brackets == "[" else f".{at}" if brackets else ""
            yield Input(name + place, value=value, literal=True)
    elif isinstance(given, str):
        body, brackets = _without_brackets(given)
        pieces = [piece for piece in parts_of(body) if piece]
        several = any(_is_shape(piece) for piece in pieces) and (len(pieces) > 1 or brackets)
        if not several or len(pieces) > MOST_SIZES:
            yield _input(name, given)
            return
        for at, piece in enumerate(pieces):
            yield from _inputs(f"{name}[{at}]" if brackets == "[" else f"{name}.{at}", piece)
    elif isinstance(given, tuple | list) and any(isinstance(x, tuple | list) for x in given):
        for at, value in enumerate(given):
            yield from _inputs(
                f"{name}[{at}]" if isinstance(given, list) else f"{name}.{at}", value
            )
    else:
        yield _input(name, given)


def _without_brackets(text: str) -> tuple[str, str]:
    """Return a text without the brackets around all of it, and the opening bracket or ""."""
    body = text.strip()
    depths = list(accumulate((sign in "([") - (sign in ")]") for sign in body))
    if body[:1] in ("(", "[") and 0 in depths and depths.index(0) == len(body) - 1:
        return body[1:-1], body[0]
    return body, ""


def _is_shape(piece: str) -> bool:
    """Return whether a text is sizes in brackets, perhaps with a number format."""
    body, brackets = _without_brackets(_FORMAT.sub("", piece))
    return bool(brackets) and len(parts_of(body)) > 1


def _input(name: str, given: Any) -> Input:
    if isinstance(given, tuple | list):
        given = ", ".join(map(str, given)) + ("," if len(given) == 1 else "")
    if not isinstance(given, str):
        return Input(name, value=given, literal=True)
    plain = _literal(given)
    if plain is not _NONE and not isinstance(plain, tuple):  # a shape of one size ends in ','
        return Input(name, value=plain, literal=True)
    body, dtype = _dtype(name, given)
    where = f'--input "{name}: {short(given)}"'
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
    sizes = [part for value in leaves if isinstance(value, Sized) for part in value.parts]
    names = [name for size in sizes for name in size.names]
    return tuple(dict.fromkeys((*(name for name in DEFAULT if name in names), *names)))


def as_size(text: str) -> Any:
    """Return a size as a number, if it is one, or as an expression."""
    return int(text) if text.isdecimal() else Expression(text)
