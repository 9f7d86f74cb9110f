"""Costs of several mechanisms over sequence length, a panel a quantity."""

from attnprof.record import CompareRecord, Report
from attnprof.render.plots import series, style, ticks


def draw_compare(report: Report) -> style.Figure:
    """FLOPs and peak memory, a line a mechanism; lengths at which one cannot run are left out."""
    records = [record for record in report.of(CompareRecord) if record.skipped is None]
    series.need(records, "no mechanism can do what is asked")
    lengths = {record.seq_len for record in records}
    series.need([*lengths][1:], "one sequence length; type several, like --seq 1024:131072:x2")
    unit, memory = series.peak_memory(records, "peak_bytes")
    panels = {"FLOPs": ("flops", 1.0, ticks.with_prefix()),
              memory: ("peak_bytes", unit, ticks.plain)}  # fmt: skip
    what, told = "FLOPs and peak memory", "by the closed forms"
    return series.draw_over(records, "seq_len", "sequence length", what, panels, told)
