"""A report of ``baseline`` on the terminal: a line a case."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from rich.text import Text

from attnprof.record import BaselineRecord, Report
from attnprof.render.terminal import new_table
from attnprof.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from rich.console import RenderableType


def baseline_tables(report: Report) -> list[RenderableType]:
    """What each case counts and takes, or why it does not run."""
    table = new_table(
        "baseline", "times: processor time of a call, median of the processes' medians"
    )
    table.add_column("case", overflow="fold")
    for name in ("FLOPs", "peak", "operations", "formulas", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in report.records:
        assert isinstance(record, BaselineRecord)
        table.add_row(*(Text(cell) for cell in _row(record)))
    return [table]


def _row(record: BaselineRecord) -> list[str]:
    if record.error:
        return [f"{record.case}: {record.error}", "–", "–", "–", "–", "–"]
    metrics = record.metrics
    times = [median(process) for process in record.times_s]
    return [
        record.case,
        format_count(metrics["flops"], short=True),
        format_bytes(metrics["peak_bytes"]),
        format_count(metrics["dispatched_operations"]),
        str(len(record.formulas)),
        format_time(median(times)) if times else "–",
    ]
