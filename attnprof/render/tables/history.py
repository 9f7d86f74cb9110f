"""What ``attnprof history`` shows: where a level begins."""

from dataclasses import replace

from rich.console import RenderableType

from attnprof.record import HistoryRecord, Report
from attnprof.render.formats import render_markdown
from attnprof.render.terminal import new_table
from attnprof.units import format_value

FORMATS = {"s": "time", "B": "bytes"}


def _changes(report: Report) -> list[HistoryRecord]:
    return [record for record in report.of(HistoryRecord) if record.change_point]


def tables(report: Report) -> list[RenderableType]:
    """A row a change point; a line where there is none."""
    summary, rows = report.summary, _changes(report)
    counted = (
        f"{summary['change_points']} change points in {summary['series']} series, "
        f"{summary['runs']} runs"
    )
    if not rows:
        return [counted]
    numbers = ("level", "ratio")
    table = new_table(
        "case", "metric", "since", "commit", *numbers, title="Where a level begins",
        caption=counted, right=numbers, fold=("case", "commit"),
    )  # fmt: skip
    several = len({r.machine for r in report.of(HistoryRecord) if r.machine}) > 1
    for row in rows:
        metric = f"{row.metric}, {row.machine}" if several and row.machine else row.metric
        level = format_value(row.level, FORMATS.get(row.unit, "count"))
        since, commit = row.at[:16].replace("T", " "), row.commit or row.file
        table.add_row(row.case, metric, since, commit, level, format_value(row.ratio, "ratio"))
    return [table]


def page(report: Report, **_how: object) -> str:
    """The change points only: a row for every run is in the JSON."""
    return render_markdown(replace(report, records=_changes(report)))
