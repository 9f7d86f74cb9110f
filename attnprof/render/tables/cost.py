"""The tables of ``attnprof cost``: stages, totals, closed forms, LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.record import CostRecord, Report
from attnprof.render.terminal import (
    is_narrow,
    new_table,
    quantity_text,
    quantity_value,
    workload_text,
)
from attnprof.units import format_value, label

TOTAL = "total"
#: Columns of the stage table where no quantity was asked for, by convention.
USUAL = {
    "flops": ("flops", "matmul_flops", "bytes_moved", "peak_bytes"),
    "operations": ("multiplications", "additions", "divisions", "exponentials", "operations"),
}
TITLES = {
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


def tables(
    report: Report, quantities: Sequence[str] = (), *, symbolic: bool = False, latex: bool = False
) -> list[RenderableType]:
    """One block a mechanism and length: stages, then totals and published forms."""
    blocks: list[RenderableType] = []
    records = report.of(CostRecord)
    for _, group in groupby(records, key=lambda r: (r.mechanism, str(r.params), r.seq_len)):
        rows = list(group)
        told = f"{label(rows[0].mechanism, rows[0].params)}: {workload_text(rows[0])}"
        title = Text(told, style="bold")
        if rows[0].skipped:
            blocks += [title, Padding(Text(f"skipped: {rows[0].skipped}"), (0, 0, 1, 1))]
        elif latex:
            blocks += [f"% {told}", *_latex(rows)]
        elif symbolic:
            blocks += [title, _closed_forms(rows)]
        else:
            blocks += [title, *_numbers(rows, quantities, report.summary["convention"])]
    rule = RULES[report.summary["convention"]]
    return [*blocks, f"% {rule}" if latex else Text(rule, style="dim")]


def _numbers(
    rows: list[CostRecord], quantities: Sequence[str], convention: str
) -> list[RenderableType]:
    counted = [row for row in rows if row.kind == "formula"]
    stages = [row for row in counted if row.stage != TOTAL]
    blocks: list[RenderableType] = []
    if any(row.stage != TOTAL for row in rows):
        present = {row.quantity for row in stages}
        shown = [name for name in USUAL[convention] if name in present and name in quantities]
        if len(shown) < len(USUAL[convention]):
            shown = [name for name in quantities if name in present]
        blocks.append(_stages(stages, shown))
    if counted:
        blocks.append(_totals([row for row in counted if row.stage == TOTAL]))
    # a printed formula's value, with what it counts: not comparable with ours
    return blocks + [
        Text(f" published {row.source}: {_heading(row.quantity)} "
             f"{format_value(row.value, 'count')} ({row.convention})\n")
        for row in rows if row.source
    ]  # fmt: skip


def _stages(rows: list[CostRecord], names: Sequence[str]) -> Table:
    headings = [_heading(name) for name in names]
    table = new_table("stage", *headings, right=headings, fold=["stage"])
    several = len({row.part for row in rows}) > 1
    for part, of_part in groupby(rows, key=lambda r: r.part):
        if several:
            table.add_section()
            table.add_row(Text(part or "", "bold"))
        for stage, group in groupby(of_part, key=lambda r: r.stage):
            values = {row.quantity: row.value for row in group}
            table.add_row(stage, *(_cell(values.get(name), name) for name in names))
    return table


def _heading(name: str) -> str:
    return TITLES.get(name) or quantity_text(name)


def _cell(value: float | None, name: str) -> str:
    return quantity_value(value, name, short=is_narrow())


def _totals(rows: list[CostRecord]) -> Table:
    table = new_table("total", "value", "", right=("value", ""))
    for row in rows:
        peak = row.quantity in ("peak_bytes", "peak_entries")
        name = quantity_text(row.quantity) if peak else _heading(row.quantity)
        table.add_row(name, format_value(row.value, "count"), _scaled(row))
    return table


def _scaled(row: CostRecord) -> str:
    """The value in the unit one thinks in, where it is large."""
    if row.value is None or row.value < 1024:
        return ""
    if row.value < 10**6 and "bytes" not in row.quantity:
        return ""
    return quantity_value(row.value, row.quantity, short=True)


def _closed_forms(rows: list[CostRecord]) -> Table:
    """Stages by their FLOPs (or operations) alone, totals in full; zeros left out."""
    headings = ("stage", "quantity", "closed form")
    table = new_table(*headings, "value", right=["value"], fold=headings)
    table.columns[0].ratio, table.columns[2].ratio = 2, 5
    for row in rows:
        if row.value and (row.stage == TOTAL or row.quantity in ("flops", "operations")):
            stage = row.stage if row.part is None else f"{row.part}: {row.stage}"
            name = row.quantity if row.source is None else f"{row.quantity} ({row.source})"
            form = row.expression or "no closed form"
            table.add_row(stage, name, form, _cell(row.value, row.quantity))
    return table


def _latex(rows: list[CostRecord]) -> list[RenderableType]:
    """One line a total, as a comment and a formula: text to be pasted, so never wrapped."""
    lines: list[RenderableType] = []
    for row in rows:
        if row.stage == TOTAL and row.value:
            name = row.quantity if row.source is None else f"{row.quantity} {row.source}"
            lines += [f"% {name}", row.latex or "% no closed form"]
    return lines
