"""Costs as curves: over sequence length with their crossovers, over heads with the optimum."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.record import CrossoverRecord, HeadsRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style

Curve = Mapping[str, Any]
#: What the paper calls the two crossovers.
SYMBOLS = {"flops": "N_0", "memory": "N_1"}
UNITS = {"flops": "FLOPs", "entries": "memory [entries]", "bytes": "memory [B]", "s": "time [s]"}
#: Quantities over heads, as their panels are named.
QUANTITIES = {"flops": "FLOPs", "peak_entries": "memory [entries]"}


def draw_crossover(report: Report) -> style.Figure:
    """A column a head width, a row a metric and its unit, after TaylorShift's Figure 1."""
    curves: Sequence[Curve] = report.summary["curves"]
    rows = list(dict.fromkeys((c["metric"], c["unit"]) for c in curves))
    widths = list(dict.fromkeys(c["head_dim"] for c in curves))
    colour = style.colours([c["mechanism"] for c in curves])
    figure = style.new_figure(0.75 + 1.9 * len(rows))
    grid = figure.subplots(len(rows), len(widths), squeeze=False, sharex="col", sharey="row")
    records = report.of(CrossoverRecord)
    for line, (metric, unit) in zip(grid, rows, strict=True):
        for axes, head_dim in zip(line, widths, strict=True):
            place = (metric, unit, head_dim)
            here = [c for c in curves if (c["metric"], c["unit"], c["head_dim"]) == place]
            found = [r for r in records if (r.metric, r.unit, r.head_dim) == place]
            _curves(axes, here, colour)
            _mark(axes, here, found)
            names = "\n".join(_name(record, SYMBOLS.get(metric, "N")) for record in found)
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            size = style.SMALL - (len(widths) > 3)
            style.in_corner(axes, names, fontsize=size, bbox=ground, zorder=6)
        style.headroom(line[0])
        line[0].set_ylabel(UNITS.get(unit, unit))
    for axes, head_dim in zip(grid[0], widths, strict=True):
        axes.set_title(f"d = {head_dim}", fontsize=style.NORMAL)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length")
    plain = all(axes.get_xlim()[1] < 10_000 for axes in grid[-1])
    for axes in grid[-1]:
        low, high = (math.log2(end) for end in axes.get_xlim())
        ends = math.ceil(low - 1e-9), math.floor(high + 1e-9)
        axes.set_xticks(*style.power_ticks(*ends, 5, plain=plain))
    style.draw_legend(figure, colour, [c["kind"] for c in curves], marked=True)
    if records:
        one, sources = records[0], style.sources_of(records)
        told = (f"scope {one.scope}", f"phase {one.phase}", "causal" * one.causal)
        style.caption(figure, *told, sources)
    return figure


def _curves(axes: style.Axes, curves: Sequence[Curve], colour: Mapping[str, str]) -> None:
    style.log_axes(axes)
    for curve in curves:
        axes.plot(
            curve["seq_len"], curve["value"], color=colour[curve["mechanism"]],
            linestyle=style.LINES.get(curve["kind"], "-"),
        )  # fmt: skip
    lengths = [n for curve in curves for n in curve["seq_len"]]
    if lengths and min(lengths) < max(lengths):
        axes.set_xlim(min(lengths), max(lengths))


def _lengths(record: CrossoverRecord) -> list[float]:
    """Where a record's two costs meet; nowhere if it was skipped or they never do."""
    if record.skipped:
        return []
    one = [] if record.crossover_seq_len is None else [record.crossover_seq_len]
    return record.all_crossings or one


def _mark(axes: style.Axes, curves: Sequence[Curve], records: Sequence[CrossoverRecord]) -> None:
    """A marker on each crossover inside the panel, and a line down to its length."""
    for record in records:
        line = style.LINES.get(record.kind, "-")
        look = {"marker": "o", "markersize": 5.5, **style.MARKS.get(record.kind, {})}
        for length in _lengths(record):
            height = _height(curves, record.kind, length)
            if height is not None:
                axes.plot([length], [height], color="black", markeredgewidth=0.9, zorder=5, **look)
                axes.axvline(length, color=style.GREY, linewidth=0.5, linestyle=line)


def _name(record: CrossoverRecord, symbol: str) -> str:
    """The crossovers' values, in words."""
    values = ", ".join(map(style.short_count, _lengths(record)))
    none = "not known" if record.skipped else "no crossover"
    return f"{f'${symbol}$ = {values}' if values else none} ({record.kind})"


def _height(curves: Sequence[Curve], kind: str, length: float) -> float | None:
    """A curve's value at a length, between two points by their logarithms; None outside."""
    import numpy as np

    for curve in curves:
        lengths = np.asarray(curve["seq_len"], dtype=float)
        if curve["kind"] == kind and lengths[0] <= length <= lengths[-1]:
            values = np.log(np.asarray(curve["value"], dtype=float))
            return float(np.exp(np.interp(np.log(length), np.log(lengths), values)))
    return None


def draw_heads(report: Report) -> style.Figure:
    """Cost against the number of heads: a panel a quantity, a line a mechanism and kind."""
    records = [record for record in report.of(HeadsRecord) if record.value is not None]
    quantities = list(dict.fromkeys(record.quantity for record in records))
    colour = style.colours([record.mechanism for record in records])
    figure = style.new_figure(3.3)
    grid = figure.subplots(1, len(quantities), squeeze=False)[0]
    for axes, quantity in zip(grid, quantities, strict=True):
        _panel(axes, [record for record in records if record.quantity == quantity], colour)
        axes.set_ylabel(QUANTITIES[quantity])
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
    best, width = (report.summary.get(f"optimum_{name}") for name in ("num_heads", "head_dim"))
    if not isinstance(best, int | float):
        return
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
