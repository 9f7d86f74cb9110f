"""`attnprof history`: where the level of saved results changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from typer import Argument, Option

from attnprof.cli.output import DrawnOutput, environment, note
from attnprof.cli.request import parse_names
from attnprof.errors import RequestError, closest
from attnprof.record import HistoryRecord, Report


def history(
    folder: Path = Argument(
        metavar="DIR", help="A folder of results of check or baseline (.json)."
    ),
    *,
    case: str | None = Option(None, metavar="TEXT", help="Only cases with this in their name."),
    metric: str | None = Option(None, metavar="NAMES", help="Only these, like time,flops."),
    to: DrawnOutput,
) -> None:
    """Find the runs at which a case's counts or times reached another level.

    Example: attnprof history results --metric time --plot history.png
    """
    from attnprof.gate.history import history_report

    found = history_report(folder)
    for run in found.summary["left_out"]:
        note(f"left out {run}")
    report = replace(_filtered(found, case, metric), environment=environment())
    to.draw(report)
    to.deliver(report)


def _filtered(report: Report, case: str | None, metric: str | None) -> Report:
    """The asked series; :class:`RequestError` where there are none of them."""
    records = report.of(HistoryRecord)
    if case is not None:
        cases = list(dict.fromkeys(record.case for record in records))
        records = [record for record in records if case in record.case]
        if not records:
            raise RequestError(f"--case {case}: no case has it; {closest(case, cases)}")
    if metric is not None:
        names, there = parse_names(metric, "--metric"), {record.metric for record in records}
        for name in names:
            if name not in there:
                raise RequestError(f"--metric {name}: {closest(name, sorted(there))}")
        records = [record for record in records if record.metric in names]
    counted = {
        "series": len({(r.case, r.metric, r.machine) for r in records}),
        "change_points": sum(r.change_point for r in records),
    }
    return replace(report, records=records, summary={**report.summary, **counted})
