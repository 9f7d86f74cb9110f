"""What a row of a baseline must be; anything else is refused with the place and the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from attnprof.errors import AttnprofError, closest
from attnprof.gate.cases import Operation, name_of
from attnprof.gate.paired import RULES
from attnprof.measure.request import PointRequest
from attnprof.record import BaselineRecord
from attnprof.record.schema import shown

Row = Mapping[str, Any]


class WrongError(Exception):
    """Something is not what it must be; the message names it within its row."""


def check_row(row: Any, formula: Callable[[str], object]) -> None:
    """Nothing for the JSON of a :class:`BaselineRecord`; WrongError says what it is instead.

    ``formula`` reads a formula's text and raises ValueError for what is none.
    """
    _keys(row, "", {item.name for item in fields(BaselineRecord)}, set(_CHECKS))
    for name, check in _CHECKS.items():
        check(row[name], name)
    for name, text in row["formulas"].items():
        _readable(text, f"formulas.{name}", formula)
    request = _request(row["request"])
    sizes = name_of(replace(request, params={})).rstrip("]")  # usual parameters may change
    if not row["case"].startswith(sizes):
        raise WrongError(f"its request is {name_of(request)}")
    if row["error"] is None and not row["metrics"]:
        raise WrongError("it has neither metrics nor an error")


def _request(data: Row) -> PointRequest:
    try:
        request = PointRequest.from_dict(data)
        assert request.workload  # its sizes and names are checked there
    except AttnprofError as error:
        raise WrongError(f"request: {error}") from error
    return request


def _keys(value: Any, where: str, allowed: set[str], needed: set[str]) -> None:
    _is(value, where, dict, "an object")
    if odd := sorted(set(value) - allowed):
        raise WrongError(f"{_at(where, odd[0])} is not known")
    if left := sorted(needed - set(value)):
        raise WrongError(f"{_at(where, left[0])} is missing")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is(value: Any, where: str, kind: type | tuple[type, ...], what: str) -> None:
    """JSON's true and false are no numbers."""
    wanted = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise WrongError(f"{where or 'it'} is {shown(value)}, not {what}")


def _text(value: Any, where: str) -> None:
    _is(value, where, str, "a text")


def _named(value: Any, where: str) -> None:
    _text(value, where)
    if not value:
        raise WrongError(f"{where} is empty")


def _count(value: Any, where: str) -> None:
    _is(value, where, int, "a whole number")
    if value < 0:
        raise WrongError(f"{where} is {value}, below 0")


def _each(check: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Every value of an object."""

    def checked(value: Any, where: str) -> None:
        _is(value, where, dict, "an object")
        for name, item in value.items():
            check(item, f"{where}.{name}")

    return checked


def _listed(check: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Every value of a list."""

    def checked(value: Any, where: str) -> None:
        _is(value, where, list, "a list")
        for place, item in enumerate(value):
            check(item, f"{where}[{place}]")

    return checked


def _time(value: Any, where: str) -> None:
    _is(value, where, (int, float), "a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise WrongError(f"{where} is {value}: a time is a finite number above 0")


def _operation(value: Any, where: str) -> None:
    names = [item.name for item in fields(Operation)]
    _keys(value, where, set(names), set(names))
    for name in names:
        (_count if name in _NUMBERS else _text)(value[name], f"{where}.{name}")


_NUMBERS = ("times", "bytes_moved", "flops")


def _point(value: Any, where: str) -> None:
    """A request: known fields, each of the kind it has by default."""
    model = asdict(PointRequest("standard", 1, 1, 1))
    needed = {"mechanism", "seq_len", "num_heads", "head_dim"}
    _fields(value, where, model, needed)
    _fields(value.get("budget"), f"{where}.budget", model["budget"], set(model["budget"]))


def _fields(value: Any, where: str, model: Row, needed: set[str]) -> None:
    _keys(value, where, set(model), needed)
    for name, item in value.items():
        if name == "threads":
            _is(item, f"{where}.{name}", (int, type(None)), "a whole number")
            continue
        kind = type(model[name])
        kinds = (int, float) if kind is float else kind
        _is(item, f"{where}.{name}", kinds, _KINDS[kind])
        if isinstance(item, float) and not math.isfinite(item):
            raise WrongError(f"{where}.{name} is {item}, not a finite number")


_KINDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    dict: "an object",
}  # fmt: skip


def _readable(text: str, where: str, formula: Callable[[str], object]) -> None:
    try:
        formula(text)
    except ValueError as error:
        raise WrongError(f"{where}: {error}") from error


def _error(value: Any, where: str) -> None:
    _is(value, where, (str, type(None)), "a text or null")


def _rule(value: Any, where: str) -> None:
    _text(value, where)
    if value not in RULES:
        raise WrongError(f"{where} '{value}': {closest(value, list(RULES))}")


_CHECKS: Mapping[str, Callable[[Any, str], None]] = {
    "case": _named,
    "request": _point,
    "rule": _rule,
    "metrics": _each(_count),
    "formulas": _each(_text),
    "no_formula": _text,
    "operations": _listed(_operation),
    "times_s": _listed(_listed(_time)),
    "error": _error,
}


def check_rows(rows: Any, formula: Callable[[str], object]) -> Sequence[Row]:
    """All rows; WrongError with the row's number and case, also for a case that is there twice."""
    _is(rows, "records", list, "a list")
    if not rows:
        raise WrongError("it has no cases")
    seen: dict[str, int] = {}
    for place, row in enumerate(rows):
        case = row.get("case") if isinstance(row, dict) else None
        where = f"records[{place}]" + (f" ({case})" if isinstance(case, str) else "")
        try:
            check_row(row, formula)
        except WrongError as error:
            raise WrongError(f"{where}: {error}") from error
        name = name_of(_request(row["request"]))
        if name in seen:
            raise WrongError(f"{where}: records[{seen[name]}] is the same case")
        seen[name] = place
    found: Sequence[Row] = rows
    return found
