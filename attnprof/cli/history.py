"""`attnprof history`: where the level of saved results changed."""

from dataclasses import replace
from pathlib import Path

from typer import Argument, Option

from attnprof.cli.options import DrawnOutput, environment, note
from attnprof.cli.request import parse_names


def history(
    folder: Path = Argument(
        metavar="DIR", help="A folder of results of check or baseline (.json)."
    ),
    *,
    case: str | None = Option(None, metavar="TEXT", help="Only cases with this in their name."),
    metric: str | None = Option(None, metavar="NAMES", help="Only these, like time,flops."),
    to: DrawnOutput,
) -> None:
    """Find the runs at which saved results reached another level.

    DIR holds results of check or baseline, as JSON.

    Examples:
      attnprof history results
      attnprof history results --metric time --plot history.png
    """
    from attnprof.gate.history import history_report

    metrics = None if metric is None else parse_names(metric, "--metric")
    report = history_report(folder, case, metrics, note)
    to.deliver(replace(report, environment=environment()))
