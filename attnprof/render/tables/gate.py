"""What ``baseline`` and ``history`` show: what each case costs, and where that changed."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import BaselineRecord, HistoryRecord, Report
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.formats import render_markdown
from attnprof.render.terminal import Cell, quantity_value, record_table, shown_value
from attnprof.units import plural


def baseline_tables(report: Report) -> Iterator[RenderableType]:
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
    return [name or record.case, *values, str(len(record.formulas)),
            shown_value(median(times) if times else None, "time")]  # fmt: skip


FORMATS = {"s": "time", "B": "bytes"}
MEANING = """A series is one metric of one case, for times on one machine. Any other count is a \
change point; of times, another level that three runs or more stay at.
"""


def _change_points(report: Report) -> list[HistoryRecord]:
    return [record for record in report.of(HistoryRecord) if record.change_point]


def history_tables(report: Report) -> Iterator[RenderableType]:
    """How many levels begin where; then a table a case, with a row for each of them."""
    summary, rows = report.summary, _change_points(report)
    changes, runs = plural(summary["change_points"], "change point"), plural(summary["runs"], "run")
    found = f"{changes} in {summary['series']:,} series of {runs}."
    yield Text(found if rows else f"Nothing changed: {found}", "bold")
    yield Text(MEANING, "dim")
    several = len({r.machine for r in report.of(HistoryRecord) if r.machine}) > 1
    columns: dict[str, Cell] = {
        "metric": lambda r: f"{r.metric}, {r.machine}" if several and r.machine else r.metric,
        "since": lambda r: r.at[:16].replace("T", " "), "commit": lambda r: r.commit or r.file,
        "level": lambda r: shown_value(r.level, FORMATS.get(r.unit, "count")), "ratio": "ratio",
    }  # fmt: skip
    for case in dict.fromkeys(row.case for row in rows):
        some = [row for row in rows if row.case == case]
        yield record_table(some, columns, right=["level"], title=case)


def history_page(report: Report, **_how: object) -> str:
    """The change points only: a row for every run is in the JSON."""
    return render_markdown(replace(report, records=_change_points(report)))
