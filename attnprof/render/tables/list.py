"""The tables of ``attnprof list``: what there is; with ``--verify``, claimed against found."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import GrowthRecord, MechanismRecord, Report
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.terminal import answer_line
from attnprof.units import MISSING, format_value, quantity_text

CAPTION = (
    "Numbers are exponents: 2.00 grows like N^2. Time and memory are what a mechanism claims "
    "(N log N with its exponent at these lengths); counted: its matrix products, by torch's "
    "counter; FLOPs and peak: its closed forms, with one head of width {head_dim}."
)


def tables(report: Report) -> list[RenderableType]:
    """A row a mechanism."""
    if report.command == "list --verify":
        return _growth(report)
    table = FittedTable(
        "mechanism", "time", "memory", "causal", "decode", "parameters (default)", "paper",
        caption="N: tokens. Set a parameter with --set name=value. 000 to 004 number the documents "
        "that attnprof reproduce lists.",
    )  # fmt: skip
    for record in report.of(MechanismRecord):
        claims = (record.time_order, record.memory_order, record.causal, record.decode)
        told = [*map(format_value, (*claims, record.params)), f"{record.document} {record.title}"]
        skipped = [*[MISSING] * 5, record.skipped]
        table.add_row(record.mechanism, *(skipped if record.skipped else told))
    return [table, *map(Hanging, report.summary.get("notes", ()))]


def _growth(report: Report) -> list[RenderableType]:
    """Time and memory of every mechanism, then why those that grow faster do."""
    records, lengths = report.of(GrowthRecord), report.summary["seq_lens"]
    table = FittedTable(
        "mechanism", "time", "counted", "FLOPs", "memory", "peak", "verdict",
        title=f"Growth over {lengths[0]:,} to {lengths[-1]:,} tokens",
        right=("counted", "FLOPs", "peak"),
    )  # fmt: skip
    notes: list[str] = []
    for label, group in groupby(records, key=lambda record: record.variant):
        found = {record.quantity: record for record in group}
        flops, peak = found["flops"], found["peak_bytes"]
        faster = [record for record in found.values() if record.verdict == "grows faster"]
        verdict = "grows faster" if all(record.expected for record in faster) else "GROWS FASTER"
        table.add_row(
            label, _claim(flops), _exponent(found["matmul_flops"]), _exponent(flops),
            _claim(peak), _exponent(peak), verdict if faster else "agrees",
        )  # fmt: skip
        notes += _notes(label, found)
    caption = CAPTION.format(head_dim=records[0].head_dim)
    return [*answer_line(report), table, *map(Hanging, notes), Text(caption, style="dim")]


def _claim(record: GrowthRecord) -> str:
    if record.claimed_exponent is None or "log" not in record.claimed_order:
        return record.claimed_order
    return f"{record.claimed_order} ({record.claimed_exponent:.2f})"


def _exponent(record: GrowthRecord) -> str:
    return MISSING if record.found_exponent is None else f"{record.found_exponent:.2f}"


def _notes(label: str, found: dict[str, GrowthRecord]) -> Iterator[str]:
    """Why it grows faster; how far torch counted; where it counts otherwise."""
    for record in found.values():
        if record.verdict == "grows faster":
            known = "" if record.expected else " (and does not say so)"
            because = f": {record.reason}" if record.reason else ""
            what = f"{label}, {quantity_text(record.quantity)}"
            yield f"{what}: grows faster than claimed{known}{because}"
    counted = found["matmul_flops"]
    if counted.equals_formula is False:
        yield f"{label}: torch counts other products than the closed form"
    elif counted.skipped:
        yield f"{label}: no matrix product for torch to count"
    elif len(counted.seq_lens) < len(found["flops"].seq_lens):
        yield f"{label}: counted by torch up to {counted.seq_lens[-1]:,} tokens only, as it loops"
