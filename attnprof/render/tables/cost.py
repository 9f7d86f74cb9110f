"""The tables of ``attnprof cost``: stages, totals, closed forms, LaTeX."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import CostRecord, Report
from attnprof.render.fitted import FittedTable
from attnprof.render.formulas import FormulaText
from attnprof.render.terminal import quantity_value, workload_text
from attnprof.units import label, quantity_text

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
    "masked entries included. Held: bytes allocated since the call began, at the peak the most. "
    "Operations: those of the definition, not of the code.",
    "operations": "Operations of the definition (002): k-1 additions a dot product, "
    "n-1 a sum, causal row t sees t tokens.",
}


def tables(
    report: Report,
    quantities: Sequence[str] = (),
    *,
    symbolic: bool = False,
    domain: Callable[[CostRecord], str] | None = None,
    latex: bool = False,
) -> Iterator[RenderableType]:
    """One block a mechanism and length: stages, then totals and published forms."""
    records, convention = report.of(CostRecord), report.summary["convention"]
    for _, group in groupby(records, key=lambda r: (r.mechanism, str(r.params), r.seq_len)):
        rows = list(group)
        told = f"{label(rows[0].mechanism, rows[0].params)}: {workload_text(rows[0])}"
        plain = latex and not rows[0].skipped
        yield f"% {told}" if plain else Text(told, style="bold")
        if rows[0].skipped:
            yield Text(f"skipped: {rows[0].skipped}\n")
        elif latex:
            yield from _latex(rows)
        elif symbolic:
            yield _closed_forms(rows)
            told = f"{domain(rows[0])} (for sizes of 1, too: --full)" if domain else "all sizes"
            yield Text(f"Holds for {told}.\n")
        else:
            yield from _numbers(rows, quantities, convention)
    yield f"% {RULES[convention]}" if latex else Text(RULES[convention], style="dim")


def _numbers(
    rows: list[CostRecord], quantities: Sequence[str], convention: str
) -> Iterator[RenderableType]:
    counted = [row for row in rows if row.kind == "formula"]
    stages = [row for row in counted if row.stage != TOTAL]
    if any(row.stage != TOTAL for row in rows):
        present = {row.quantity for row in stages}.intersection(quantities)
        usual = USUAL[convention]
        yield _stages(stages, usual if present.issuperset(usual) else quantities)
    if counted:
        totals = [row for row in counted if row.stage == TOTAL]
        cells = ((_heading(r.quantity, total=True), quantity_value(r.value, r.quantity))
                 for r in totals)  # fmt: skip
        yield FittedTable(TOTAL, "value", rows=cells, right=["value"])
    # a printed formula's value, with what it counts: not comparable with ours
    for row in rows:
        if row.source:
            value = f"{_heading(row.quantity)} {quantity_value(row.value, row.quantity)}"
            yield Text(f" published {row.source}: {value} ({row.convention})\n")


def _stages(rows: list[CostRecord], names: Sequence[str]) -> FittedTable:
    headings = [_heading(name) for name in names]
    table = FittedTable("stage", *headings, right=headings)
    several = len({row.part for row in rows}) > 1
    for place, (part, of_part) in enumerate(groupby(rows, key=lambda r: r.part)):
        if several:
            table.add_row(Text("\n" * (place > 0) + (part or ""), "bold"))
        for stage, group in groupby(of_part, key=lambda r: r.stage):
            values = {row.quantity: row.value for row in group}
            table.add_row(stage, *(quantity_value(values.get(name), name) for name in names))
    return table


def _heading(name: str, *, total: bool = False) -> str:
    if total and name in ("peak_bytes", "peak_entries"):  # the most that is held
        return quantity_text(name)
    return TITLES.get(name) or quantity_text(name)


def _closed_forms(rows: list[CostRecord]) -> FittedTable:
    """Stages by their FLOPs (or operations) alone, totals in full; zeros left out."""
    table = FittedTable("stage", "quantity", "closed form", "value", right=["value"])
    for row in rows:
        if row.value and (row.stage == TOTAL or row.quantity in ("flops", "operations")):
            several = len({its.part for its in rows if its.part}) > 1
            stage = f"{row.part}: {row.stage}" if row.part and several else row.stage
            name = quantity_text(row.quantity) + (f"\n({row.source})" if row.source else "")
            form = FormulaText(row.expression or "no closed form")
            table.add_row(stage, name, form, quantity_value(row.value, row.quantity))
    return table


def _latex(rows: list[CostRecord]) -> Iterator[str]:
    """A comment and a formula a total: text to be pasted, so never wrapped."""
    for row in rows:
        if row.stage == TOTAL and row.value:
            yield f"% {row.quantity}" if row.source is None else f"% {row.quantity} {row.source}"
            yield row.latex or "% no closed form"
