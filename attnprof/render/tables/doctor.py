"""The table of ``attnprof doctor``."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DoctorRecord, Report
from attnprof.render.terminal import new_table

STYLES = {"ok": "green", "none": "dim"}


def tables(report: Report) -> list[RenderableType]:
    """A row a check, with what to do."""
    problems = report.summary["problems"]
    verdict = f"Needs attention: {', '.join(problems)}." if problems else "Everything works."
    table = new_table("check", "status", "found", fold=["found"], caption=verdict)
    for record in report.of(DoctorRecord):
        advice = f" → {record.advice}" if record.advice else ""
        status = Text(record.status, STYLES.get(record.status, "red"))
        table.add_row(record.check, status, record.found + advice)
    return [table]
