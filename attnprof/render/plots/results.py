"""Figures of measured results by kind, and those of FLOPs over widths, heads or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.errors import RequestError
from attnprof.record import ProfileRecord, Report
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style
from attnprof.render.plots.growth import MIB, draw_growth
from attnprof.render.plots.rooflines import draw_pareto, draw_roofline
from attnprof.render.plots.series import (
    Records,
    draw_curve,
    length_axis,
    need,
    series_legend,
    series_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_results(
    reports: Sequence[Report], path: str | Path, kind: str = "growth", **known: Any
) -> None:
    """Draw profile or sweep reports in one figure; PNG, SVG or PDF by the suffix.

    ``known`` are the ``crossings`` of a figure of growth, and the ``ceilings`` of a roofline.
    Raises :class:`attnprof.errors.RequestError` for another suffix, an unwritable path, and
    results that lack what the kind shows.
    """
    style.plot(path, partial(draw_results, **known), reports, kind)


def draw_results(reports: Sequence[Report], kind: str = "growth", **known: Any) -> Figure:
    """The figure of a kind; where reports are from several devices, each by its own name."""
    names = [str(report.environment.get("device_name") or "") for report in reports]
    several = len(set(names)) > 1
    records = [
        replace(record, device=name or record.device) if several else record
        for report, name in zip(reports, names, strict=True)
        for record in report.of(ProfileRecord)
    ]
    return _DRAW[kind](records, **known)


def _over_width(records: Records) -> Figure:
    """FLOPs over d_model, a curve a mechanism (and length): document 000's Figure 2."""
    panels = {"FLOPs (formula)": ("flops_formula", 1.0)}
    figure = _over(records, "d_model", "--d-model 64:1024:x2", "model width d_model", panels)
    return _told(figure, records, "batch {0.batch_size}")


def _over_heads(records: Records) -> Figure:
    """FLOPs, time and memory over the number of heads, as TaylorShift's Table 6 has them."""
    panels = {
        "FLOPs (formula)": ("flops_formula", 1.0), "median time [s]": ("median_s", 1.0),
        "peak memory [MiB]": ("peak_bytes_measured", MIB),
    }  # fmt: skip
    figure = _over(records, "num_heads", "--heads 1,2,4,8,16", "heads", panels)
    return _told(figure, records, "d_model {0.d_model}")


def _over(
    records: Records, axis: str, example: str, label: str, panels: Mapping[str, tuple[str, float]]
) -> Figure:
    """A panel a field over the axis, a curve a mechanism."""
    known = _with_flops(records, {axis: example})
    found = series_of(known, axis)
    one = len(panels) == 1
    figure = style.new_figure(*((4.6, 3.2) if one else (style.PAGE_WIDTH, 2.8)))
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, (field, unit)) in zip(grid, panels.items(), strict=True):
        for series in found:
            draw_curve(axes, series, series.points(axis, field, unit))
        length_axis(axes, [getattr(r, axis) for r in known], label)
        axes.set_ylabel(name)
    series_legend(figure, found)
    return figure


def _surface(records: Records) -> Figure:
    """FLOPs over length and width, a surface a mechanism: document 000's Figure 4."""
    axes_of = {"d_model": "--d-model 64:1024:x2", "seq_len": "--seq 64:1024:x2"}
    known = _with_flops(records, axes_of)
    colour = style.colours([r.mechanism for r in known])
    figure = style.new_figure(4.8, 4.2)
    axes: Any = figure.add_subplot(projection="3d")
    for name, shade in colour.items():
        mesh = _mesh([r for r in known if r.mechanism == name])
        axes.plot_wireframe(*mesh, color=shade, linewidth=0.9)
    _surface_axes(axes, known)
    looks = [{"color": shade, "label": figure_text(name)} for name, shade in colour.items()]
    style.legend(figure, looks)
    return _told(figure, records, "{0.num_heads} head(s)")


def _with_flops(records: Records, axes: Mapping[str, str]) -> Records:
    """Records that have FLOPs; RequestError unless they have several values along each axis."""
    known = [r for r in records if r.flops_formula]
    need(known, "no record has FLOPs")
    for field, example in axes.items():
        if len({getattr(r, field) for r in known}) < 2:
            raise RequestError(f"the results have one {field} only: sweep several, like {example}")
    return known


def _told(figure: Figure, records: Records, more: str) -> Figure:
    first = next(r for r in records if r.flops_formula)
    style.caption(figure, f"{first.phase}, scope {first.scope}, {more.format(first)}.")
    return figure


def _mesh(records: Records) -> tuple[Any, Any, Any]:
    """log2 length, log2 width and log10 FLOPs on a grid; NaN where a point is missing."""
    import numpy as np

    lengths, widths = (sorted({getattr(r, f) for r in records}) for f in ("seq_len", "d_model"))
    table = {(r.seq_len, r.d_model): r.flops_formula for r in records}
    z = np.log10([[table.get((n, w), math.nan) for n in lengths] for w in widths])
    x, y = np.meshgrid(np.log2(lengths), np.log2(widths))
    return x, y, z


def _surface_axes(axes: Any, records: Records) -> None:
    for name, field in (("x", "seq_len"), ("y", "d_model")):
        values = sorted({getattr(r, field) for r in records})
        shown = values[:: max(1, -(-len(values) // 5))]
        ticks = [math.log2(v) for v in shown]
        getattr(axes, f"set_{name}ticks")(ticks, [str(v) for v in shown])
    logs = [math.log10(r.flops_formula) for r in records]
    decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
    axes.set_zticks(list(decades), [f"$10^{{{e}}}$" for e in decades])
    for name, label in {"x": "sequence length", "y": "model width", "z": "FLOPs"}.items():
        getattr(axes, f"set_{name}label")(label, fontsize=style.NORMAL)
    axes.tick_params(labelsize=style.SMALL)
    axes.view_init(elev=22, azim=-125)


_DRAW: Mapping[str, Callable[..., Figure]] = {
    "growth": draw_growth, "surface": _surface, "width": _over_width, "heads": _over_heads,
    "roofline": draw_roofline, "pareto": draw_pareto,
}  # fmt: skip
KINDS = tuple(_DRAW)
