"""Draw what ranks that share a sequence send each other."""

from dataclasses import replace

from attnprof.record import RanksRecord, Report
from attnprof.render.plots import series, style, ticks
from attnprof.units import plural


def draw_cost(report: Report) -> style.Figure:
    """Return the bytes that a rank sends over length or ranks, a line a mechanism and method."""
    records = [record for record in report.of(RanksRecord) if record.skipped is None]
    series.need(records, "no mechanism's tokens can be shared")
    counts = sorted({record.ranks for record in records})
    axis = "seq_len" if len({record.seq_len for record in records}) > 1 else "ranks"
    by_count = axis == "seq_len" and len(counts) > 1
    series.need(counts[1:] if axis == "ranks" else records,
                "one length and one number of ranks; type several of either")  # fmt: skip
    curves = [
        replace(record, mechanism=f"{record.mechanism}, {record.method}"
                + f", {plural(record.ranks, 'rank')}" * by_count)
        for record in records
    ]  # fmt: skip
    label = {"seq_len": "sequence length", "ranks": "number of ranks"}[axis]
    unit, said = ticks.unit_of([record.bytes_sent or 0 for record in records], "B")
    panels = {f"sent {said}": ("bytes_sent", unit, ticks.plain)}
    told = [plural(counts[0], "rank")] if len(counts) == 1 else []
    what = "Bytes that a rank sends in a layer"
    return series.draw_over(curves, axis, label, what, panels, *told, "by the closed forms")
