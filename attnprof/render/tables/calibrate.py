"""The table of ``attnprof calibrate``."""

from rich.console import RenderableType

from attnprof.record import Report
from attnprof.render.terminal import record_table


def tables(report: Report) -> list[RenderableType]:
    """A row a number format."""
    columns = (
        "device_name", "threads", "dtype", "flops_per_s", "bytes_per_s", "operations",
        "repeatability",
    )  # fmt: skip
    return [record_table(report.records, columns, title="Ceilings measured")]
