"""000's figures, drawn: lines by width, ratio heatmaps, surfaces over length and width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.record import HeatmapRecord, Report
from attnprof.render.plots.documents.diagram import draw_diagram
from attnprof.render.plots.heatmap import draw_heatmap
from attnprof.render.plots.style import (
    NORMAL,
    PAGE_WIDTH,
    SMALL,
    caption,
    colours,
    label_panels,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: In the order in which they are drawn: a line that coincides with one before lies on it, dashed.
MECHANISMS = ("standard", "super", "optimised", "efficient")
DASHED = "optimised"


def draw_by_width(data: FigureData) -> Figure:
    """Figure 2: a panel a way of counting and a length, curves by mechanism."""
    panels = data.facts["panels"]
    figure = new_figure(PAGE_WIDTH, 2.9)
    grid = list(figure.subplots(1, len(panels)))
    shades = colours(MECHANISMS)
    label_panels(grid)
    for axes, panel in zip(grid, panels, strict=True):
        rows = [row for row in data.rows if all(row[key] == panel[key] for key in panel)]
        unit, prefix = _unit([row["standard"] for row in rows])
        for name in MECHANISMS:
            axes.plot(
                [row["d_m"] for row in rows],
                [row[name] / unit for row in rows],
                color=shades[name],
                linestyle=(0, (4, 3)) if name == DASHED else "-",
                label=name,
            )
        axes.set_title(f"{_counted(panel['counted'])}, $l$ = {panel['l']}", fontsize=NORMAL)
        axes.set_xlabel("model width $d_m$")
        axes.set_ylabel(f"{prefix}FLOPs")
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.grid(visible=True)
    figure.legend(
        handles=grid[0].get_lines(), loc="outside upper center", ncols=4, handlelength=3.2
    )
    caption(
        figure,
        f"One forward and backward pass, h = {data.facts['h']}. (a) as printed, (b) the same "
        "equation for a longer context: Optimised and Super coincide; (c) multiplications and "
        "additions of the definitions' products.",
    )
    return figure


def _counted(name: str) -> str:
    return name if name.startswith("Eq") else "counted exactly"


def _unit(values: Sequence[float]) -> tuple[float, str]:
    """What axes are divided by, so that their numbers stay short."""
    for unit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(values) >= unit:
            return unit, prefix
    return 1.0, ""


def draw_heatmaps(data: FigureData) -> Figure:
    """Figure 3: as ``attnprof heatmap standard efficient`` draws it."""
    summary = dict(data.facts["summary"])
    terms = {name: summary[name] for name in ("kind", "quantity", "phase")}
    records = [
        HeatmapRecord(
            seq_len=row["l"], d_model=row["d_m"], num_heads=row["h"], value_a=row["standard"],
            value_b=row["efficient"], ratio=row["ratio"], **terms,
        )
        for row in data.rows
    ]  # fmt: skip
    return draw_heatmap(Report("heatmap", records, summary))


def draw_surfaces(data: FigureData) -> Figure:
    """Figure 4: a surface a mechanism, all on one scale."""
    import numpy as np
    from matplotlib.ticker import MultipleLocator

    rows = [row for row in data.rows if row["counted"] == data.facts["drawn"]]
    lengths, widths = (sorted({row[key] for row in rows}) for key in ("l", "d_m"))
    unit, prefix = _unit([row["standard"] for row in rows])
    figure = new_figure(PAGE_WIDTH, 5.0)
    x, y = np.meshgrid(widths, lengths)
    top = max(row["standard"] for row in rows) / unit
    for place, name in enumerate(("standard", "optimised", "efficient", "super"), 1):
        axes: Any = figure.add_subplot(2, 2, place, projection="3d")
        height = _table(rows, name, lengths, widths) / unit
        axes.plot_surface(
            x, y, height, cmap="viridis", vmin=0, vmax=top, linewidth=0.2, edgecolor="0.3",
            rcount=len(lengths), ccount=len(widths),
        )  # fmt: skip
        axes.set_zlim(0, top)
        axes.view_init(elev=22, azim=-125)
        axes.set_title(f"{name}: at most {height.max():.1f} {prefix}FLOPs", fontsize=NORMAL)
        axes.set_box_aspect((1, 1, 0.75), zoom=1.12)
        axes.set_xlabel("$d_m$", fontsize=SMALL, labelpad=-2)
        axes.set_ylabel("$l$", fontsize=SMALL, labelpad=-2)
        axes.set_zlabel(f"{prefix}FLOPs", fontsize=SMALL, labelpad=-4)
        axes.tick_params(labelsize=SMALL, pad=-1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MultipleLocator(256))
    caption(
        figure,
        f"Eq 24, one forward and backward pass, h = {data.facts['h']}; one scale for all panels. "
        "Optimised and Super coincide.",
    )
    return figure


def _table(
    rows: Sequence[Mapping[str, Any]], name: str, lengths: Sequence[int], widths: Sequence[int]
) -> Any:
    import numpy as np

    found = {(row["l"], row["d_m"]): row[name] for row in rows}
    return np.array([[found[n, d] for d in widths] for n in lengths], dtype=float)


DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "1": draw_diagram,
    "2": draw_by_width,
    "3": draw_heatmaps,
    "4": draw_surfaces,
}
