"""Figures of measured results by kind: over width and heads, under a roofline, by their error."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import ProfileRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import series, style
from attnprof.render.plots.series import Records
from attnprof.render.plots.style import MIB
from attnprof.units import format_rate

Ceiling = Mapping[str, Any]
#: Distances below this are rounding.
EXACT = 1e-9


def plot_results(
    reports: Sequence[Report],
    path: str | Path,
    kind: str = "growth",
    size: str = "page",
    **known: Any,
) -> None:
    """Draw profile or sweep reports in one figure; PNG, SVG or PDF by the suffix.

    ``size`` is ``page`` or ``column``; ``known`` are the ``crossings`` of a figure of growth, and
    the ``ceilings`` of a roofline.
    Raises :class:`attnprof.errors.RequestError` for another suffix, an unwritable path, and
    results that lack what the kind shows.
    """
    style.plot(path, partial(draw_results, **known), reports, kind, size=size)


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


#: FLOPs as a panel of figures over widths and heads: the field and what it is divided by.
_WORK = {"FLOPs (formula)": ("flops_formula", 1.0)}


def _over(
    records: Records,
    *,
    axis: str,
    example: str,
    label: str,
    more: str,
    panels: Mapping[str, tuple[str, float]] = _WORK,
) -> style.Figure:
    """A panel a field over the axis, a curve a mechanism (and length)."""
    known = _with_flops(records, {axis: example})
    found = series.series_of(known, axis)
    one = len(panels) == 1
    figure = style.new_figure(3.2 if one else 2.8)
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
    figure = style.new_figure(4.2)
    axes: Any = figure.add_subplot(projection="3d")
    for name, shade in colour.items():
        own = [r for r in known if r.mechanism == name]
        lengths, widths = (sorted({getattr(r, f) for r in own}) for f in ("seq_len", "d_model"))
        table = {(r.seq_len, r.d_model): r.flops_formula for r in own}
        # NaN where a point is missing
        z = np.log10([[table.get((n, w), math.nan) for n in lengths] for w in widths])
        x, y = np.meshgrid(np.log2(lengths), np.log2(widths))
        axes.plot_wireframe(x, y, z, color=shade, linewidth=0.9)
    for name, field in (("x", "seq_len"), ("y", "d_model")):
        values = sorted({getattr(r, field) for r in known})
        shown = values[:: max(1, -(-len(values) // 5))]
        getattr(axes, f"set_{name}ticks")([math.log2(v) for v in shown], [str(v) for v in shown])
    logs = [math.log10(r.flops_formula) for r in known]
    decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
    axes.set_zticks(list(decades), [f"$10^{{{e}}}$" for e in decades])
    for name, label in {"x": "sequence length", "y": "model width", "z": "FLOPs"}.items():
        getattr(axes, f"set_{name}label")(label, fontsize=style.NORMAL)
    axes.tick_params(labelsize=style.SMALL)
    axes.view_init(elev=22, azim=-125)
    looks = [{"color": shade, "label": figure_text(name)} for name, shade in colour.items()]
    style.legend(figure, looks)
    return _told(figure, records, "{0.num_heads} head(s)")


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


def _roofline(records: Records, ceilings: Sequence[Ceiling] = ()) -> style.Figure:
    """FLOP/s against FLOPs a byte, each point a length, under the ceilings of its device.

    ``ceilings`` have ``device``, ``flops_per_s`` by format, ``bytes_per_s`` and ``source``.
    """
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator

    if not ceilings:
        raise RequestError("no ceilings known for the device of these results: run attnprof "
                           "calibrate there, then plot")  # fmt: skip
    known = [r for r in records if r.flops_per_s and r.arithmetic_intensity]
    series.need(known, "no record has a rate")
    found = series.series_of(known, "seq_len")
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    for curve in found:
        points = curve.points("arithmetic_intensity", "flops_per_s")
        series.draw_curve(axes, curve, points, linewidth=0.7)
    reach = [r.arithmetic_intensity for r in known]
    formats = dict.fromkeys(r.dtype for r in known)
    for ceiling in ceilings:
        _roof(axes, ceiling, list(formats), min(reach) / 2, max(reach) * 4)
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=True, which="both")
    # enough plain numbers where a decade is not passed
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis, written in ((axes.xaxis, plain), (axes.yaxis, EngFormatter(sep=" "))):
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_major_formatter(written)
        axis.set_minor_formatter(written)
    axes.tick_params(which="both", labelsize=style.SMALL)
    axes.set_xlabel("arithmetic intensity [FLOP/B], by the closed forms")
    axes.set_ylabel("achieved [FLOP/s]")
    series.series_legend(figure, found)
    style.caption(figure, "; ".join(f"{c['device']}: {c['source']}" for c in ceilings))
    return figure


def _roof(
    axes: style.Axes, ceiling: Ceiling, formats: Sequence[str], low: float, high: float
) -> None:
    """The slope of the memory and a flat line a number format."""
    grey, speed = style.GREY, ceiling["bytes_per_s"]
    for dtype in formats:
        rate = ceiling["flops_per_s"].get(dtype)
        if not rate:
            continue
        xs = [low, rate / speed, max(high, 2 * rate / speed)]
        axes.plot(xs, [min(rate, x * speed) for x in xs], color=grey, linewidth=1.0, zorder=1)
        said = f"{figure_text(dtype)} {format_rate(rate)}"
        style.beside(axes, said, (xs[2], rate), (0, 3), ha="right", color=grey)
    style.beside(axes, format_rate(speed, "B/s"), (low, low * speed), (0, 16), color=grey)


def _pareto(records: Records) -> style.Figure:
    """Error against time, the best ones joined; for results that have errors."""
    known = [r for r in records if r.median_s and r.error is not None]
    series.need(known, "no record has an error beside its time")
    found = series.series_of(known, "seq_len", without=("params",))
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    least = min((r.error for r in known if r.error > EXACT), default=EXACT) / 10
    settings = series.varying_params(known)
    for curve in found:
        points = sorted((r.median_s, max(r.error, least), r) for r in curve.records)
        look = {"linestyle": "-", "markersize": 4, "linewidth": 0.6}
        series.draw_curve(axes, curve, [[p[0] for p in points], [p[1] for p in points]], **look)
        for x, y, record in points:
            named = [record.params.get(name) for name in settings[record.mechanism]]
            said = figure_text(", ".join(str(value) for value in named if value is not None))
            style.beside(axes, said, (x, y), (3, 3), color=curve.look["color"])
    best = _front([(r.median_s, max(r.error, least)) for r in known])
    axes.step(*zip(*best, strict=True), where="post", color=style.GREY, linewidth=0.8, zorder=1)
    axes.set(xscale="log", yscale="log", xlabel="median time [s]")
    axes.set_ylabel("distance from softmax attention")
    axes.grid(visible=True)
    series.series_legend(figure, found)
    told = [f"{name}: {', '.join(params)}" for name, params in settings.items() if params]
    numbers = f" Numbers are {'; '.join(told)}." if told else ""
    exact = " Exact ones stand below all others." if min(r.error for r in known) <= EXACT else ""
    best_told = "Steps: no other point is both faster and nearer."
    style.caption(figure, f"{best_told}{numbers}{exact}")
    return figure


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats in both."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


_DRAW: Mapping[str, Callable[..., style.Figure]] = {
    "growth": series.draw_growth,
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
    "roofline": _roofline,
    "pareto": _pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)
