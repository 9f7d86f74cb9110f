"""Figures of measured results by kind: over length, width, heads, and under a roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import ProfileRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import rooflines, series, style
from attnprof.render.plots.series import Records, Series
from attnprof.render.plots.style import MIB

#: More crossings than this are not named in the figure.
MOST_NAMED = 6
#: Settings that a caption names where all records share them, and their words.
SETTINGS = {
    "scope": "scope", "phase": "phase", "batch_size": "batch", "d_model": "d_model",
    "num_heads": "heads", "dtype": "", "device": "on",
}  # fmt: skip


def plot_results(
    reports: Sequence[Report], path: str | Path, kind: str = "growth", **known: Any
) -> None:
    """Draw profile or sweep reports in one figure; PNG, SVG or PDF by the suffix.

    ``known`` are the ``crossings`` of a figure of growth, and the ``ceilings`` of a roofline.
    Raises :class:`attnprof.errors.RequestError` for another suffix, an unwritable path, and
    results that lack what the kind shows.
    """
    style.plot(path, partial(draw_results, **known), reports, kind)


def draw_results(reports: Sequence[Report], kind: str = "growth", **known: Any) -> style.Figure:
    """The figure of a kind; where reports are from several devices, each by its own name."""
    names = [str(report.environment.get("device_name") or "") for report in reports]
    several = len(set(names)) > 1
    records = [
        replace(record, device=name or record.device) if several else record
        for report, name in zip(reports, names, strict=True)
        for record in report.of(ProfileRecord)
    ]
    return _DRAW[kind](records, **known)


def _growth(records: Records, crossings: Sequence[tuple[float, float]] = ()) -> style.Figure:
    """Median time with its interval, and peak memory (points measured, line predicted).

    ``crossings`` are lengths and times at which two of the curves cross.
    """
    series.need(
        [r for r in records if r.median_s or r.peak_bytes_predicted], "no record has a time"
    )
    found = series.series_of(records, "seq_len")
    figure = style.new_figure(style.PAGE_WIDTH, 3.4)
    time, memory = figure.subplots(1, 2)
    for curve in found:
        _times(time, curve)
        predicted = curve.points("seq_len", "peak_bytes_predicted", MIB)
        series.draw_curve(memory, curve, predicted, marker="", linewidth=1.0)
        measured = curve.points("seq_len", "peak_bytes_measured", MIB)
        series.draw_curve(memory, curve, measured, linestyle="none")
        _ends(memory, curve, *measured)
    for axes, label in ((time, "median time [s]"), (memory, "peak memory [MiB]")):
        series.length_axis(axes, [record.seq_len for record in records])
        axes.set_ylabel(label)
    for length, height in sorted(crossings):
        time.plot([length], [height], marker="o", markersize=6, markerfacecolor="none",
                  markeredgecolor="black", markeredgewidth=0.9, zorder=6)  # fmt: skip
    if 0 < len(crossings) <= MOST_NAMED:
        lengths = ", ".join(style.short_count(round(length)) for length, _ in sorted(crossings))
        style.in_corner(time, f"curves cross at {lengths}", color=style.GREY)
    series.series_legend(figure, found)
    same = [
        f"{word} {getattr(records[0], name)}".strip() for name, word in SETTINGS.items()
        if len({str(getattr(r, name)) for r in records}) == 1
    ]  # fmt: skip
    ends = " Crosses: the next length could not run." if any(r.skipped for r in records) else ""
    style.caption(
        figure, f"{', '.join(same)}. Bars: 95 % interval of the median. Memory: line by the closed "
        f"form, points by the allocator. Circles: curves cross.{ends}",
    )  # fmt: skip
    return figure


def _times(axes: style.Axes, curve: Series) -> None:
    timed = [(r.seq_len, r.median_s, r.ci_low_s, r.ci_high_s) for r in curve.records if r.median_s]
    below = [max(0.0, time - (low or time)) for _, time, low, _ in timed]
    above = [max(0.0, (high or time) - time) for _, time, _, high in timed]
    lengths, times = [length for length, *_ in timed], [time for _, time, *_ in timed]
    axes.errorbar(
        lengths, times, [below, above], markersize=3, capsize=2, elinewidth=0.8, **curve.look
    )
    _ends(axes, curve, lengths, times)


def _ends(
    axes: style.Axes, curve: Series, lengths: Sequence[float], heights: Sequence[float]
) -> None:
    """A cross after the last point where the next length could not run, with the reason's word."""
    failed = [r.skipped for r in curve.records if r.skipped and lengths and r.seq_len > lengths[-1]]
    if not failed:
        return
    word = "no result" if "no result" in failed[0] else "ends"
    if "memory" in failed[0] or "does not fit" in failed[0]:
        word = "OOM"
    last, shade = (lengths[-1], heights[-1]), curve.look["color"]
    style.beside(axes, word, last, (0, 6), color=shade, ha="center")
    axes.plot(*last, marker="x", markersize=7, color=shade, markeredgewidth=1.4)


