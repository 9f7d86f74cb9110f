"""Tables of FLOPs a token: by convention and by term; and what a hand-written formula gets wrong."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import FormulaTermRecord, MfuRecord, Report
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, answer_line, quantity_value


def mfu_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the answer, each convention's numbers and formulas, and their terms side by side."""
    yield from answer_line(report)
    summary, rows = report.summary, report.of(MfuRecord)
    every, met = summary["parameters"], summary["active_parameters"]
    some = f", of which a token meets {met:,}" if met != every else ""
    lengths = ", ".join(f"{n:,}" for n in summary["lengths"])
    yield Text(f"{summary['name']}: {every:,} parameters{some}; N = {lengths}", style="bold")
    yield from map(Hanging, summary["notes"])
    yield ""
    by_phase = {(row.convention, row.phase): row for row in rows}
    names = list(dict.fromkeys(row.convention for row in rows))
    table = FittedTable(
        "convention", "forward", "train", "train, in N", title="FLOPs a token",
        right=["forward", "train"],
    )  # fmt: skip
    for name in names:
        each = [by_phase[name, phase] for phase in ("forward", "train")]
        values = (quantity_value(row.flops_per_token, "flops") for row in each)
        table.add_row(name, *values, FormulaText(each[1].expression))
    yield table
    if len({*summary["lengths"]}) > 1:
        batch = FittedTable("convention", "forward", "train", title="FLOPs of the batch", right=["forward", "train"])
        for name in names:
            batch.add_row(name, *(quantity_value(by_phase[name, x].flops, "flops") for x in ("forward", "train")))
        yield batch
    yield _terms(report, names)
    for name in names:
        if told := by_phase[name, "train"].dropped:
            yield Hanging(f"{name} against executed: {told}")


def _terms(report: Report, names: list[str]) -> FittedTable:
    by_term = report.summary["terms"]
    order = sorted(names, key=lambda name: name != "executed")
    labels = dict.fromkeys(label for name in order for label in by_term[name])
    table = FittedTable("term", *names, title="a trained token, by term", right=names)
    for label in labels:
        cells = (by_term[name].get(label) for name in names)
        table.add_row(label, *("–" if x is None else quantity_value(x, "flops") for x in cells))
    return table


def formula_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the verdict on a formula, and the terms in which it differs from what is executed."""
    yield from answer_line(report)
    summary, rows = report.summary, report.of(FormulaTermRecord)
    yield Text(f"{summary['name']}, {summary['phase']}: {summary['formula']}", style="bold")
    if symbols := summary["symbols"]:
        yield Hanging(f"where {', '.join(f'{name} = {n:,}' for name, n in symbols.items())}")
    yield from map(Hanging, summary["notes"])
    yield ""
    table = FittedTable("term", "what it is", "theirs - ours", f"at N = {summary['seq_len']:,}", right=[f"at N = {summary['seq_len']:,}"])
    for row in rows:
        apart = (row.theirs_value or 0) - (row.ours_value or 0)
        sign = "+" if apart > 0 else ""
        table.add_row(row.term, row.what, FormulaText(row.difference), f"{sign}{quantity_value(apart, 'flops')}")
    yield table
    last = rows[-1]
    sides = FittedTable("", "FLOPs a token", "value", right=["value"])
    sides.add_row("theirs", FormulaText(last.theirs), quantity_value(last.theirs_value, "flops"))
    sides.add_row("executed", FormulaText(last.ours), quantity_value(last.ours_value, "flops"))
    yield sides
