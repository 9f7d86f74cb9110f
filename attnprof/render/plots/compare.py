"""Costs of several mechanisms over sequence length, a panel a quantity."""

from attnprof.record import CompareRecord, Report
from attnprof.render.plots import series, style
from attnprof.render.plots.heatmap import PHASES
from attnprof.render.plots.history import in_units

PANELS = {"FLOPs": ("flops", ""), "peak memory": ("peak_bytes", "B")}


def draw_compare(report: Report) -> style.Figure:
    """FLOPs and peak memory, a line a mechanism; lengths at which one cannot run are left out."""
    records = [record for record in report.of(CompareRecord) if record.skipped is None]
    series.need(records, "no mechanism can do what is asked")
    lengths = list(dict.fromkeys(record.seq_len for record in records))
    series.need(lengths[1:], "one sequence length; type several, like --seq 1024:131072:x2")
    figure, curves = style.new_figure(3.0), series.series_of(records, "seq_len")
    panels = style.split(figure, len(PANELS), len(PANELS), 3.0)
    for axes, (label, (field, unit)) in zip(panels, PANELS.items(), strict=True):
        size, written = in_units(max(getattr(r, field) for r in records), unit)
        for curve in curves:
            axes.plot(*curve.points("seq_len", field, size), **curve.look)
        series.length_axis(axes, lengths)
        axes.set_ylabel(f"{label} {written}")
    one = records[0]
    what = PHASES.get(one.phase, one.phase)
    style.legend(
        figure, [{**curve.look, "label": curve.label} for curve in curves],
        title=f"FLOPs and peak memory of {what} over sequence length", handlelength=3,
    )  # fmt: skip
    told = f"scope {one.scope}", f"batch {one.batch_size}", f"d_model {one.d_model}"
    style.caption(
        figure, *told, f"{one.num_heads} head{'s' * (one.num_heads > 1)}", one.dtype,
        "causal" * one.causal, "by the closed forms",
    )  # fmt: skip
    return figure
