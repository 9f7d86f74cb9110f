"""The tables of ``attnprof cost``: stages, totals, closed forms, LaTeX."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from attnprof.cli.request import label
from attnprof.record import CostRecord
from attnprof.render.terminal import is_narrow, new_table
from attnprof.symbolic.costing import TOTAL, Asked
from attnprof.units import format_bytes, format_value

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Columns of the stage table where no quantity was asked for.
USUAL = ("flops", "matmul_flops", "bytes_moved", "peak_bytes")
USUAL_OPERATIONS = ("multiplications", "additions", "divisions", "exponentials", "operations")
TITLES = {
    "flops": "FLOPs",
    "matmul_flops": "matmul FLOPs",
    "bytes_moved": "bytes moved",
    "peak_bytes": "held",
    "peak_entries": "held (entries)",
    "state_entries": "decoding state (entries)",
}
RULES = {
    "flops": "FLOPs: multiply, add, divide, exponential, other count 1 each, as executed; "
    "masked entries included. Held: bytes allocated since the call began.",
    "operations": "Operations of the definition (002): k-1 additions a dot product, "
    "n-1 a sum, causal row t sees t tokens.",
}


def cost_tables(records: list[CostRecord], asked: Asked) -> list[RenderableType]:
    """One block a mechanism and length: stages, then totals and published forms."""
    blocks: list[RenderableType] = []
    for _, rows in groupby(records, key=lambda r: (r.mechanism, str(r.params), r.seq_len)):
        blocks += _block(list(rows), asked)
    if asked.latex:
        return [*blocks, f"% {RULES[asked.convention]}"]
    return [*blocks, Text(RULES[asked.convention], style="dim")]


def _block(rows: list[CostRecord], asked: Asked) -> list[RenderableType]:
    title = Text(_title(rows[0]), style="bold")
    if rows[0].skipped:
        return [title, Padding(Text(f"skipped: {rows[0].skipped}"), (0, 0, 1, 1))]
    if asked.latex:
        return [f"% {_title(rows[0])}", *_latex(rows)]
    if asked.closed_forms:
        return [title, _closed_forms(rows)]
    stages = [row for row in rows if row.stage != TOTAL]
    counted = [row for row in rows if row.kind == "formula"]
    return [
        title,
        *([_stages(rows, asked)] if stages else []),
        *([_totals(counted)] if counted else []),
        *(_published(row) for row in rows if row.source),
    ]


def _title(row: CostRecord) -> str:
    mask = ", causal" if row.causal else ""
    return (
        f"{label(row.mechanism, row.params)}: {row.scope}, {row.phase}{mask}, "
        f"batch {row.batch_size}, seq {row.seq_len:,}, d_model {row.d_model:,}, "
        f"{row.num_heads} head{'s' if row.num_heads > 1 else ''} of {row.head_dim}, {row.dtype}"
    )


def _shown(rows: list[CostRecord], asked: Asked) -> list[str]:
    present = {row.quantity for row in rows if row.kind == "formula" and row.stage != TOTAL}
    usual = USUAL if asked.convention == "flops" else USUAL_OPERATIONS
    chosen = [name for name in usual if name in present and name in asked.quantities]
    if len(chosen) == len(usual):
        return chosen
    return [name for name in asked.quantities if name in present]


def _stages(rows: list[CostRecord], asked: Asked) -> Table:
    names, table = _shown(rows, asked), new_table()
    table.add_column("stage", overflow="fold")
    for name in names:
        table.add_column(_heading(name), justify="right", no_wrap=True)
    short, counted = is_narrow(), [r for r in rows if r.kind == "formula" and r.stage != TOTAL]
    parts = {row.part for row in counted}
    for part, of_part in groupby(counted, key=lambda r: r.part):
        if len(parts) > 1:
            table.add_section()
            table.add_row(Text(part, "bold"))
        for stage, group in groupby(of_part, key=lambda r: r.stage):
            values = {row.quantity: row.value for row in group}
            cells = (_cell(values.get(name), name, short=short) for name in names)
            table.add_row(Text(stage), *cells)
    return table


def _heading(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def _cell(value: float | None, name: str, *, short: bool) -> str:
    fmt = "bytes" if name in ("peak_bytes", "bytes_moved") else "count"
    return format_value(value, fmt, short=short)


def _totals(rows: list[CostRecord]) -> Table:
    table = new_table()
    table.add_column("total", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for row in rows:
        if row.stage == TOTAL:
            exact = format_value(row.value, "count")
            table.add_row(_total_name(row.quantity), exact, _scaled(row))
    return table


def _scaled(row: CostRecord) -> str:
    """The value in the unit one thinks in, where it is large."""
    if row.value is None or row.value < 1024:
        return ""
    if row.quantity in ("peak_bytes", "bytes_moved"):
        return format_bytes(row.value)
    return format_value(row.value, "count", short=True) if row.value >= 10**6 else ""


def _published(row: CostRecord) -> Text:
    """A printed formula's value, with what it counts: not comparable with ours."""
    value = format_value(row.value, "count")
    return Text(f" published {row.source}: {_heading(row.quantity)} {value} ({row.convention})\n")


def _total_name(name: str) -> str:
    return {"peak_bytes": "peak memory", "peak_entries": "peak entries"}.get(name, _heading(name))


def _closed_forms(rows: list[CostRecord]) -> Table:
    table = new_table()
    table.add_column("stage", overflow="fold", ratio=2)
    table.add_column("quantity", overflow="fold")
    table.add_column("closed form", overflow="fold", ratio=5)
    table.add_column("value", justify="right", no_wrap=True)
    short = is_narrow()
    for row in _informative(rows):
        stage = row.stage if row.part is None else f"{row.part}: {row.stage}"
        name = row.quantity if row.source is None else f"{row.quantity} ({row.source})"
        form = row.expression or "no closed form"
        table.add_row(stage, name, form, _cell(row.value, row.quantity, short=short))
    return table


def _informative(rows: list[CostRecord]) -> Iterable[CostRecord]:
    """Stages by their FLOPs (or operations) alone, totals in full; zeros left out."""
    for row in rows:
        if row.value and (row.stage == TOTAL or row.quantity in ("flops", "operations")):
            yield row


def _latex(rows: list[CostRecord]) -> list[RenderableType]:
    """One line a total, as a comment and a formula: text to be pasted, so never wrapped."""
    lines: list[RenderableType] = []
    for row in rows:
        if row.stage == TOTAL and row.value:
            name = row.quantity if row.source is None else f"{row.quantity} {row.source}"
            lines += [f"% {name}", row.latex or "% no closed form"]
    return lines
