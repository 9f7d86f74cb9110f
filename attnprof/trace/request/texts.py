"""``--arg name=expr`` and ``--input "x: B, N, h*d"`` as values and inputs at any sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attnprof.algebra.parser import name_of, parts_of, short
from attnprof.errors import RequestError, closest
from attnprof.trace.request.target import DEFAULT, Expression, Input, parsed

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
#: Longer values are no arguments that anybody types.
LONGEST_VALUE = 4000
Given = Mapping[str, Any]  # name → Expression, or a plain value


def parse_arguments(texts: Iterable[str] | Mapping[str, Any] | None, known: set[str]) -> Given:
    """``name=value`` texts (or a mapping from Python) as expressions and plain values.

    One word is a size where ``known`` has it or it is one letter, else text. Raises
    :class:`RequestError` for what is neither.
    """
    how = "--arg {}: type a name, '=' and a value, like d_model=h*d"
    return {name: _value(name, value, known) for name, value in _pairs(texts, "=", how)}


def _pairs(texts: Any, sign: str, how: str) -> Iterator[tuple[str, Any]]:
    """Names, and what stands behind the sign; what a mapping has, as it is."""
    if isinstance(texts, Mapping):
        yield from texts.items()
        return
    for text in texts or ():
        name, found, value = (part.strip() for part in text.partition(sign))
        if not found or not name_of(name) or not value:
            raise RequestError(how.format(short(text)))
        yield name_of(name), value


def _value(name: str, given: Any, known: set[str]) -> Any:
    """An expression over sizes, a Python literal, or a bare word as text."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    literal = _literal(text)
    if literal is not _NONE:
        return literal
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
    """The value of True, None, 0.1, 4 or 'text'; ``_NONE`` for what is none."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > LONGEST_VALUE:
        return _NONE
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NONE


def parse_inputs(texts: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Input]:
    """``name: dims`` texts (or a mapping of names to dims from Python) as inputs, by name.

    Raises :class:`RequestError` for anything else.
    """
    return {name: _input(name, value) for name, value in _pairs(texts, ":", INPUT_HOW)}


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
    body = body.strip()
    depths = list(accumulate((sign == "(") - (sign == ")") for sign in body))
    if body.startswith("(") and 0 in depths and depths.index(0) == len(body) - 1:
        body = body[1:-1]  # a tuple as Python writes it
    pieces = [piece for piece in parts_of(body) if piece]
    if len(pieces) > MOST_SIZES:
        raise RequestError(f"{where}: more than {MOST_SIZES} sizes")
    return Input(name, tuple(parsed(piece, where) for piece in pieces), dtype)


def _dtype(name: str, text: str) -> tuple[str, str]:
    """Sizes and the number format behind them, if there is one."""
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
    """The symbols that inputs and arguments use: batch, tokens, heads, width, then others."""
    found: dict[str, None] = {}
    for value in values:
        dims = (*value.dims, value.value) if isinstance(value, Input) else (value,)
        for part in dims:
            if isinstance(part, Expression):
                found.update(dict.fromkeys(part.names))
    return (*(n for n in DEFAULT if n in found), *(n for n in found if n not in DEFAULT))
