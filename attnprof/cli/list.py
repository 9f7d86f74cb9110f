"""``attnprof list``: what there is, from the registry and from plug-ins' metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from attnprof import registry
from attnprof.cli.growth_table import growth_tables
from attnprof.cli.options import ForceOption, Format, FormatOption, OutputOption
from attnprof.cli.output import deliver, ensure_writable, environment
from attnprof.cli.progress import progress_bar
from attnprof.record import MechanismRecord, Report

if TYPE_CHECKING:
    from rich.console import RenderableType


def list_(
    verify: Annotated[
        bool,
        Option("--verify", help="Count and fit the orders of growth; exit 1 if one is exceeded."),
    ] = False,
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> int:
    """Mechanisms: orders of growth in the length N, parameters with defaults, and their paper.

    Example: attnprof list --format json
    """
    ensure_writable(output, force=force)
    if verify:
        report = _verified()
        deliver(report, fmt, output, growth_tables)
        return 1 if report.summary["unexpected"] or report.summary["miscounted"] else 0
    records = [_shipped(name) for name in registry.names()] + _plugins()
    deliver(Report("list", records, {}, environment()), fmt, output, _table)
    return 0


def _verified() -> Report:
    """Claimed against found, for every shipped mechanism."""
    import torch

    from attnprof.measure.growth import subjects, verify

    asked = subjects(registry.names())
    made_with = environment(torch=torch.__version__)
    with progress_bar(len(asked), "verify") as show:
        return verify(asked, environment=made_with, on_progress=show)


def _shipped(name: str) -> MechanismRecord:
    mechanism = registry.get(name)
    return MechanismRecord(
        mechanism=name,
        title=mechanism.title,
        family=mechanism.family,
        time_order=mechanism.time_order,
        memory_order=mechanism.memory_order,
        params=mechanism.params,
        causal=mechanism.abilities.causal,
        decode=mechanism.abilities.decode,
        document=mechanism.document,
    )


def _plugins() -> list[MechanismRecord]:
    """Rows of entry points, which are not imported: what they cost is not known yet."""
    rows = []
    for point, broken in registry.plugins():
        where = registry.origin(point)
        reason = f"broken {where}: {broken}" if broken else f"{where}, loaded when asked for"
        rows.append(MechanismRecord(mechanism=point.name, title="plug-in", skipped=reason))
    return rows


def _table(report: Report) -> list[RenderableType]:
    from attnprof.render.terminal import new_table
    from attnprof.units import format_value

    table = new_table(caption="N: tokens. Set a parameter with --set name=value.")
    for heading in ("mechanism", "time", "memory", "causal", "decode"):
        table.add_column(heading, no_wrap=True)
    table.add_column("parameters (default)", overflow="fold", ratio=2)
    table.add_column("paper", overflow="fold", ratio=3)
    for record in report.records:
        assert isinstance(record, MechanismRecord)
        if record.skipped:
            table.add_row(record.mechanism, *["–"] * 5, record.skipped)
            continue
        table.add_row(
            record.mechanism,
            record.time_order,
            record.memory_order,
            format_value(record.causal),
            format_value(record.decode),
            format_value(record.params),
            f"{record.document} {record.title}",
        )
    return [table]
