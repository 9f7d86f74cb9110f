"""000's figures: blocks, lines by width, ratio heatmaps, surfaces over length and width."""

from typing import Any

from attnprof.papers.regenerated import Values
from attnprof.record import HeatmapRecord, Report
from attnprof.render.plots import style
from attnprof.render.plots.documents import Rows, curve, draw_arrow, draw_box, drawing, of
from attnprof.render.plots.heatmap import draw_heatmap
from attnprof.render.plots.style import Axes, Figure, Place
from attnprof.render.plots.ticks import with_prefix
from attnprof.units import format_rate

#: In drawing order: a curve that coincides with an earlier one lies on it, dashed.
MECHANISMS = ("standard", "super", "optimised", "efficient")
#: Column of each input in a diagram, and the name of a block's output with two inputs.
INPUTS = {"Q": 0.0, "K": 1.0, "V": 2.0}
JOINED = {"Q K": "scores", "scores V": "heads"}
#: Blocks with weights are filled; all others are outlined.
FILLS = {"Linear": style.SKY, "Linear*": style.ORANGE, "Slice": "white", "MatMul": style.GREEN}
#: Half a block, where a column is one wide and a level one high.
HALF = HALF_WIDTH, HALF_HEIGHT = 0.42, 0.3
#: Half the sideways distance of two blocks up to which their arrow is straight.
ASIDE = 0.3


def draw_diagram(figure: Figure, data: Values) -> str:
    """Draw Figure 1: a panel a mechanism, a block a row, with arrows from its inputs (``on``)."""
    names = list(dict.fromkeys(row["mechanism"] for row in data["rows"]))
    panels = style.split(figure, len(names), 1.5, sharey=True)
    style.label_panels(panels)
    for axes, name in zip(panels, names, strict=True):
        top = _diagram(axes, of(data["rows"], mechanism=name))
        axes.set_title(name, fontsize=style.NORMAL)
        axes.set(xlim=(-0.55, 2.55), ylim=(-0.5, max(axes.get_ylim()[1], top + 0.5)))
        axes.axis("off")
    return (
        "Linear: a map applied from the right, to a token's features. Linear*: a map applied from "
        "the left, over tokens."
    )


def _diagram(axes: Axes, rows: Rows) -> float:
    """Draw one mechanism, inputs below; return the height of its output."""
    ends: dict[str, Place] = {name: (x, 0.0) for name, x in INPUTS.items()}
    for name, place in ends.items():
        axes.text(*place, f"${name}$", fontsize=style.NORMAL, **style.CENTRED)
    for row in rows:
        on: str = row["on"]
        below = [ends[name] for name in on.split()]
        place = sum(x for x, _ in below) / len(below), max(y for _, y in below) + 1
        for start in below:
            _arrow(axes, start, place)
        look = {"facecolor": FILLS.get(row["block"], "0.93"), "alpha": 0.85}
        draw_box(axes, place, HALF, 0.08, **look)
        axes.text(*place, row["block"], fontsize=style.SMALL, zorder=3, **style.CENTRED)
        ends[JOINED.get(on, on)] = place
    output = (place[0], place[1] + 1)
    _arrow(axes, place, output)
    axes.text(*output, "$O$", fontsize=style.NORMAL, **style.CENTRED)
    return output[1]


def _arrow(axes: Axes, start: Place, end: Place) -> None:
    """Draw an arrow from one block's top to another's bottom or, if far aside, to its side."""
    (x0, y0), (x1, y1) = (start[0], start[1] + HALF_HEIGHT), end
    if abs(x0 - x1) > 2 * ASIDE:
        side = (x1 + (HALF_WIDTH if x0 > x1 else -HALF_WIDTH), y1)
        draw_arrow(axes, (x0, y0), side, "angle,angleA=90,angleB=0")
    else:
        bottom = (x1 + (ASIDE * (x0 - x1) / HALF_WIDTH / 2), y1 - HALF_HEIGHT)
        draw_arrow(axes, (x0, y0), bottom, "arc3")


