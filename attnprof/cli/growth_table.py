"""The table of ``attnprof list --verify``: a row a mechanism, claimed against found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from attnprof.record import GrowthRecord, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

CAPTION = (
    "Exponents of N, fitted over the longer half of the lengths; in brackets that of N log N. "
    "counted: matrix products, by torch's FlopCounterMode on the real module; FLOPs and peak: "
    "closed form. One head of width {head_dim}, scope core (layer where there is none)."
)


def growth_tables(report: Report) -> list[RenderableType]:
    """Time and memory of every mechanism, then why those that grow faster do."""
    from rich.text import Text

    from attnprof.render.terminal import new_table

    records = [record for record in report.records if isinstance(record, GrowthRecord)]
    lengths = report.summary["seq_lens"]
    table = new_table(f"Growth over {lengths[0]:,} to {lengths[-1]:,} tokens")
    for heading in ("mechanism", "time", "counted", "FLOPs", "memory", "peak", "verdict"):
        numeric = heading in ("counted", "FLOPs", "peak")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    notes: list[str] = []
    for label, group in groupby(records, key=lambda record: record.variant):
        found = {record.quantity: record for record in group}
        flops, peak = found["flops"], found["peak_bytes"]
        table.add_row(
            label, _claim(flops), _exponent(found["matmul_flops"]), _exponent(flops),
            _claim(peak), _exponent(peak), _verdict(found),
        )  # fmt: skip
        notes += _notes(label, found)
    caption = CAPTION.format(head_dim=records[0].head_dim)
    return [table, *(Text(line) for line in notes), Text(caption, style="dim")]


def _claim(record: GrowthRecord) -> str:
    if record.claimed_exponent is None or "log" not in record.claimed_order:
        return record.claimed_order
    return f"{record.claimed_order} ({record.claimed_exponent:.2f})"


def _exponent(record: GrowthRecord) -> str:
    return "–" if record.found_exponent is None else f"{record.found_exponent:.2f}"


def _verdict(found: dict[str, GrowthRecord]) -> str:
    faster = [record for record in found.values() if record.verdict == "grows faster"]
    if not faster:
        return "agrees"
    return "grows faster" if all(record.expected for record in faster) else "GROWS FASTER"


def _notes(label: str, found: dict[str, GrowthRecord]) -> Iterator[str]:
    """Why it grows faster; how far torch counted; where it counts otherwise."""
    for record in found.values():
        if record.verdict == "grows faster":
            known = "" if record.expected else " (and does not say so)"
            because = f": {record.reason}" if record.reason else ""
            yield f" {label}, {record.quantity}: grows faster than claimed{known}{because}"
    counted = found["matmul_flops"]
    if counted.equals_formula is False:
        yield f" {label}: torch counts other products than the closed form"
    elif counted.skipped:
        yield f" {label}: no matrix product for torch to count"
    elif len(counted.seq_lens) < len(found["flops"].seq_lens):
        yield f" {label}: counted up to {counted.seq_lens[-1]:,} tokens, it loops"
