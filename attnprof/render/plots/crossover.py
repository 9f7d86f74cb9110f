"""Two costs against sequence length with their crossovers marked, after TaylorShift's Figure 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.record import CrossoverRecord, Report
from attnprof.render.plots import style

Curve = Mapping[str, Any]
#: What the paper calls the two crossovers.
SYMBOLS = {"flops": "N_0", "memory": "N_1"}
UNITS = {"flops": "FLOPs", "entries": "memory [entries]", "bytes": "memory [B]", "s": "time [s]"}


def draw_crossover(report: Report) -> style.Figure:
    """The figure: a column a head width, a row a metric and its unit."""
    curves: Sequence[Curve] = report.summary["curves"]
    rows = list(dict.fromkeys((c["metric"], c["unit"]) for c in curves))
    widths = list(dict.fromkeys(c["head_dim"] for c in curves))
    colour = style.colours([c["mechanism"] for c in curves])
    width = min(style.PAGE_WIDTH, 1.3 + 2.4 * len(widths)) if len(widths) > 1 else 4.2
    figure = style.new_figure(width, 0.75 + 1.9 * len(rows))
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
        exponents, labels = style.power_ticks(*ends, 5, plain=plain)
        axes.set_xticks([2.0**e for e in exponents], labels)
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
