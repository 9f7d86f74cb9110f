"""Measured rates under a device's ceilings, and error against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots import series, style
from attnprof.render.plots.series import Records
from attnprof.units import format_rate

Ceiling = Mapping[str, Any]
#: Distances below this are rounding.
EXACT = 1e-9


def draw_roofline(records: Records, ceilings: Sequence[Ceiling] = ()) -> style.Figure:
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
    figure = style.new_figure(4.8, 3.6)
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


def draw_pareto(records: Records) -> style.Figure:
    """Error against time, the best ones joined; for results that have errors."""
    known = [r for r in records if r.median_s and r.error is not None]
    series.need(known, "no record has an error beside its time")
    found = series.series_of(known, "seq_len", without=("params",))
    figure = style.new_figure(4.8, 3.6)
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
