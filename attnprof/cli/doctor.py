"""``attnprof doctor``: the environment, the devices, and which counters work here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnprof.cli.options import ForceOption, Format, FormatOption, OutputOption
from attnprof.cli.output import deliver, ensure_writable, environment
from attnprof.errors import CannotRunError
from attnprof.record import DoctorRecord, Report

if TYPE_CHECKING:
    from rich.console import RenderableType


def doctor(
    *,
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> int:
    """Environment, devices, and which counters work, each by a small live test.

    Exit code 3 where torch is missing: nothing can be measured then.

    Example: attnprof doctor --format json
    """
    from attnprof.cli.doctor_probes import probes

    ensure_writable(output, force=force)
    records = list(probes())
    bad = [record.check for record in records if record.status in ("missing", "broken")]
    deliver(Report("doctor", records, {"problems": bad}, environment()), fmt, output, _table)
    return CannotRunError.exit_code if "torch" in bad else 0


def _table(report: Report) -> list[RenderableType]:
    from rich.text import Text

    from attnprof.render.terminal import new_table

    table = new_table(caption=_verdict(report.summary["problems"]))
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found", overflow="fold")
    styles = {"ok": "green", "none": "dim"}
    for record in report.records:
        assert isinstance(record, DoctorRecord)
        advice = f" → {record.advice}" if record.advice else ""
        style = styles.get(record.status, "red")
        table.add_row(record.check, Text(record.status, style), record.found + advice)
    return [table]


def _verdict(problems: list[str]) -> str:
    return f"Needs attention: {', '.join(problems)}." if problems else "Everything works."