#: FLOPs as a panel of figures over widths and heads: the field and what it is divided by.
_WORK = {"FLOPs (formula)": ("flops_formula", 1.0)}


def _over(
    records: Records, *, axis: str, example: str, label: str, more: str,
    panels: Mapping[str, tuple[str, float]] = _WORK,
) -> style.Figure:  # fmt: skip
    """A panel a field over the axis, a curve a mechanism (and length)."""
    known = _with_flops(records, {axis: example})
    found = series.series_of(known, axis)
    one = len(panels) == 1
    figure = style.new_figure(*((4.6, 3.2) if one else (style.PAGE_WIDTH, 2.8)))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, (field, unit)) in zip(grid, panels.items(), strict=True):
        for curve in found:
            series.draw_curve(axes, curve, curve.points(axis, field, unit))
        series.length_axis(axes, [getattr(r, axis) for r in known], label)
        axes.set_ylabel(name)
    series.series_legend(figure, found)
    return _told(figure, records, more)


def _surface(records: Records) -> style.Figure:
    """FLOPs over length and width, a surface a mechanism: document 000's Figure 4."""
    import numpy as np

    axes_of = {"d_model": "--d-model 64:1024:x2", "seq_len": "--seq 64:1024:x2"}
    known = _with_flops(records, axes_of)
    colour = style.colours([r.mechanism for r in known])
    figure = style.new_figure(4.8, 4.2)
    axes: Any = figure.add_subplot(projection="3d")
    for name, shade in colour.items():
        own = [r for r in known if r.mechanism == name]
        lengths, widths = (sorted({getattr(r, f) for r in own}) for f in ("seq_len", "d_model"))
        table = {(r.seq_len, r.d_model): r.flops_formula for r in own}
        # NaN where a point is missing
        z = np.log10([[table.get((n, w), math.nan) for n in lengths] for w in widths])
        x, y = np.meshgrid(np.log2(lengths), np.log2(widths))
        axes.plot_wireframe(x, y, z, color=shade, linewidth=0.9)
    _surface_axes(axes, known)
    looks = [{"color": shade, "label": figure_text(name)} for name, shade in colour.items()]
    style.legend(figure, looks)
    return _told(figure, records, "{0.num_heads} head(s)")


def _surface_axes(axes: Any, records: Records) -> None:
    for name, field in (("x", "seq_len"), ("y", "d_model")):
        values = sorted({getattr(r, field) for r in records})
        shown = values[:: max(1, -(-len(values) // 5))]
        getattr(axes, f"set_{name}ticks")([math.log2(v) for v in shown], [str(v) for v in shown])
    logs = [math.log10(r.flops_formula) for r in records]
    decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
    axes.set_zticks(list(decades), [f"$10^{{{e}}}$" for e in decades])
    for name, label in {"x": "sequence length", "y": "model width", "z": "FLOPs"}.items():
        getattr(axes, f"set_{name}label")(label, fontsize=style.NORMAL)
    axes.tick_params(labelsize=style.SMALL)
    axes.view_init(elev=22, azim=-125)


def _with_flops(records: Records, axes: Mapping[str, str]) -> Records:
    """Records that have FLOPs; RequestError unless they have several values along each axis."""
    known = [r for r in records if r.flops_formula]
    series.need(known, "no record has FLOPs")
    for field, example in axes.items():
        if len({getattr(r, field) for r in known}) < 2:
            raise RequestError(f"the results have one {field} only: sweep several, like {example}")
    return known


def _told(figure: style.Figure, records: Records, more: str) -> style.Figure:
    first = next(r for r in records if r.flops_formula)
    style.caption(figure, f"{first.phase}, scope {first.scope}, {more.format(first)}.")
    return figure


_DRAW: Mapping[str, Callable[..., style.Figure]] = {
    "growth": _growth,
    "surface": _surface,
    # document 000's Figure 2
    "width": partial(
        _over, axis="d_model", example="--d-model 64:1024:x2", label="model width d_model",
        more="batch {0.batch_size}",
    ),
    # as TaylorShift's Table 6 has them
    "heads": partial(
        _over, axis="num_heads", example="--heads 1,2,4,8,16", label="heads",
        more="d_model {0.d_model}",
        panels={
            **_WORK, "median time [s]": ("median_s", 1.0),
            "peak memory [MiB]": ("peak_bytes_measured", MIB),
        },
    ),
    "roofline": rooflines.draw_roofline,
    "pareto": rooflines.draw_pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)
