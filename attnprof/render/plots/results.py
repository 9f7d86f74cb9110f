"""Figures of measured results by kind: over width and heads, under a roofline, by their error."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError
from attnprof.record import ProfileRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.record.measured import by_device
from attnprof.render.plots import series, style, ticks
from attnprof.render.plots.facets import FIELDS, Facet, Grid, Records, facets, shared
from attnprof.render.plots.heatmap import Axis, Scale, colour_bar, draw_cells
from attnprof.render.plots.style import MIB
from attnprof.units import format_rate

Ceiling = Mapping[str, Any]
#: By its label: a panel's field, what it is divided by, and the unit whose prefixes its ticks have.
Panels = Mapping[str, tuple[str, float, str | None]]
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
    records = by_device(reports)
    points: dict[Any, ProfileRecord] = {}
    for record in records:
        point = (record.mechanism, str(record.params), *(getattr(record, f) for f in FIELDS))
        if points.setdefault(point, record) is not record:
            raise RequestError(
                f"two results for one point ({record.mechanism}, {shared([record])}): "
                "plot files that do not repeat points, each file in a figure of its own"
            )
    return _DRAW[kind](records, **known)


#: FLOPs as a panel of figures over widths and heads: the field, what it is divided by, its ticks.
_WORK: Panels = {"FLOPs (formula)": ("flops_formula", 1.0, "")}


def _over(
    records: Records, *, axis: str, example: str, label: str, what: str, panels: Panels = _WORK
) -> style.Figure:
    """A panel a field over the axis, a curve a mechanism."""
    known = _with_flops(records, {axis: example})
    found, shown = series.series_of(known, axis), facets(known, axis)
    grid, lines, sizes = Grid.of(shown, len(panels)), 0, [getattr(r, axis) for r in known]
    for facet, its in zip(shown, grid.panels, strict=True):
        curves = [curve.within(facet) for curve in found]
        for axes, (field, unit, _) in zip(its, panels.values(), strict=True):
            for curve in curves:
                axes.plot(*curve.points(axis, field, unit), **curve.look)
            if field != "flops_formula":
                lines = max(lines, series.rug(axes, curves, axis, sizes))
    for axes, (_, _, prefixed) in zip(grid.panels[0], panels.values(), strict=True):
        written = ticks.plain if prefixed is None else ticks.with_prefix(prefixed)
        series.length_axis(axes, sizes, written=written, lines=lines)
    grid.label(label, *panels)
    title = f"{what} of {series.a_pass(known)} over {label}, by mechanism"
    series.series_legend(grid.figure, found, title)
    style.caption(grid.figure, shared(known), series.CROSS * bool(lines))
    return grid.figure


def _surface(records: Records) -> style.Figure:
    """FLOPs over length and width as shares of the first mechanism's, a panel a mechanism."""
    import numpy as np

    known = _with_flops(records, _AXES)
    found, shown = series.series_of(known, "seq_len"), facets(known, *_AXES)
    base, *others = sorted(found, key=lambda its: its.mechanism != "standard")
    series.need(others, "a ratio needs two mechanisms; sweep several, like --attention "
                "standard,linear, or type --kind surface3d")  # fmt: skip
    if any(curve.mechanism == base.mechanism for curve in others):
        name = series.varying_params(known)[base.mechanism][0]
        value = base.records[0].params.get(name)
        raise RequestError(f"several {base.mechanism} to compare with, which differ in {name}: "
                           f"choose one, like --where {name}={value}")  # fmt: skip
    lengths, widths = (Axis.of([getattr(r, f) for r in known]) for f in ("seq_len", "d_model"))
    panels, tables = [], []
    for facet in shown:
        cost = {(r.seq_len, r.d_model): r.flops_formula for r in base.within(facet).records}
        for curve in others:
            own = {(r.seq_len, r.d_model): r.flops_formula for r in curve.within(facet).records}
            tables.append(np.array([
                [own.get((n, w), math.nan) / cost.get((n, w), math.nan) for w in widths.sizes]
                for n in lengths.sizes
            ]))  # fmt: skip
            title = ", ".join(filter(None, (curve.label, facet.title)))
            panels.append(Facet(title, facet.records))
    grid, scale = Grid.of(panels, period=len(others)), Scale.of(np.array(tables))
    for (axes,), table in zip(grid.panels, tables, strict=True):
        mesh = draw_cells(axes, table, lengths, widths, scale)
    grid.label("model width d_model", "sequence length")
    flat = [axes for (axes,) in grid.panels]
    colour_bar(grid.figure, flat, mesh, scale, f"FLOPs / FLOPs of {base.label}")
    style.title(grid.figure, f"FLOPs of {series.a_pass(known)} relative to "
                f"{base.label}, over sequence length and model width")  # fmt: skip
    style.caption(grid.figure, shared(known), "FLOPs by the closed forms")
    return grid.figure


