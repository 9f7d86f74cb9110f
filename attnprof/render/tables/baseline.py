"""What ``attnprof baseline`` shows: a table a module, a row a case; mechanisms in one table."""

from collections.abc import Iterator
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import BaselineRecord, Report
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.terminal import quantity_value
from attnprof.units import MISSING, format_time


def tables(report: Report) -> Iterator[RenderableType]:
    """What each case counts and takes, or why it does not run."""
    groups: dict[str, list[BaselineRecord]] = {}
    for record in report.of(BaselineRecord):
        code = record.case.partition("[")[0]
        groups.setdefault(code if ":" in code else "", []).append(record)
    numbers = ("FLOPs", "peak", "operations", "formulas", "time")
    for code, records in groups.items():
        # what all cases of a module say is told once, above them; the phase is in every row
        said = [r.case.removeprefix(f"{code}[").removesuffix("]").split() for r in records]
        several = code and len(said) > 1
        same = [word for word in said[0][1:] if several and all(word in its for its in said[1:])]
        rows = (
            _row(record, " ".join(word for word in words if word not in same) if code else "")
            for record, words in zip(records, said, strict=True) if not record.error
        )  # fmt: skip
        title = f"{code}[… {' '.join(same)}]" if same else code or "built-in mechanisms"
        yield FittedTable("case", *numbers, rows=rows, title=title, right=numbers)
        yield from (Hanging(f"{its.case}: {its.error}") for its in records if its.error)
    yield Text("Times are processor time of a call, the median of several processes.", "dim")


def _row(record: BaselineRecord, name: str) -> list[str]:
    counted = ("flops", "peak_bytes", "dispatched_operations")
    values = (quantity_value(record.metrics[metric], metric) for metric in counted)
    times = [median(process) for process in record.times_s]
    time = format_time(median(times)) if times else MISSING
    return [name or record.case, *values, str(len(record.formulas)), time]
