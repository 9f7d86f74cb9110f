"""What ``attnprof history`` shows: where a level begins."""

from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import HistoryRecord, Report
from attnprof.render.fitted import FittedTable
from attnprof.render.formats import render_markdown
from attnprof.render.terminal import shown_value
from attnprof.units import plural

FORMATS = {"s": "time", "B": "bytes"}
MEANING = """A series is one metric of one case, for times on one machine. Any other count is a \
change point; of times, another level that three runs or more stay at.
"""


def _changes(report: Report) -> list[HistoryRecord]:
    return [record for record in report.of(HistoryRecord) if record.change_point]


def tables(report: Report) -> Iterator[RenderableType]:
    """How many levels begin where; then a table a case, with a row for each of them."""
    summary, rows = report.summary, _changes(report)
    changes, runs = plural(summary["change_points"], "change point"), plural(summary["runs"], "run")
    found = f"{changes} in {summary['series']:,} series of {runs}."
    yield Text(found if rows else f"Nothing changed: {found}", "bold")
    yield Text(MEANING, "dim")
    several = len({r.machine for r in report.of(HistoryRecord) if r.machine}) > 1
    headings = ("metric", "since", "commit", "level", "ratio")
    for case in dict.fromkeys(row.case for row in rows):
        cells = (_cells(row, several=several) for row in rows if row.case == case)
        yield FittedTable(*headings, rows=cells, title=case, right=headings[3:])


def _cells(row: HistoryRecord, *, several: bool) -> list[str]:
    metric = f"{row.metric}, {row.machine}" if several and row.machine else row.metric
    level = shown_value(row.level, FORMATS.get(row.unit, "count"))
    since, commit = row.at[:16].replace("T", " "), row.commit or row.file
    return [metric, since, commit, level, shown_value(row.ratio, "ratio")]


def page(report: Report, **_how: object) -> str:
    """The change points only: a row for every run is in the JSON."""
    return render_markdown(replace(report, records=_changes(report)))
