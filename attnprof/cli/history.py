"""`attnprof history`: where the level of saved results changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnprof.cli.options import ForceOption, Format, FormatOption, OutputOption, PlotOption
from attnprof.cli.output import deliver, ensure_writable, environment, note
from attnprof.cli.sizes import parse_names
from attnprof.errors import RequestError, closest
from attnprof.record import HistoryRecord, Report

if TYPE_CHECKING:
    from rich.console import RenderableType


def history(
    folder: Annotated[
        Path, Argument(metavar="DIR", help="A folder of results of check or baseline (.json).")
    ],
    *,
    case: Annotated[
        str | None, Option("--case", metavar="TEXT", help="Only cases with this in their name.")
    ] = None,
    metric: Annotated[
        str | None, Option("--metric", metavar="NAMES", help="Only these, like time,flops.")
    ] = None,
    plot: PlotOption = None,
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> None:
    """Find the runs at which a case's counts or times reached another level.

    Example: attnprof history results --metric time --plot history.png
    """
    from attnprof.gate.history import history_report

    for path, flag in ((output, "--output"), (plot, "--plot")):
        ensure_writable(path, force=force, flag=flag)
    found = history_report(folder)
    for said in found.summary["left_out"]:
        note(f"left out {said}")
    report = replace(_filtered(found, case, metric), environment=environment())
    if plot is not None:
        from attnprof.render.plots.history import plot_history

        plot_history(report, plot)
        note(f"wrote {plot}")
    deliver(report, fmt, output, _table, _page)


def _filtered(report: Report, case: str | None, metric: str | None) -> Report:
    """The asked series; :class:`RequestError` where there are none of them."""
    records = _told(report)
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


def _changes(report: Report) -> list[HistoryRecord]:
    return [r for r in _told(report) if r.change_point]


def _told(report: Report) -> list[HistoryRecord]:
    return [r for r in report.records if isinstance(r, HistoryRecord)]


def _table(report: Report) -> list[RenderableType]:
    from attnprof.render.terminal import new_table
    from attnprof.units import format_value

    summary, rows = report.summary, _changes(report)
    said = (
        f"{summary['change_points']} change points in {summary['series']} series, "
        f"{summary['runs']} runs"
    )
    if not rows:
        return [said]
    table = new_table("Where a level begins", said)
    for name in ("case", "metric", "since", "commit"):
        table.add_column(name, overflow="fold", no_wrap=name in ("metric", "since"))
    table.add_column("level", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    formats = {"s": "time", "B": "bytes"}
    several = len({r.machine for r in _told(report) if r.machine}) > 1
    for row in rows:
        metric = f"{row.metric}, {row.machine}" if several and row.machine else row.metric
        level = format_value(row.level, formats.get(row.unit, "count"))
        cells = (
            row.case,
            metric,
            row.at[:16].replace("T", " "),
            row.commit or row.file,
            level,
            format_value(row.ratio, "ratio"),
        )
        table.add_row(*map(_text, cells))
    return [table]


def _text(cell: str) -> Any:
    from rich.text import Text

    return Text(cell)


def _page(report: Report) -> str:
    """The change points only: a row for every run is in the JSON."""
    from attnprof.render.markdown import render_markdown

    return render_markdown(replace(report, records=_changes(report)))
