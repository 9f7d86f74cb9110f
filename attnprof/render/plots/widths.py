"""FLOPs against model width, head count, or both length and width."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots.growth import MIB, draw_curve, legend, length_axis
from attnprof.render.plots.series import need, series_of
from attnprof.render.plots.style import NORMAL, PAGE_WIDTH, SMALL, caption, colours, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_width(records: Sequence[Any], devices: Mapping[int, str] | None = None) -> Figure:
    """FLOPs over d_model, a curve a mechanism (and length): document 000's Figure 2."""
    known = [r for r in records if r.flops_formula]
    need(known, "no record has FLOPs")
    _several(known, "d_model", "--d-model 64:1024:x2")
    found = series_of(known, "d_model", devices)
    colour = colours([series.mechanism for series in found])
    figure = new_figure(4.6, 3.2)
    axes = figure.subplots()
    for series in found:
        points = series.points("d_model", "flops_formula")
        draw_curve(axes, series, colour[series.mechanism], points)
    length_axis(axes, [r.d_model for r in known], "model width d_model")
    axes.set_ylabel("FLOPs (formula)")
    legend(figure, found, colour)
    caption(figure, f"{known[0].phase}, scope {known[0].scope}, batch {known[0].batch_size}.")
    return figure


def draw_heads(records: Sequence[Any], devices: Mapping[int, str] | None = None) -> Figure:
    """FLOPs, time and memory over the number of heads, as TaylorShift's Table 6 has them."""
    known = [r for r in records if r.flops_formula]
    need(known, "no record has FLOPs")
    _several(known, "num_heads", "--heads 1,2,4,8,16")
    found = series_of(known, "num_heads", devices)
    colour = colours([series.mechanism for series in found])
    figure = new_figure(PAGE_WIDTH, 2.8)
    panels = figure.subplots(1, 3)
    fields = (("flops_formula", "FLOPs (formula)", 1), ("median_s", "median time [s]", 1),
              ("peak_bytes_measured", "peak memory [MiB]", MIB))  # fmt: skip
    for axes, (field, name, unit) in zip(panels, fields, strict=True):
        for series in found:
            heads, values = series.points("num_heads", field)
            scaled = [value / unit for value in values]
            draw_curve(axes, series, colour[series.mechanism], (heads, scaled))
        length_axis(axes, [r.num_heads for r in known], "heads")
        axes.set_ylabel(name)
    legend(figure, found, colour)
    first = known[0]
    caption(figure, f"{first.phase}, scope {first.scope}, d_model {first.d_model}.")
    return figure


def draw_surface(records: Sequence[Any], _devices: Mapping[int, str] | None = None) -> Figure:
    """FLOPs over length and width, a surface a mechanism: document 000's Figure 4."""
    known = [r for r in records if r.flops_formula]
    need(known, "no record has FLOPs")
    _several(known, "d_model", "--d-model 64:1024:x2")
    _several(known, "seq_len", "--seq 64:1024:x2")
    names = list(dict.fromkeys(r.mechanism for r in known))
    colour = colours(names)
    figure = new_figure(4.8, 4.2)
    axes: Any = figure.add_subplot(projection="3d")
    for name in names:
        x, y, z = _mesh([r for r in known if r.mechanism == name])
        axes.plot_wireframe(x, y, z, color=colour[name], linewidth=0.9)
    _surface_axes(axes, known)
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=colour[name], label=figure_text(name)) for name in names]
    figure.legend(handles=marks, loc="outside upper center", ncols=min(4, len(marks)))
    first = known[0]
    caption(figure, f"{first.phase}, scope {first.scope}, {first.num_heads} head(s).")
    return figure


def _mesh(records: Sequence[Any]) -> tuple[Any, Any, Any]:
    """log2 length, log2 width and log10 FLOPs on a grid; NaN where a point is missing."""
    import numpy as np

    lengths = sorted({r.seq_len for r in records})
    widths = sorted({r.d_model for r in records})
    table = {(r.seq_len, r.d_model): r.flops_formula for r in records}
    z = np.array([[math.log10(table.get((n, w)) or math.nan) for n in lengths] for w in widths])
    x, y = np.meshgrid([math.log2(n) for n in lengths], [math.log2(w) for w in widths])
    return x, y, z


def _surface_axes(axes: Any, records: Sequence[Any]) -> None:
    for name, field in (("x", "seq_len"), ("y", "d_model")):
        values = sorted({getattr(r, field) for r in records})
        shown = values[:: max(1, -(-len(values) // 5))]
        ticks = [math.log2(v) for v in shown]
        getattr(axes, f"set_{name}ticks")(ticks, [str(v) for v in shown])
    logs = [math.log10(r.flops_formula) for r in records]
    decades = range(math.floor(min(logs)), math.ceil(max(logs)) + 1)
    axes.set_zticks(list(decades), [f"$10^{{{e}}}$" for e in decades])
    axes.set_xlabel("sequence length", fontsize=NORMAL)
    axes.set_ylabel("model width", fontsize=NORMAL)
    axes.set_zlabel("FLOPs", fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.view_init(elev=22, azim=-125)


def _several(records: Sequence[Any], field: str, example: str) -> None:
    if len({getattr(r, field) for r in records}) < 2:
        raise RequestError(f"the results have one {field} only: sweep several, like {example}")
