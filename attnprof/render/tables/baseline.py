"""The table of ``attnprof baseline``: a line a case."""

from __future__ import annotations

from statistics import median

from rich.console import RenderableType

from attnprof.record import BaselineRecord, Report
from attnprof.render.terminal import new_table
from attnprof.units import MISSING, format_bytes, format_count, format_time


def tables(report: Report) -> list[RenderableType]:
    """What each case counts and takes, or why it does not run."""
    caption = "times: processor time of a call, median of the processes' medians"
    numbers = ("FLOPs", "peak", "operations", "formulas", "time")
    table = new_table(
        "case", *numbers, title="baseline", caption=caption, right=numbers, fold=["case"]
    )
    for record in report.of(BaselineRecord):
        table.add_row(*_row(record))
    return [table]


def _row(record: BaselineRecord) -> list[str]:
    if record.error:
        return [f"{record.case}: {record.error}", *[MISSING] * 5]
    metrics = record.metrics
    times = [median(process) for process in record.times_s]
    return [
        record.case,
        format_count(metrics["flops"], short=True),
        format_bytes(metrics["peak_bytes"]),
        format_count(metrics["dispatched_operations"]),
        str(len(record.formulas)),
        format_time(median(times)) if times else MISSING,
    ]
