"""``--arg name=expr`` and ``--input "x: B, N, h*d"`` as values and inputs at any sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attnprof.algebra.parser import name_of, parts_of, short
from attnprof.errors import RequestError, closest
from attnprof.trace.request.expressions import DEFAULT, Expression, parsed
from attnprof.trace.request.target import Input

#: A tensor's element type as an input's last word, with torch's own shorter names.
DTYPES = {
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "complex64")},
    **{name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool")},
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "none": None, "null": None}
INPUT_HOW = (
    'type a name, a colon and sizes, like --input "x: B, N, h*d", with a number format last '
    'where it is not the usual one ("ids: B, N int64"), or a value ("need_weights: False")'
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
    if isinstance(texts, Mapping):
        return {name: _value(name, value, known) for name, value in texts.items()}
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name_of(name) or not value:
            raise RequestError(
                f"--arg {short(text)}: type a name, '=' and a value, like d_model=h*d"
            )
        found[name_of(name)] = _value(name_of(name), value, known)
    return found


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
    pairs = texts.items() if isinstance(texts, Mapping) else map(_split, texts or ())
    return {name: _input(name, value) for name, value in pairs}


def _split(text: str) -> tuple[str, str]:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon or not name_of(name) or not rest:
        raise RequestError(f'--input "{short(text)}": {INPUT_HOW}')
    return name_of(name), rest


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
    pieces = [piece for piece in parts_of(_without_brackets(body)) if piece]
    if len(pieces) > MOST_SIZES:
        raise RequestError(f"{where}: more than {MOST_SIZES} sizes")
    return Input(name, tuple(parsed(piece, where) for piece in pieces), dtype)


def _without_brackets(text: str) -> str:
    """``B, N`` of ``(B, N)``, a tuple as Python writes it."""
    text = text.strip()
    depths = list(accumulate((sign == "(") - (sign == ")") for sign in text))
    wrapped = text.startswith("(") and 0 in depths and depths.index(0) == len(text) - 1
    return text[1:-1] if wrapped else text


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
