"""Costs of several mechanisms over sequence length, a panel a quantity."""

from attnprof.record import CompareRecord, Report
from attnprof.render.plots import series, style, ticks


def draw_compare(report: Report) -> style.Figure:
    """FLOPs and peak memory, a line a mechanism; lengths at which one cannot run are left out."""
    records = [record for record in report.of(CompareRecord) if record.skipped is None]
    series.need(records, "no mechanism can do what is asked")
    lengths = list(dict.fromkeys(record.seq_len for record in records))
    series.need(lengths[1:], "one sequence length; type several, like --seq 1024:131072:x2")
    found, figure = series.series_of(records, "seq_len"), style.new_figure(3.0)
    panels = {"FLOPs": ("flops", 1, ticks.with_prefix()),
              "peak memory [GiB]": ("peak_bytes", 2**30, ticks.plain)}  # fmt: skip
    all_axes = style.split(figure, len(panels), len(panels), 3.0)
    for axes, (label, (field, unit, written)) in zip(all_axes, panels.items(), strict=True):
        for curve in found:
            axes.plot(*curve.points("seq_len", field, unit), **curve.look)
        series.length_axis(axes, lengths, written)
        axes.set(xlabel="sequence length", ylabel=label)
    what = f"FLOPs and peak memory of {series.a_pass(records)} over sequence length"
    style.legend(figure, [{**curve.look, "label": curve.label} for curve in found], title=what)
    one = records[0]
    style.caption(
        figure, f"scope {one.scope}", f"batch {one.batch_size}", f"d_model {one.d_model}",
        f"{one.num_heads} head{'s' * (one.num_heads > 1)}", one.dtype, "causal" * one.causal,
        "by the closed forms",
    )  # fmt: skip
    return figure
