"""Tables of costs by closed forms: ``compare``, ``cost``, ``heads``, ``heatmap`` and ``list``.

``NAME_tables(report)`` is the entry point of each; :mod:`attnprof.render.formats` calls it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import Report, kinds
from attnprof.render import terminal
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, quantity_value, record_table
from attnprof.units import MISSING, format_rate, format_value, joined, label, plural, quantity_text

WON = "*"
COMPARED = (
    f"{WON} marks the lowest of a column. FLOPs and bytes are those of the code as it runs, "
    "operations those of the definition. Peak memory is the most that a call allocates at once; "
    "state is what a decoder keeps after so many tokens."
)
TOTAL = "total"
#: Columns of the stage table where no quantity was asked for, by convention.
USUAL = {
    "flops": ("flops", "matmul_flops", "bytes_moved", "peak_bytes"),
    "operations": ("multiplications", "additions", "divisions", "exponentials", "operations"),
}
TITLES = {"peak_bytes": "held", "peak_entries": "held (entries)",
          "state_entries": "decoding state (entries)"}  # fmt: skip
RULES = {
    "flops": "FLOPs: multiply, add, divide, exponential, other count 1 each, as executed; "
    "masked entries included. Held: bytes allocated since the call began, at the peak the most. "
    "Operations: those of the definition, not of the code.",
    "operations": "Operations of the definition (002): k-1 additions a dot product, "
    "n-1 a sum, causal row t sees t tokens.",
}
SENT = (
    "Bytes that the busiest rank sends in one layer; each has so many consecutive tokens of all "
    "heads. Received bytes are not counted, nor is a gradient of weights."
)
BY_HEADS = (
    "published: as printed in the papers, entries added up; formula: closed forms of the code that "
    "attnprof ships, entries as the most it holds at once. The real optimum is where the cost's "
    "derivative is 0, as if heads could be a fraction."
)
COUNTED = {"flops": "FLOPs", "peak_entries": "Entries"}
GROWTH = (
    "Numbers are exponents: 2.00 grows like N^2. Time and memory are what a mechanism claims "
    "(N log N with its exponent at these lengths); counted: its matrix products, by torch's "
    "counter; FLOPs and peak: its closed forms, with one head of width {head_dim}."
)
RELEASED = (
    "Parameters are those of the model that transformers builds. Type attnprof model and a name."
)


def compare_tables(report: Report, quantities: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a block a length."""
    heads = ["state" if name == "state_bytes" else quantity_text(name) for name in quantities]
    for _, group in groupby(report.of(kinds.CompareRecord), key=lambda record: record.seq_len):
        rows = list(group)
        yield Text(terminal.workload_text(rows[0], report.summary), style="bold")
        shown = [row for row in rows if not row.skipped]
        cells = (
            [Text(r.mechanism), *(_compared_cell(r, name, shown) for name in quantities)]
            for r in shown
        )
        yield FittedTable("mechanism", *heads, rows=cells, right=heads)
        if refused := [Hanging(f"skipped: {row.skipped}") for row in rows if row.skipped]:
            yield from refused
            yield Text()
    yield Text(COMPARED, style="dim")


def _compared_cell(
    row: kinds.CompareRecord, name: str, rows: Sequence[kinds.CompareRecord]
) -> Text:
    """Return a value, marked if it is the lowest and the shown values differ."""
    text = quantity_value(getattr(row, name), name)
    others = {quantity_value(getattr(r, name), name) for r in rows}
    won = name in row.wins.split(",") and len(others) > 1
    return Text(f"{text} {WON if won else ' '}", style="bold green" if won else "")


def cost_tables(
    report: Report, quantities: Sequence[str] = (), *, symbolic: bool = False,
    domain: Callable[[kinds.CostRecord], str] | None = None, latex: bool = False,
) -> Iterator[RenderableType]:  # fmt: skip
    """Yield one block a mechanism and length: stages, then totals and published forms."""
    if report.command == "cost --ranks":
        yield from _ranks(report, symbolic=symbolic)
        return
    records, convention = report.of(kinds.CostRecord), report.summary["convention"]
    for _, group in groupby(records, key=lambda r: (r.mechanism, str(r.params), r.seq_len)):
        rows = list(group)
        conditions = terminal.workload_text(rows[0], report.summary)
        title = f"{label(rows[0].mechanism, rows[0].params)}: {conditions}"
        plain = latex and not rows[0].skipped
        yield f"% {title}" if plain else Text(title, style="bold")
        if rows[0].skipped:
            yield Text(f"skipped: {rows[0].skipped}\n")
        elif latex:
            yield from _latex(rows)
        elif symbolic:
            yield _closed_forms(rows)
            title = f"{domain(rows[0])} (for sizes of 1, too: --full)" if domain else "all sizes"
            yield Text(f"Holds for {title}.\n")
        else:
            yield from _numbers(rows, quantities, convention)
    for choice in report.summary.get("choices", ()):
        yield f"% {choice}" if latex else Hanging(choice)
    yield f"% {RULES[convention]}" if latex else Text(RULES[convention], style="dim")


