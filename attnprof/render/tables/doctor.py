"""The table of ``attnprof doctor``."""

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DoctorRecord, Report
from attnprof.render.fitted import FittedTable

STYLES = {"ok": "green", "none": "dim"}


def tables(report: Report) -> list[RenderableType]:
    """A row a check, with what to do."""
    problems = report.summary["problems"]
    verdict = f"Needs attention: {', '.join(problems)}." if problems else "Everything works."
    rows = (
        (its.check, Text(its.status, STYLES.get(its.status, "red")),
         its.found + (f" → {its.advice}" if its.advice else ""))
        for its in report.of(DoctorRecord)
    )  # fmt: skip
    return [FittedTable("check", "status", "found", rows=rows, caption=verdict)]
