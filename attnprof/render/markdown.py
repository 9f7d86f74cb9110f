"""A report's records as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.record import Report
from attnprof.record.base import heading
from attnprof.record.escaping import markdown_text
from attnprof.render.csv import kind_of
from attnprof.units import format_count, format_value, is_numeric


def render_markdown(report: Report, names: Sequence[str] = ()) -> str:
    """A GitHub table, numbers right-aligned and exact, units in the header.

    Columns that are empty in every record are left out, and those not among ``names`` where any
    are given.
    """
    columns = [
        (n, m) for n, m in kind_of(report).columns() if _used(report, n) and n in (names or (n,))
    ]
    header = [heading(name, meta) for name, meta in columns]
    rule = ["---:" if is_numeric(_format(meta)) else "---" for _, meta in columns]
    rows = [
        [_cell(getattr(record, name), _format(meta)) for name, meta in columns]
        for record in report.records
    ]
    return "".join(_line(cells) for cells in (header, rule, *rows))


def _used(report: Report, name: str) -> bool:
    values = [getattr(record, name) for record in report.records]
    return not values or any(v is not None and v not in ("", {}, []) for v in values)


def _format(meta: Mapping[str, Any]) -> str:
    return str(meta.get("format", "text"))


def _cell(value: Any, fmt: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    plain = "number" if is_numeric(fmt) else fmt
    return format_value(value, plain)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |\n"
