"""A report of ``check`` on the terminal: one line a case, then what changed by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.gate import verdicts
from attnprof.gate.sentences import sentence, time_text, told_once
from attnprof.record import Report
from attnprof.render.gate.cases import (
    CaseRows,
    by_case,
    counts_text,
    named,
    notes_of,
    sides_text,
    verdict_of,
)
from attnprof.render.terminal import new_table, record_table
from attnprof.units import MISSING

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {
    verdicts.REGRESSED: "bold red",
    verdicts.ERROR: "bold magenta",
    verdicts.MISSING: "bold magenta",
    verdicts.INCONCLUSIVE: "yellow",
    verdicts.NOT_COMPARABLE: "dim",
    verdicts.NEW: "cyan",
    verdicts.IMPROVED: "green",
    verdicts.OK: "green",
}
#: All that a record says, for who wants every number.
FULL = (
    "case", "metric", "baseline", "current", "ratio", "ci_low", "ci_high", "verdict", "pairs",
    "noise", "wall_ratio", "why", "place",
)  # fmt: skip


def check_tables(report: Report, *, verbose: bool = False) -> list[RenderableType]:
    """A line a case, worst first; the named changes; the verdict. ``verbose`` adds every record."""
    cases = by_case(report)
    found: list[RenderableType] = [_overview(cases, report)]
    if verbose:
        found.append(record_table(report.records, FULL))
    found += [_told(case, report) for case in cases if named(case, report)]
    return [*found, _ending(report)]


def _overview(cases: list[CaseRows], report: Report) -> RenderableType:
    table = new_table(f"check: {sides_text(report)}")
    table.add_column("verdict", no_wrap=True)
    table.add_column("case", overflow="fold")
    timed = any(case.time for case in cases)
    if timed:
        table.add_column("time, current / baseline", justify="right", no_wrap=True)
    for case in cases:
        time = [time_text(case.time) or MISSING] if timed else []
        table.add_row(Text(case.verdict, STYLES[case.verdict]), Text(case.name), *time)
    return table


def _told(case: CaseRows, report: Report) -> RenderableType:
    """A case's name over its changes, each with its line of code."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for record in told_once(named(case, report)):
        place = f" ({record.place})" if record.place else ""
        told = Text(sentence(record)).append(place, "dim")
        lines.add_row(Text(record.verdict, STYLES[record.verdict]), told)
    return Group(Text(case.name, "bold"), Padding(lines, (0, 0, 1, 2)))


def _ending(report: Report) -> RenderableType:
    verdict = verdict_of(report)
    lines = Text(verdict, STYLES[verdict])
    lines.append(f"; {counts_text(report)}", "not bold default")
    for note in notes_of(report):
        lines.append(f"\n{note}", "dim not bold")
    return lines