def _ranks(report: Report, *, symbolic: bool) -> Iterator[RenderableType]:
    """Yield a table a workload and number of ranks, or the closed forms; then their meaning."""
    link, ranks = report.summary, report.of(kinds.RanksRecord)
    columns: dict[str, terminal.Cell] = {"mechanism": "mechanism", "method": "method"}
    if symbolic:
        columns[f"{ranks[0].phase} bytes"] = lambda row: FormulaText(row.expression or MISSING)
    else:
        columns |= {"sent": "bytes_sent", "steps": "steps"}
        columns |= {"time": "send_time_s", "tokens for overlap": "overlap_tokens"} if link else {}
    for length, count in sorted({(row.seq_len, row.ranks) for row in ranks}):
        rows = [row for row in ranks if (row.seq_len, row.ranks) == (length, count)]
        yield Text(terminal.workload_text(rows[0]), style="bold")
        yield Text(f"{plural(count, 'rank')} of {plural(rows[0].tokens_per_rank, 'token')}")
        if able := [row for row in rows if not row.skipped]:
            yield record_table(able, columns, keys=2)
        for row in rows:
            if row.skipped:
                yield Hanging(f"{row.mechanism}, no {row.method}: {row.skipped}")
    yield Text(SENT, style="dim")
    if link:
        yield Text(
            f"Overlap: a rank's products take as long as what it sends meanwhile, at "
            f"{format_rate(link['flops_per_s'])} ({link['device']}, {link['source']}) and "
            f"{format_rate(link['bytes_per_s'], 'B/s')}.", style="dim",
        )  # fmt: skip


def _numbers(
    rows: list[kinds.CostRecord], quantities: Sequence[str], convention: str
) -> Iterator[RenderableType]:
    """Yield a table of stages, one of totals, and a line a printed formula."""
    counted = [row for row in rows if row.kind == "formula"]
    stages = [row for row in counted if row.stage != TOTAL]
    if any(row.stage != TOTAL for row in rows):
        usual = {*USUAL[convention]} <= {row.quantity for row in stages} & {*quantities}
        yield _stages(stages, USUAL[convention] if usual else quantities)
    if counted:
        totals = [row for row in counted if row.stage == TOTAL]
        cells = ((_heading(r.quantity, total=True), quantity_value(r.value, r.quantity))
                 for r in totals)  # fmt: skip
        yield FittedTable(TOTAL, "value", rows=cells, right=["value"])
    if printed := [_printed_line(row) for row in rows if row.source]:
        yield Text("\n".join([*printed, ""]))


def _printed_line(row: kinds.CostRecord) -> str:
    """Return a printed formula's value; its convention, if its name does not say it, is its own."""
    name = "entries" if row.quantity == "peak_entries" else quantity_text(row.quantity)
    said = row.quantity == "parameters" or row.convention in (row.quantity, name)
    value = quantity_value(row.value, row.quantity)
    return f" published {row.source}: {name} {value}{'' if said else f' ({row.convention})'}"


def _stages(rows: list[kinds.CostRecord], names: Sequence[str]) -> FittedTable:
    """Return a row a stage, a column a quantity; with a heading for each of several parts.

    Stages that have nothing of these quantities are left out, and so are quantities of totals.
    """
    names = [name for name in names if any(row.quantity == name for row in rows)]
    spent = {(row.part, row.stage) for row in rows if row.value and row.quantity in names}
    rows = [row for row in rows if (row.part, row.stage) in spent] or rows
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


