"""Two costs against sequence length with their crossovers marked, after TaylorShift's Figure 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.record import Report
from attnprof.render.plots.style import (
    GREY,
    LINES,
    MARKS,
    NORMAL,
    PAGE_WIDTH,
    SMALL,
    caption,
    colours,
    draw_legend,
    new_figure,
    short_count,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Mapping[str, Any]
#: What the paper calls the two crossovers.
SYMBOLS = {"flops": "N_0", "memory": "N_1"}
UNITS = {"flops": "FLOPs", "entries": "memory [entries]", "bytes": "memory [B]", "s": "time [s]"}


def draw_crossover(report: Report) -> Figure:
    """The figure: a column a head width, a row a metric and its unit."""
    curves: Sequence[Curve] = report.summary["curves"]
    rows = list(dict.fromkeys((c["metric"], c["unit"]) for c in curves))
    widths = list(dict.fromkeys(c["head_dim"] for c in curves))
    colour = colours([c["mechanism"] for c in curves])
    width = min(PAGE_WIDTH, 1.3 + 2.4 * len(widths)) if len(widths) > 1 else 4.2
    figure = new_figure(width, 0.75 + 1.9 * len(rows))
    grid = figure.subplots(len(rows), len(widths), squeeze=False, sharex="col", sharey="row")
    for line, (metric, unit) in zip(grid, rows, strict=True):
        for axes, head_dim in zip(line, widths, strict=True):
            here = [
                c
                for c in curves
                if (c["metric"], c["unit"], c["head_dim"]) == (metric, unit, head_dim)
            ]
            _curves(axes, here, colour)
            records = _crossings(report, metric, unit, head_dim)
            _mark(axes, here, records)
            _name(axes, records, SYMBOLS.get(metric, "N"), SMALL if len(widths) < 4 else SMALL - 1)
        _headroom(line)
        line[0].set_ylabel(UNITS.get(unit, unit))
    for axes, head_dim in zip(grid[0], widths, strict=True):
        axes.set_title(f"d = {head_dim}", fontsize=NORMAL)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length")
    _ticks(grid)
    draw_legend(figure, colour, [c["kind"] for c in curves], marked=True)
    caption(figure, _caption(report))
    return figure


def _curves(axes: Axes, curves: Sequence[Curve], colour: Mapping[str, str]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True)
    axes.tick_params(length=2)
    axes.minorticks_off()
    for curve in curves:
        axes.plot(
            curve["seq_len"], curve["value"], color=colour[curve["mechanism"]],
            linestyle=LINES.get(curve["kind"], "-"),
        )  # fmt: skip
    lengths = [n for curve in curves for n in curve["seq_len"]]
    if lengths and min(lengths) < max(lengths):
        axes.set_xlim(min(lengths), max(lengths))


def _ticks(grid: Any) -> None:
    """A few powers of two, written out as far as they fit in every column."""
    plain = all(axes.get_xlim()[1] < 10_000 for axes in grid[-1])
    for axes in grid[-1]:
        low, high = (math.log2(end) for end in axes.get_xlim())
        first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
        exponents = range(first, last + 1, max(1, -(-(last - first) // 4)))
        labels = [str(2**e) if plain else f"$2^{{{e}}}$" for e in exponents]
        axes.set_xticks([2.0**e for e in exponents], labels)


def _headroom(line: Any) -> None:
    """Space above the curves for the values of the crossovers; a row shares its scale."""
    low, high = line[0].get_ylim()
    line[0].set_ylim(low, high * (high / low) ** 0.28)


def _crossings(report: Report, metric: str, unit: str, head_dim: int) -> list[Any]:
    return [
        record
        for record in report.records
        if (record.metric, record.unit, record.head_dim) == (metric, unit, head_dim)  # type: ignore[attr-defined] # a crossover report holds CrossoverRecords
    ]


def _lengths(record: Any) -> list[float]:
    """Where a record's two costs meet; nowhere if it was skipped or they never do."""
    if record.skipped:
        return []
    one = [] if record.crossover_seq_len is None else [record.crossover_seq_len]
    return list(record.all_crossings or one)


def _mark(axes: Axes, curves: Sequence[Curve], records: Sequence[Any]) -> None:
    """A marker on each crossover inside the panel, and a line down to its length."""
    for record in records:
        for length in _lengths(record):
            height = _height(curves, record.kind, length)
            if height is None:
                continue
            mark = {"marker": "o", "markersize": 5.5, **MARKS.get(record.kind, {})}
            axes.plot([length], [height], color="black", markeredgewidth=0.9, zorder=5, **mark)
            axes.axvline(length, color=GREY, linewidth=0.5, linestyle=LINES.get(record.kind, "-"))


def _name(axes: Axes, records: Sequence[Any], symbol: str, size: float) -> None:
    """The crossovers' values, where the curves leave room."""
    lines = []
    for record in records:
        values = ", ".join(short_count(length) for length in _lengths(record))
        lines.append(f"${symbol}$ = {values} ({record.kind})" if values else _none(record))
    axes.text(
        0.03, 0.97, "\n".join(lines), transform=axes.transAxes, fontsize=size, va="top",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}, zorder=6,
    )  # fmt: skip


def _none(record: Any) -> str:
    return f"{'not known' if record.skipped else 'no crossover'} ({record.kind})"


def _height(curves: Sequence[Curve], kind: str, length: float) -> float | None:
    """A curve's value at a length, between two points by their logarithms; None outside."""
    import numpy as np

    for curve in curves:
        lengths = np.asarray(curve["seq_len"], dtype=float)
        if curve["kind"] == kind and lengths[0] <= length <= lengths[-1]:
            values = np.log(np.asarray(curve["value"], dtype=float))
            return float(np.exp(np.interp(np.log(length), np.log(lengths), values)))
    return None


def _caption(report: Report) -> str:
    records: Sequence[Any] = report.records
    if not records:
        return ""
    first = records[0]
    sources = dict.fromkeys(r.source for r in records if r.source)
    parts = [
        f"scope {first.scope}", f"phase {first.phase}", *(["causal"] if first.causal else []),
        *([f"published: {', '.join(sources)}"] if sources else []),
    ]  # fmt: skip
    return " · ".join(parts)