def _surface3d(records: Records) -> style.Figure:
    """FLOPs over length and width, a surface a mechanism: document 000's Figure 4."""
    import numpy as np

    known = _with_flops(records, _AXES)
    found, shown = series.series_of(known, "seq_len"), facets(known, *_AXES)
    grid = Grid.of(shown, least=2.3, projection="3d")
    axes: Any
    for facet, (axes,) in zip(shown, grid.panels, strict=True):
        for curve in found:
            own = curve.within(facet).records
            lengths, widths = (sorted({getattr(r, f) for r in own}) for f in _AXES)
            table = {(r.seq_len, r.d_model): r.flops_formula for r in own}
            # NaN where a point is missing
            z = np.log10([[table.get((n, w), math.nan) for n in lengths] for w in widths])
            x, y = np.meshgrid(np.log2(lengths), np.log2(widths))
            look = {key: curve.look[key] for key in ("color", "linestyle")}
            axes.plot_wireframe(x, y, z, linewidth=0.9, **look)
        sizes = {"x": [r.seq_len for r in known], "y": [r.d_model for r in known]}
        for name, values in sizes.items():
            shown_sizes = sorted(set(values))
            few = shown_sizes[:: max(1, -(-len(shown_sizes) // 4))]
            getattr(axes, f"set_{name}ticks")(np.log2(few), list(map(ticks.short_size, few)))
        logs = [math.log10(r.flops_formula) for r in known]
        decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
        axes.set_zticks(list(decades), [ticks.with_prefix()(10.0**e) for e in decades])
        axes.set(xlabel="sequence length", ylabel="model width", zlabel="FLOPs")
        axes.view_init(elev=22, azim=-125)
        axes.set_box_aspect(None, zoom=0.85)
    title = f"FLOPs of {series.a_pass(known)} over sequence length and model width, by mechanism"
    series.series_legend(grid.figure, found, title, marker="")
    style.caption(grid.figure, shared(known), "FLOPs by the closed forms")
    return grid.figure


#: Axes of a surface, and how they are swept.
_AXES = {"seq_len": "--seq 64:1024:x2", "d_model": "--d-model 64:1024:x2"}


def _with_flops(records: Records, axes: Mapping[str, str]) -> Records:
    """Records that have FLOPs; RequestError unless they have several values along each axis."""
    known = [r for r in records if r.flops_formula]
    series.need(known, "no record has FLOPs")
    for field, example in axes.items():
        if len({getattr(r, field) for r in known}) < 2:
            raise RequestError(f"the results have one {field} only: sweep several, like {example}")
    return known


def _roofline(records: Records, ceilings: Sequence[Ceiling] = ()) -> style.Figure:
    """FLOP/s against FLOPs a byte, each point a length, under the ceilings of its device.

    ``ceilings`` have ``device``, ``flops_per_s`` by format, ``bytes_per_s`` and ``source``.
    """
    if not ceilings:
        raise RequestError("no ceilings known for the device of these results: run attnprof "
                           "calibrate there, then plot")  # fmt: skip
    known = [r for r in records if r.flops_per_s and r.arithmetic_intensity]
    series.need(known, "no record has a rate")
    found, shown = series.series_of(known, "seq_len"), facets(known, "seq_len")
    grid = Grid.of(shown)
    reach = [r.arithmetic_intensity for r in known]
    for facet, (axes,) in zip(shown, grid.panels, strict=True):
        for curve in found:
            points = curve.within(facet).points("arithmetic_intensity", "flops_per_s")
            axes.plot(*points, **{**curve.look, "linewidth": 0.7})
        own = [c for c in ceilings if c["device"] == facet.records[0].device] or ceilings
        formats = list(dict.fromkeys(r.dtype for r in facet.records))
        for ceiling in own:
            _roof(axes, ceiling, formats, min(reach) / 2, max(reach) * 4)
    series.value_axes(grid.panels[0][0], ticks.plain, ticks.with_prefix("FLOP/s"))
    style.headroom(grid.panels[0][0], 0.12)
    grid.label("FLOPs per byte", "achieved rate")
    title = f"Rate of {series.a_pass(known)} under the device's limits, by mechanism"
    series.series_legend(grid.figure, found, title)
    style.caption(
        grid.figure, shared(known), "each point a sequence length",
        "FLOPs and bytes by the closed forms",
        "; ".join(f"{c['device']}, {format_rate(c['bytes_per_s'], 'B/s')}: {c['source']}"
                  for c in ceilings),
    )  # fmt: skip
    return grid.figure


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


def _pareto(records: Records) -> style.Figure:
    """Error against time, the best ones joined; exact ones in a strip below, without an error."""
    known = [r for r in records if r.median_s and r.error is not None]
    series.need(known, "no record has an error beside its time")
    found, shown = series.series_of(known, "seq_len", by_params=False), facets(known)
    grid, settings = Grid.of(shown), series.varying_params(known)
    inexact = [r.error for r in known if r.error > EXACT] or [1.0]
    low, high = min(inexact) / 1.5, max(inexact) * 1.5
    strip = low / (high / low) ** 0.2
    for facet, (axes,) in zip(shown, grid.panels, strict=True):
        axes.axhspan(strip, low, color="0.93", zorder=0)
        for curve in found:
            points = sorted(
                (r.median_s, _height(r, strip, low), r) for r in curve.within(facet).records
            )
            look = {**curve.look, "linewidth": 0.6, "markersize": 4}
            axes.plot([p[0] for p in points], [p[1] for p in points], **look)
            for x, y, record in points:
                named = [record.params.get(name) for name in settings[record.mechanism]]
                said = figure_text(", ".join(str(value) for value in named if value is not None))
                style.beside(axes, said, (x, y), (3, 3), color=curve.look["color"])
        best = _front([(r.median_s, _height(r, strip, low)) for r in facet.records])
        axes.step(*zip(*best, strict=True), where="post", color=style.GREY, linewidth=0.8, zorder=1)
    first = grid.panels[0][0]
    series.value_axes(first, ticks.with_prefix("s"), ticks.plain)
    some = (
        ticks.round_numbers(low, high, lambda some: len(some) < 5)
        if any(r.error > EXACT for r in known)
        else []
    )
    first.set_ylim(strip, high)
    first.set_yticks([math.sqrt(strip * low), *some], ["exact", *map(ticks.plain, some)])
    grid.label("median time", "distance")
    title = f"Distance from softmax attention over time of {series.a_pass(known)}, by mechanism"
    series.series_legend(grid.figure, found, title)
    told = [f"{name}: {', '.join(params)}" for name, params in settings.items() if params]
    style.caption(
        grid.figure, shared(known), "steps: no other point is both faster and nearer",
        f"numbers at points are {'; '.join(told)}" if told else "",
    )  # fmt: skip
    return grid.figure


def _height(record: Any, strip: float, low: float) -> float:
    """An error, or the middle of the strip below all errors for one that is none."""
    return record.error if record.error > EXACT else math.sqrt(strip * low)


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
    "surface3d": _surface3d,
    # document 000's Figure 2
    "width": partial(
        _over, axis="d_model", example="--d-model 64:1024:x2", label="model width d_model",
        what="FLOPs",
    ),
    # as TaylorShift's Table 6 has them
    "heads": partial(
        _over, axis="num_heads", example="--heads 1,2,4,8,16", label="number of heads",
        what="FLOPs, time and memory",
        panels={
            **_WORK, "median time": ("median_s", 1.0, "s"),
            "peak memory [MiB]": ("peak_bytes_measured", MIB, None),
        },
    ),
    "roofline": _roofline,
    "pareto": _pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)
