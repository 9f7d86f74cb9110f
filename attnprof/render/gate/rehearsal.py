"""A report of ``check --self-test`` on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnprof.record import Report, SelfTestRecord
from attnprof.render.terminal import record_table

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = ("slowdown", "trials", "regressed", "inconclusive", "ratio", "noise", "case_s")


def self_test_tables(report: Report) -> list[RenderableType]:
    """A line a slowdown, and what the first and the others mean."""
    rule = report.summary["rule"]
    rows = [record for record in report.records if isinstance(record, SelfTestRecord)]
    alarms = sum(row.regressed for row in rows if not row.slowdown)
    trials = sum(row.trials for row in rows if not row.slowdown)
    said = (
        f"False alarms: {alarms} of {trials}. Few trials say little: up to "
        f"{_upper(alarms, trials):.1%} are still likely; give more --budget."
    )
    title = f"self-test of rule {rule} on this machine"
    return [record_table(rows, COLUMNS, title=title), said]


def _upper(seen: int, trials: int) -> float:
    """The rule of three, one event more for each seen."""
    return min(1.0, (3 + 1.5 * seen) / trials) if trials else 1.0
