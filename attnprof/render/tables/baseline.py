"""The table of ``attnprof baseline``: a line a case."""

from statistics import median

from rich.console import RenderableType

from attnprof.record import BaselineRecord, Report
from attnprof.render.terminal import new_table, quantity_value
from attnprof.units import MISSING, format_time


def tables(report: Report) -> list[RenderableType]:
    """What each case counts and takes, or why it does not run."""
    numbers = ("FLOPs", "peak", "operations", "formulas", "time")
    caption = "times: processor time of a call, median of the processes' medians"
    rows = map(_row, report.of(BaselineRecord))
    return [
        new_table(
            "case", *numbers, rows=rows, title="baseline", caption=caption, right=numbers,
            fold=["case"],
        )
    ]  # fmt: skip


def _row(record: BaselineRecord) -> list[str]:
    if record.error:
        return [f"{record.case}: {record.error}", *[MISSING] * 5]
    metrics, times = record.metrics, [median(process) for process in record.times_s]
    return [
        record.case,
        quantity_value(metrics["flops"], "flops"),
        quantity_value(metrics["peak_bytes"], "peak_bytes"),
        quantity_value(metrics["dispatched_operations"], "operations"),
        str(len(record.formulas)),
        format_time(median(times)) if times else MISSING,
    ]
