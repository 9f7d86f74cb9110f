"""Cost against the number of heads at a fixed model width, with the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnprof.record import HeadsRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style

TITLES = {
    "flops": "FLOPs",
    "matmul_flops": "matrix-product FLOPs",
    "peak_entries": "memory [entries]",
    "entries": "memory [entries]",
    "peak_bytes": "memory [B]",
}


def draw_heads(report: Report) -> style.Figure:
    """The figure: a panel a quantity, a line a mechanism and kind."""
    records = [record for record in report.of(HeadsRecord) if record.value is not None]
    quantities = list(dict.fromkeys(record.quantity for record in records))
    colour = style.colours([record.mechanism for record in records])
    figure = style.new_figure(style.PAGE_WIDTH if len(quantities) > 1 else 4.2, 3.3)
    grid = figure.subplots(1, len(quantities), squeeze=False)[0]
    for axes, quantity in zip(grid, quantities, strict=True):
        _panel(axes, [record for record in records if record.quantity == quantity], colour)
        axes.set_ylabel(TITLES.get(quantity, quantity.replace("_", " ")))
        if quantity == "flops":
            _optimum(axes, report, [record.num_heads for record in records])
    style.draw_legend(figure, colour, [record.kind for record in records])
    length, best = report.summary.get("seq_len"), report.summary.get("best_divisor")
    width = report.summary.get("d_model") or records[0].num_heads * records[0].head_dim
    style.caption(
        figure,
        f"d_model = {width}",
        f"sequence length {length}" if length else "",
        f"best divisor: {best} heads" if isinstance(best, int) else "",
        style.sources_of(records),
    )
    return figure


def _panel(axes: style.Axes, records: Sequence[HeadsRecord], colour: Mapping[str, str]) -> None:
    style.log_axes(axes)
    for curve in dict.fromkeys((record.mechanism, record.kind) for record in records):
        own = [record for record in records if (record.mechanism, record.kind) == curve]
        points = sorted((record.num_heads, record.value or 0) for record in own)
        axes.plot(
            *zip(*points, strict=True), marker=".", markersize=4, color=colour[curve[0]],
            linestyle=style.LINES.get(curve[1], "-"),
        )  # fmt: skip
    heads = sorted({record.num_heads for record in records})
    shown = heads[:: -(-len(heads) // 9)]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.set_xlabel("number of heads")


def _optimum(axes: style.Axes, report: Report, heads: Sequence[int]) -> None:
    """The real optimum of the FLOPs: a line inside the range, else an arrow towards it."""
    best = report.summary.get("optimum_num_heads")
    if not isinstance(best, int | float):
        return
    width = report.summary.get("optimum_head_dim")
    # which of the curves has this optimum, where the report says it
    whose = [
        f"{figure_text(entry['mechanism'])}, {entry['kind']}:\n"
        for entry in report.summary.get("optima", ())
        if entry["quantity"] == "flops" and entry["optimum_num_heads"] == best
    ]
    text = f"{''.join(whose[:1])}real optimum: {style.short_count(best)} heads"
    if isinstance(width, int | float):
        text += f"\nof width d = {width:.6g}"
    style.headroom(axes)
    right = best > max(heads)
    if min(heads) <= best <= max(heads):
        axes.axvline(best, color=style.GREY, linewidth=0.8, linestyle=":")
    else:
        text += f",\n{'right' if right else 'left'} of every divisor"
        end, start = (1.0, 0.86) if right else (0.0, 0.14)
        axes.annotate(
            "", (end, 0.76), (start, 0.76), xycoords="axes fraction",
            arrowprops={"arrowstyle": "->", "color": "black", "lw": 0.9},
        )  # fmt: skip
    side, x = ("right", 0.97) if right else ("left", 0.03)
    style.in_corner(axes, text, x, 0.98, ha=side, linespacing=1.25)
