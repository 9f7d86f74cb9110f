"""002's sublayers drawn as steps from left to right, each behind what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.style import BLACK, PAGE_WIDTH, SKY, SMALL, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Half a box, where steps are one apart in both directions.
HALF_WIDTH, HALF_HEIGHT = 0.42, 0.33
#: Columns on a page's width, and an inch's share of a row.
COLUMNS, ROW = 9, 0.62
INPUT = "input row"

Place = tuple[float, float]


def draw_sublayer(data: FigureData) -> Figure:
    """One box a step, the critical path filled."""
    places = _places(data.rows)
    columns = max(x for x, _ in places.values()) + 1
    heights = [y for _, y in places.values()]
    width = max(3.2, PAGE_WIDTH * columns / COLUMNS)
    figure = new_figure(width, 0.45 + ROW * (max(heights) + 1))
    axes = figure.subplots()
    for row in data.rows:
        for other in row["waits for"].split(" + "):
            _arrow(axes, places[other], places[row["step"]])
    _box(axes, places[INPUT], "input", "row $t$", filled=False)
    for row in data.rows:
        _box(axes, places[row["step"]], *_words(row), filled=row["on critical path"])
    axes.set_xlim(-0.5, width * COLUMNS / PAGE_WIDTH - 0.5)
    axes.set_ylim(-0.5, max(heights) + 0.5)
    axes.axis("off")
    caption(figure, f"Blue: the critical path, {data.facts['its steps']} dependent operations.")
    return figure


def _words(row: Mapping[str, Any]) -> tuple[str, str]:
    name = "mapped rows" if row["step"] == "input" else row["step"]
    return name.replace(" ", "\n"), row["operations"].replace(";", " · ")


def _places(rows: Sequence[Mapping[str, Any]]) -> dict[str, Place]:
    """A column behind all a step waits for; the critical path below, other steps above it."""
    depth = {INPUT: 0}
    for row in rows:
        depth[row["step"]] = 1 + max(depth[name] for name in row["waits for"].split(" + "))
    taken: dict[int, int] = {}
    places: dict[str, Place] = {INPUT: (0.0, 0.0)}
    for row in sorted(rows, key=lambda row: not row["on critical path"]):
        column = depth[row["step"]]
        first = 0 if row["on critical path"] else 1
        height = max(first, taken.get(column, 0))
        taken[column] = height + 1
        places[row["step"]] = (float(column), float(height))
    return places


def _box(axes: Axes, place: Place, name: str, operations: str, *, filled: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = place
    axes.add_patch(
        FancyBboxPatch(
            (x - HALF_WIDTH, y - HALF_HEIGHT), 2 * HALF_WIDTH, 2 * HALF_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.06", linewidth=0.6, edgecolor=BLACK,
            facecolor=SKY if filled else "white", zorder=2,
        )
    )  # fmt: skip
    axes.text(x, y + 0.09, name, ha="center", va="center", fontsize=SMALL - 1, zorder=3)
    axes.text(x, y - 0.23, operations, ha="center", va="center", fontsize=SMALL - 2, zorder=3)


def _arrow(axes: Axes, start: Place, end: Place) -> None:
    """Straight along a row; up from the input, down into what waits; an arc over a row's boxes."""
    (x0, y0), (x1, y1) = start, end
    right, left = (x0 + HALF_WIDTH, y0), (x1 - HALF_WIDTH, y1)
    top, onto = (x0, y0 + HALF_HEIGHT), (x1, y1 + HALF_HEIGHT)
    if y0 < y1:
        ends, style = (top, left), "angle,angleA=90,angleB=0"
    elif y0 > y1:
        ends, style = (right, onto), "angle,angleA=0,angleB=90"
    elif x1 - x0 > 1:
        ends, style = (top, onto), "arc3,rad=-0.25"
    else:
        ends, style = (right, left), "arc3"
    axes.annotate(
        "", ends[1], ends[0],
        arrowprops={
            "arrowstyle": "-|>", "linewidth": 0.7, "color": BLACK, "shrinkA": 0, "shrinkB": 0,
            "mutation_scale": 6, "connectionstyle": style,
        },
    )  # fmt: skip


DRAWINGS = dict.fromkeys(("2", "3", "4", "5", "6"), draw_sublayer)
