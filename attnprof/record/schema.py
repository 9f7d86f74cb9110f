"""What a row of a file must be to be a record: each value of the kind its field is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from attnprof.errors import RequestError
from attnprof.record.base import Record

Kind = TypeVar("Kind", bound=Record)
_WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", dict: "an object", NoneType: "null",
}  # fmt: skip
#: Fields that are at least 1, and formats and units of what is at least 0.
SIZES = ("batch_size", "seq_len", "d_model", "num_heads", "head_dim")
_COUNTED = ("count", "bytes", "time")


def restored(kind: type[Kind], row: Any, where: str) -> Kind:
    """A row as the record it was saved from; names that the kind does not have are left out.

    ``where`` is the file and the place in it. Raises :class:`RequestError` that names the field,
    what it is and what it must be.
    """
    if not isinstance(row, dict):
        raise RequestError(f"{where} is {shown(row)}, not an object")
    found = {}
    for item, hint, default in _fields(kind):  # type: ignore[arg-type] # classes are hashable
        if item.name not in row:
            if not fits(default, hint):
                raise RequestError(f"{where}: {item.name} is missing, {told(hint)}")
            continue
        value = row[item.name]
        if not fits(value, hint) and not (value is None and hint is float):  # NaN is saved as null
            raise RequestError(f"{where}: {item.name} is {shown(value)}, not {told(hint)}")
        _check_size(value, item, f"{where}: {item.name}")
        found[item.name] = value
    return kind(**found)


@cache
def _fields(kind: type[Record]) -> list[tuple[Field[Any], Any, Any]]:
    """The fields with their types and defaults."""
    hints, plain = get_type_hints(kind), kind()
    return [(item, hints[item.name], getattr(plain, item.name)) for item in fields(kind)]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON is of an annotated type; true and false are no numbers."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (UnionType, Union):
        return any(fits(value, one) for one in inner)
    if isinstance(value, bool):
        return kind in (bool, Any)
    if kind is float:
        return isinstance(value, (int, float))
    if kind is Any or not isinstance(value, (dict, list)):
        return kind is Any or isinstance(value, kind)
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, kind) and all(fits(item, inner[-1]) for item in items)


def told(hint: Any) -> str:
    """An annotated type in words."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (UnionType, Union):
        return " or ".join(dict.fromkeys(told(one) for one in inner))
    words = _WORDS.get(kind, "a value")
    of = inner[-1] if kind in (list, dict) else Any
    return words if of is Any else f"{words} of which each is {told(of)}"


def shown(value: Any) -> str:
    """A value as a message has it: at most forty letters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check_size(value: Any, item: Field[Any], where: str) -> None:
    meta: Mapping[str, Any] = item.metadata
    least = 1 if item.name in SIZES else 0
    if not least and meta.get("format") not in _COUNTED and meta.get("unit") != "s":
        return
    inner = value.values() if isinstance(value, dict) else value
    for one in inner if isinstance(value, (list, dict)) else [value]:
        if isinstance(one, (int, float)) and one < least:
            raise RequestError(f"{where} is {shown(one)}, below {least}")


def object_in(data: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """A member that must be an object; none is an empty one."""
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise RequestError(f"{where}: {name} is {shown(found)}, not an object")
    return found
