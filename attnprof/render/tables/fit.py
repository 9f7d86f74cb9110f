"""Tables of ``attnprof fit``: the answer, a rank's parts, what fits, and how fast it can be."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import FitRecord, Report
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, answer_line, quantity_value


def tables(report: Report) -> Iterator[RenderableType]:
    """Yield the answer, bytes by part, the numbers that follow from them, and the formulas."""
    summary, rows = report.summary, report.of(FitRecord)
    yield from answer_line(report)
    sizes = f"N = {summary['seq_len']:,}, B = {summary['batch_size']:,}"
    kinds = ", ".join(f"{count} × {kind}" for kind, count in summary["layers"].items())
    yield Text(f"{summary['name']}: {summary['dtype']}, {sizes}", style="bold")
    if kinds:
        yield Hanging(f"layers' caches: {kinds}")
    yield from map(Hanging, summary["notes"])
    yield ""
    parts = FittedTable("part", "bytes", "basis", title="one rank holds", right=["bytes"])
    for row in rows:
        parts.add_row(row.part, quantity_value(row.bytes, "bytes"), row.basis)
    yield parts
    yield _limits(summary)
    if speed := summary.get("speed"):
        if speed["figures"]:
            yield _speed(speed)
        yield from map(Hanging, speed["notes"])
        for name, command in speed.get("checks", {}).items():
            yield Hanging(f"to check {name}: {command}")
        yield ""
    formulas = FittedTable("part", "formula [B]", title="closed forms")
    for row in rows:
        if row.formula:
            formulas.add_row(row.part, FormulaText(row.formula))
    yield formulas


def _limits(summary: Mapping[str, Any]) -> FittedTable:
    bytes_of = ("cache_bytes_per_token", "bytes_sent_per_step")
    table = FittedTable("quantity", "value", title="what fits", right=["value"])
    for name, label in {
        "longest_context": "longest context at the batch [tokens]",
        "largest_batch": "largest batch at the context",
        "cache_tokens": "tokens that all caches hold",
        "cache_bytes_per_token": "cache a token",
        "bytes_sent_per_step": "sent a step and rank",
    }.items():
        value = summary[name]
        shown = quantity_value(value, "bytes") if name in bytes_of else f"{value:,}"
        table.add_row(label, "unbounded" if value >= 2**50 else shown)
    return table


_SPEEDS = {
    "first_token_s": "time to the first token [s]",
    "request_tokens_per_s": "tokens a second, a request",
    "all_tokens_per_s": "tokens a second, all",
}


def _speed(speed: Mapping[str, Any]) -> FittedTable:
    table = FittedTable(
        "quantity", "value", "interval", "basis", title=f"speed on {speed['device']}",
        right=["value", "interval"],
    )  # fmt: skip
    for figure in sorted(speed["figures"], key=lambda x: [*_SPEEDS].index(x["quantity"])):
        ends = [figure[end] and f"{figure[end]:.4g}" for end in ("low", "high")]
        interval = " to ".join(ends) if all(ends) else f"≥ {ends[0]}" if ends[0] else f"≤ {ends[1]}"
        basis = f"{figure['basis']}: {figure['by']}" if figure["by"] else figure["basis"]
        table.add_row(_SPEEDS[figure["quantity"]], f"{figure['value']:.4g}", interval, basis)
    return table
