"""Results as curves: which records belong to one line, and what the line is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text

#: What may tell curves apart beside the mechanism, in the order a label names it.
_FIELDS = (
    "params", "phase", "causal", "dtype", "batch_size", "d_model", "num_heads", "scope", "device",
)  # fmt: skip
_WORDS = {"batch_size": "batch", "d_model": "d_model", "num_heads": "heads"}
#: Line styles of the curves of one mechanism, in order; markers with them.
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1)), "^"), ((0, (4, 1, 1, 1)), "D"), ("-", "v"),
    ((0, (4, 1.5)), "P"), ((0, (1, 1)), "X"), ((0, (4, 1, 1, 1)), "<"),
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One curve: its records by the axis' value, its mechanism, label, and place in its family."""

    mechanism: str
    label: str
    place: int
    records: tuple[Any, ...]

    @property
    def style(self) -> tuple[Any, str]:
        """Line style and marker."""
        return STYLES[self.place % len(STYLES)]

    def points(self, axis: str, field: str) -> tuple[list[float], list[float]]:
        """Where the field has a value."""
        known = [r for r in self.records if getattr(r, field) is not None]
        return [getattr(r, axis) for r in known], [getattr(r, field) for r in known]


def series_of(
    records: Sequence[Any],
    axis: str,
    devices: Mapping[int, str] | None = None,
    without: Sequence[str] = (),
) -> list[Series]:
    """Curves over ``axis`` (``seq_len``, ``d_model``, ``num_heads``); labels say what differs.

    ``devices`` names the device of a record by its ``id`` where several files are drawn. Records
    that differ only in fields ``without`` are points of one curve.
    """
    fields = [name for name in _FIELDS if name != axis and name not in without]
    if axis == "num_heads":
        fields = [*fields, "seq_len"]
    if axis == "d_model":
        fields = [*fields, "seq_len"]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in records:
        where = (devices or {}).get(id(record), record.device)
        key = (record.mechanism, *(_value(record, name, where) for name in fields))
        groups.setdefault(key, []).append(record)
    varying = _varying(list(groups), fields)
    settings = varying_params(records)
    found: list[Series] = []
    for key, members in groups.items():
        text = figure_text(_label(key, fields, varying, settings[key[0]]))
        place = sum(series.mechanism == key[0] for series in found)
        ordered = tuple(sorted(members, key=lambda r: getattr(r, axis)))
        found.append(Series(key[0], text, place, ordered))
    return found


def _value(record: Any, name: str, where: str) -> Any:
    value = where if name == "device" else getattr(record, name)
    if isinstance(value, dict):  # a module's own arguments are lists
        return tuple(sorted((key, str(item)) for key, item in value.items()))
    return value


def _varying(keys: Sequence[tuple[Any, ...]], fields: Sequence[str]) -> set[str]:
    """Fields in which two curves differ; parameters only within a mechanism."""
    found = set()
    for place, name in enumerate(fields, 1):
        values: dict[Any, set[Any]] = {}
        for key in keys:
            values.setdefault(key[0] if name == "params" else None, set()).add(key[place])
        if any(len(members) > 1 for members in values.values()):
            found.add(name)
    return found


def varying_params(records: Sequence[Any]) -> dict[str, list[str]]:
    """By mechanism, the parameters in which its records differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for record in records:
        own = values.setdefault(record.mechanism, {})
        for name, value in record.params.items():
            own.setdefault(name, set()).add(str(value))
    return {
        mechanism: [name for name, found in own.items() if len(found) > 1]
        for mechanism, own in values.items()
    }


def _label(
    key: tuple[Any, ...], fields: Sequence[str], varying: set[str], settings: Sequence[str]
) -> str:
    words = [key[0]]
    for place, name in enumerate(fields, 1):
        if name not in varying:
            continue
        value = key[place]
        if name == "params":
            words += [f"{k}={v}" for k, v in value if k in settings]
        elif name == "causal":
            words += ["causal"] if value else []
        else:
            words.append(_said(name, value))
    return ", ".join(words)


def _said(name: str, value: Any) -> str:
    if name == "seq_len":
        return f"{value} tokens"
    return f"{_WORDS[name]} {value}" if name in _WORDS else str(value)


def need(records: Sequence[Any], why: str) -> None:
    """RequestError where there is nothing to draw."""
    if not records:
        raise RequestError(f"nothing to draw: {why}")
