"""Measured rates under a device's ceilings, and error against time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots.growth import draw_curve, legend
from attnprof.render.plots.series import need, series_of, varying_params
from attnprof.render.plots.style import GREY, SMALL, caption, colours, new_figure
from attnprof.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ceiling = Mapping[str, Any]
#: Distances below this are rounding.
EXACT = 1e-9


def draw_roofline(
    records: Sequence[Any],
    devices: Mapping[int, str] | None = None,
    ceilings: Sequence[Ceiling] = (),
) -> Figure:
    """FLOP/s against FLOPs a byte, each point a length, under the ceilings of its device.

    ``ceilings`` have ``device``, ``flops_per_s`` by format, ``bytes_per_s`` and ``source``.
    """
    if not ceilings:
        raise RequestError("no ceilings known for the device of these results: run attnprof "
                           "calibrate there, then plot")  # fmt: skip
    known = [r for r in records if r.flops_per_s and r.arithmetic_intensity]
    need(known, "no record has a rate")
    found = series_of(known, "seq_len", devices)
    colour = colours([series.mechanism for series in found])
    figure = new_figure(4.8, 3.6)
    axes = figure.subplots()
    for series in found:
        points = series.points("arithmetic_intensity", "flops_per_s")
        draw_curve(axes, series, colour[series.mechanism], points, width=0.7)
    reach = [r.arithmetic_intensity for r in known]
    formats = list(dict.fromkeys(r.dtype for r in known))
    for ceiling in ceilings:
        _roof(axes, ceiling, formats, min(reach) / 2, max(reach) * 4)
    _log_axes(axes)
    axes.set_xlabel("arithmetic intensity [FLOP/B], by the closed forms")
    axes.set_ylabel("achieved [FLOP/s]")
    legend(figure, found, colour)
    caption(figure, "; ".join(f"{c['device']}: {c['source']}" for c in ceilings))
    return figure


def _log_axes(axes: Axes) -> None:
    """Both logarithmic, with enough plain numbers where a decade is not passed."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="both")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis, written in ((axes.xaxis, plain), (axes.yaxis, EngFormatter(sep=" "))):
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_major_formatter(written)
        axis.set_minor_formatter(written)
    axes.tick_params(which="both", labelsize=SMALL)


def _roof(axes: Axes, ceiling: Ceiling, formats: Sequence[str], low: float, high: float) -> None:
    """The slope of the memory and a flat line a number format."""
    for dtype in formats:
        rate = ceiling["flops_per_s"].get(dtype)
        if not rate:
            continue
        ridge = rate / ceiling["bytes_per_s"]
        xs = [low, ridge, max(high, 2 * ridge)]
        axes.plot(xs, [min(rate, x * ceiling["bytes_per_s"]) for x in xs], color=GREY,
                  linewidth=1.0, zorder=1)  # fmt: skip
        said = f"{figure_text(dtype)} {format_rate(rate)}"
        axes.annotate(said, (xs[2], rate), xytext=(0, 3), ha="right", textcoords="offset points",
                      fontsize=SMALL - 1, color=GREY)  # fmt: skip
    start = low * ceiling["bytes_per_s"]
    axes.annotate(format_rate(ceiling["bytes_per_s"], "B/s"), (low, start), xytext=(0, 16),
                  textcoords="offset points", fontsize=SMALL - 1, color=GREY)  # fmt: skip


def draw_pareto(records: Sequence[Any], devices: Mapping[int, str] | None = None) -> Figure:
    """Error against time, the best ones joined; for results that have errors."""
    known = [r for r in records if r.median_s and r.error is not None]
    need(known, "no record has an error beside its time")
    found = series_of(known, "seq_len", devices, without=("params",))
    colour = colours([series.mechanism for series in found])
    figure = new_figure(4.8, 3.6)
    axes = figure.subplots()
    least = min((r.error for r in known if r.error > EXACT), default=EXACT) / 10
    settings = varying_params(known)
    for series in found:
        points = sorted((r.median_s, max(r.error, least), r) for r in series.records)
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points],
                  color=colour[series.mechanism], marker=series.style[1], markersize=4,
                  linewidth=0.6)  # fmt: skip
        for x, y, record in points:
            named = [record.params.get(name) for name in settings[record.mechanism]]
            said = figure_text(", ".join(str(value) for value in named if value is not None))
            axes.annotate(said, (x, y), xytext=(3, 3), textcoords="offset points",
                          fontsize=SMALL - 1, color=colour[series.mechanism])  # fmt: skip
    best = _front([(r.median_s, max(r.error, least)) for r in known])
    axes.step([x for x, _ in best], [y for _, y in best], where="post", color=GREY, linewidth=0.8,
              zorder=1)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True)
    axes.set_xlabel("median time [s]")
    axes.set_ylabel("distance from softmax attention")
    legend(figure, found, colour)
    caption(figure, _words(known, settings))
    return figure


def _words(records: Sequence[Any], settings: Mapping[str, Sequence[str]]) -> str:
    told = [f"{name}: {', '.join(params)}" for name, params in settings.items() if params]
    numbers = f" Numbers are {'; '.join(told)}." if told else ""
    exact = " Exact ones stand below all others." if min(r.error for r in records) <= EXACT else ""
    return f"Steps: no other point is both faster and nearer.{numbers}{exact}"


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats in both."""
    front: list[tuple[float, float]] = []
    least = math.inf
    for x, y in sorted(points):
        if y < least:
            front.append((x, y))
            least = y
    return front