def draw_by_width(figure: Figure, data: Values) -> str:
    """Draw Figure 2: a panel a way of counting and a length, curves by mechanism."""
    panels = data["facts"]["panels"]
    grid = style.split(figure, len(panels))
    looks = {name: {**look, "marker": ""} for name, look in style.looks(MECHANISMS).items()}
    style.label_panels(grid)
    for axes, panel in zip(grid, panels, strict=True):
        rows = of(data["rows"], **panel)
        for name in MECHANISMS:
            axes.plot(*curve(rows, name, axis="d_m"), label=name, **looks[name])
        counted = panel["counted"] if panel["counted"].startswith("Eq") else "counted exactly"
        axes.set_title(f"{counted}, $l$ = {panel['l']}", fontsize=style.NORMAL)
        axes.set(xlabel="model width $d_m$", ylabel="FLOPs", xlim=(0, None), ylim=(0, None))
        axes.yaxis.set_major_formatter(with_prefix())
        axes.grid(visible=True)
    style.legend(figure, [{"label": name, **look} for name, look in looks.items()], handlelength=3)
    return (
        f"One forward and backward pass, h = {data['facts']['h']}. (a) as printed, (b) the same "
        "equation for a longer context: Optimised and Super coincide; (c) multiplications and "
        "additions of the definitions' products."
    )


def draw_heatmaps(data: Values) -> Figure:
    """Draw Figure 3 as ``attnprof heatmap standard efficient`` does."""
    summary = dict(data["facts"]["summary"])
    terms = {name: summary[name] for name in ("kind", "quantity", "phase")}
    records = [
        HeatmapRecord(
            seq_len=row["l"], d_model=row["d_m"], num_heads=row["h"], value_a=row["standard"],
            value_b=row["efficient"], ratio=row["ratio"], **terms,
        )
        for row in data["rows"]
    ]  # fmt: skip
    return draw_heatmap(Report("heatmap", records, summary))


def draw_surfaces(figure: Figure, data: Values) -> str:
    """Draw Figure 4: a surface a mechanism, all on one scale."""
    import numpy as np
    from matplotlib.ticker import MultipleLocator

    rows = of(data["rows"], counted=data["facts"]["drawn"])
    lengths, widths = (sorted({row[key] for row in rows}) for key in ("l", "d_m"))
    x, y = np.meshgrid(widths, lengths)
    top = max(row["standard"] for row in rows)
    panels: list[Any] = style.split(figure, 4, 3.0, subplot_kw={"projection": "3d"})
    for axes, name in zip(panels, ("standard", "optimised", "efficient", "super"), strict=True):
        values = {(row["l"], row["d_m"]): row[name] for row in rows}
        height = np.array([[values[n, d] for d in widths] for n in lengths])
        axes.plot_surface(
            x, y, height, cmap="viridis", vmin=0, vmax=top, linewidth=0.2, edgecolor="0.3",
            rcount=len(lengths), ccount=len(widths),
        )  # fmt: skip
        axes.set_zlim(0, top)
        title = f"{name}: at most {format_rate(height.max(), 'FLOPs')}"
        axes.set_title(title, fontsize=style.NORMAL)
        style.set_3d_view(axes, "$d_m$", "$l$", "FLOPs")
        axes.zaxis.set_major_formatter(with_prefix())
        axes.xaxis.set_major_locator(MultipleLocator(256))
        axes.yaxis.set_major_locator(MultipleLocator(256))
    return (
        f"Eq 24, one forward and backward pass, h = {data['facts']['h']}; one scale for all "
        "panels. Optimised and Super coincide."
    )


DRAWINGS = {
    "1": drawing(3.4, draw_diagram), "2": drawing(2.3, draw_by_width), "3": draw_heatmaps,
    "4": drawing(2.4, draw_surfaces),
}  # fmt: skip