def _closed_forms(rows: list[kinds.CostRecord]) -> FittedTable:
    """Return stages by their FLOPs (or operations) alone, totals in full; zeros left out."""
    table = FittedTable("stage", "quantity", "closed form", "value", right=["value"])
    for row in rows:
        if row.value and (row.stage == TOTAL or row.quantity in ("flops", "operations")):
            several = len({r.part for r in rows if r.part}) > 1
            stage = f"{row.part}: {row.stage}" if row.part and several else row.stage
            name = quantity_text(row.quantity) + (f"\n({row.source})" if row.source else "")
            form = FormulaText(row.expression or "no closed form")
            table.add_row(stage, name, form, quantity_value(row.value, row.quantity))
    return table


def _latex(rows: list[kinds.CostRecord]) -> Iterator[str]:
    """Yield a comment and a formula a total: text to be pasted, so never wrapped."""
    for row in rows:
        if row.stage == TOTAL and row.value:
            yield f"% {row.quantity}" if row.source is None else f"% {row.quantity} {row.source}"
            yield row.latex or "% no closed form"


def heads_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a table a quantity, its title with the conditions; then the optima."""
    rows, conditions = report.of(kinds.HeadsRecord), report.summary["conditions"]
    for quantity in dict.fromkeys(row.quantity for row in rows):
        counted = [row for row in rows if row.quantity == quantity]
        yield _by_heads(f"{COUNTED[quantity]} by number of heads: {conditions}", counted)
    if left_out := report.summary["left_out"]:
        yield from map(Hanging, left_out)
        yield ""
    yield _optima(report)
    table = FittedTable("", "equation of the best real head width d")
    for one in report.summary["optima"]:
        if one["optimum_head_dim"] is not None:
            name = f"{one['mechanism']}, {one['kind']} {COUNTED[one['quantity']]}"
            table.add_row(name, FormulaText(one["equation"]))
    if table.rows:
        yield table
    yield Text(BY_HEADS, style="dim")


def _by_heads(title: str, rows: list[kinds.HeadsRecord]) -> FittedTable:
    """Return one quantity: a row a head count, a column a mechanism and kind."""
    columns = list(dict.fromkeys((row.mechanism, row.kind) for row in rows))
    texts = {(r.num_heads, r.mechanism, r.kind): quantity_value(r.value, r.quantity) for r in rows}
    widths = {row.num_heads: row.head_dim for row in rows}
    headings = ("heads", "d", *("\n".join(column) for column in columns))
    cells = (
        [f"{h:,}", f"{widths[h]:,}", *(texts.get((h, *column), MISSING) for column in columns)]
        for h in sorted(widths)
    )
    return FittedTable(*headings, rows=cells, title=title, right=headings, keys=2)


def _optima(report: Report) -> RenderableType:
    """Return a row a cost: its trend with heads, the best divisor, the real optimum."""
    numbers = ("best divisor", "real d", "real heads")
    table = FittedTable("mechanism", "quantity", "kind", "over heads", *numbers, title="Optimum",
                        right=numbers, keys=3)  # fmt: skip
    for one in report.summary["optima"]:
        *first, last = one["best_divisors"]
        best = joined([*map(str, first), plural(last, "head")], "or")
        best = "any" if one["trend"].startswith("is constant") else best
        width, heads = one["optimum_head_dim"], one["optimum_num_heads"]
        real = [MISSING] * 2 if width is None else [f"{width:.6f}", f"{heads:,.2f}"]
        quantity = COUNTED[one["quantity"]]
        table.add_row(one["mechanism"], quantity, one["kind"], one["trend"], best, *real)
    return table


def heatmap_tables(report: Report) -> list[RenderableType]:
    """Return the title, the table, and how to read it."""
    summary = report.summary
    sources = dict.fromkeys(s for s in (summary["source_a"], summary["source_b"]) if s)
    headings = ("heads", "mean excess [%]", "max excess [%]", "max at seq", "max at d_model")
    table = FittedTable(*headings, right=headings)
    for heads, mean in summary["mean_excess_percent"].items():
        where: dict[str, Any] = summary["max_at"][heads] or {}
        percents = (mean, summary["max_excess_percent"][heads])
        shown = (MISSING if value is None else f"{value:,.2f}" for value in percents)
        sizes = (format_value(where.get(name), "count") for name in ("seq_len", "d_model"))
        table.add_row(heads, *shown, *sizes)
    title = (
        f"{summary['mechanism_a']} / {summary['mechanism_b']}: "
        f"{quantity_text(summary['quantity'])}, {summary['scope']}, {summary['phase']}"
        f"{', causal' * summary['causal']}, {summary['kind']}"
        f"{f' ({chr(44).join(sources)})' if sources else ''}"
    )
    first, last = (report.of(kinds.HeatmapRecord)[end] for end in (0, -1))
    meaning = (
        f"Excess: how much more {summary['mechanism_a']} needs than {summary['mechanism_b']}, over "
        f"{summary['cells'] - summary['null_cells']:,} combinations of "
        f"{_span(first.seq_len, last.seq_len)} tokens, widths "
        f"{_span(first.d_model, last.d_model)} and the heads above."
    )
    return [Text(title, style="bold"), table, Text(meaning, style="dim")]


def _span(low: int, high: int) -> str:
    """Return ``64 to 1,024``, or one size that is both ends."""
    return " to ".join(dict.fromkeys((f"{low:,}", f"{high:,}")))


def list_tables(report: Report) -> list[RenderableType]:
    """Return a row a mechanism."""
    if report.command == "list --verify":
        return _growth(report)
    if report.command == "list --models":
        columns: dict[str, terminal.Cell] = {
            "model": "model", "parameters": lambda row: f"{row.parameters:,}",
            "type": "model_type", "on the Hub": "hub",
        }  # fmt: skip
        rows = report.of(kinds.ReleasedRecord)
        return [record_table(rows, columns, right=["parameters"], caption=RELEASED)]
    table = FittedTable(
        "mechanism", "time", "memory", "causal", "decode", "parameters (default)", "paper",
        caption="N: tokens. Set a parameter with --set name=value. 000 to 004 number the documents "
        "that attnprof reproduce lists.",
    )  # fmt: skip
    for record in report.of(kinds.MechanismRecord):
        claims = (record.time_order, record.memory_order, record.causal, record.decode)
        cells = [*map(format_value, (*claims, record.params)), f"{record.document} {record.title}"]
        skipped = [*[MISSING] * 5, record.skipped]
        table.add_row(record.mechanism, *(skipped if record.skipped else cells))
    return [table, *map(Hanging, report.summary.get("notes", ()))]


def _growth(report: Report) -> list[RenderableType]:
    """Return time and memory of every mechanism, then why some grow faster than claimed."""
    records, lengths = report.of(kinds.GrowthRecord), report.summary["seq_lens"]
    table = FittedTable(
        "mechanism", "time", "counted", "FLOPs", "memory", "peak", "verdict",
        title=f"Growth over {lengths[0]:,} to {lengths[-1]:,} tokens",
        right=("counted", "FLOPs", "peak"),
    )  # fmt: skip
    notes: list[str] = []
    for name, group in groupby(records, key=lambda record: record.variant):
        records_by_name = {record.quantity: record for record in group}
        flops, peak = records_by_name["flops"], records_by_name["peak_bytes"]
        faster = [record for record in records_by_name.values() if record.verdict == "grows faster"]
        verdict = "grows faster" if all(record.expected for record in faster) else "GROWS FASTER"
        table.add_row(
            name, _claim(flops), _exponent(records_by_name["matmul_flops"]), _exponent(flops),
            _claim(peak), _exponent(peak), verdict if faster else "agrees",
        )  # fmt: skip
        notes += _notes(name, records_by_name)
    caption = GROWTH.format(head_dim=records[0].head_dim)
    return [table, *map(Hanging, notes), Text(caption, style="dim")]


def _claim(record: kinds.GrowthRecord) -> str:
    if record.claimed_exponent is None or "log" not in record.claimed_order:
        return record.claimed_order
    return f"{record.claimed_order} ({record.claimed_exponent:.2f})"


def _exponent(record: kinds.GrowthRecord) -> str:
    return MISSING if record.found_exponent is None else f"{record.found_exponent:.2f}"


def _notes(name: str, records: dict[str, kinds.GrowthRecord]) -> Iterator[str]:
    """Yield notes on a mechanism that grows faster, or that torch counts otherwise or in part."""
    for record in records.values():
        if record.verdict == "grows faster":
            hidden = "" if record.expected else " (and does not say so)"
            because = f": {record.reason}" if record.reason else ""
            quantity = quantity_text(record.quantity)
            yield f"{name}, {quantity}: grows faster than claimed{hidden}{because}"
    counted = records["matmul_flops"]
    if counted.equals_formula is False:
        yield f"{name}: torch counts other products than the closed form"
    elif counted.skipped:
        yield f"{name}: no matrix product for torch to count"
    elif len(counted.seq_lens) < len(records["flops"].seq_lens):
        yield f"{name}: counted by torch up to {counted.seq_lens[-1]:,} tokens only, as it loops"
