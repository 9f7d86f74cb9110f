"""002's sublayers drawn as steps from left to right, each behind what it waits for."""

from typing import Any

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots import style
from attnprof.render.plots.documents import Drawings, Place, Rows, draw_arrow, draw_box
from attnprof.render.plots.style import Axes, Figure

DRAWINGS = Drawings()
#: Half a box, where steps are one apart in both directions.
HALF = HALF_WIDTH, HALF_HEIGHT = 0.42, 0.33
#: Columns on a page's width, and an inch's share of a row.
COLUMNS, ROW = 9, 0.62
INPUT = "input row"


@DRAWINGS.draws("2", "3", "4", "5", "6", height=ROW)
def draw_sublayer(figure: Figure, data: FigureData) -> str:
    """One box a step, the critical path filled."""
    places = _places(data.rows)
    columns, rows = (max(place[axis] for place in places.values()) + 1 for axis in (0, 1))
    width = max(3.2, style.PAGE_WIDTH * columns / COLUMNS)
    figure.set_size_inches(width, 0.45 + ROW * rows)
    axes = figure.subplots()
    for row in data.rows:
        for other in row["waits for"].split(" + "):
            _arrow(axes, places[other], places[row["step"]])
    _box(axes, places[INPUT], "input", "row $t$", filled=False)
    for row in data.rows:
        name = "mapped rows" if row["step"] == "input" else row["step"]
        words = name.replace(" ", "\n"), row["operations"].replace(";", " · ")
        _box(axes, places[row["step"]], *words, filled=row["on critical path"])
    axes.set(xlim=(-0.5, width * COLUMNS / style.PAGE_WIDTH - 0.5), ylim=(-0.5, rows - 0.5))
    axes.axis("off")
    steps = data.facts["its steps"]
    return f"Blue: the critical path, {steps} dependent operations."


def _places(rows: Rows) -> dict[str, Place]:
    """A column behind all a step waits for; the critical path below, other steps above it."""
    depth = {INPUT: 0}
    for row in rows:
        depth[row["step"]] = 1 + max(depth[name] for name in row["waits for"].split(" + "))
    taken: dict[int, int] = {}
    places: dict[str, Place] = {INPUT: (0.0, 0.0)}
    for row in sorted(rows, key=lambda row: not row["on critical path"]):
        column = depth[row["step"]]
        height = max(0 if row["on critical path"] else 1, taken.get(column, 0))
        taken[column] = height + 1
        places[row["step"]] = (float(column), float(height))
    return places


def _box(axes: Axes, place: Place, name: str, operations: str, *, filled: bool) -> None:
    draw_box(axes, place, HALF, 0.06, facecolor=style.SKY if filled else "white")
    (x, y), small = place, style.SMALL
    centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 3}
    axes.text(x, y + 0.09, name, fontsize=small - 1, **centred)
    axes.text(x, y - 0.23, operations, fontsize=small - 2, **centred)


def _arrow(axes: Axes, start: Place, end: Place) -> None:
    """Straight along a row; up from the input, down into what waits; an arc over a row's boxes."""
    (x0, y0), (x1, y1) = start, end
    right, left = (x0 + HALF_WIDTH, y0), (x1 - HALF_WIDTH, y1)
    top, onto = (x0, y0 + HALF_HEIGHT), (x1, y1 + HALF_HEIGHT)
    if y0 < y1:
        draw_arrow(axes, top, left, "angle,angleA=90,angleB=0")
    elif y0 > y1:
        draw_arrow(axes, right, onto, "angle,angleA=0,angleB=90")
    elif x1 - x0 > 1:
        draw_arrow(axes, top, onto, "arc3,rad=-0.25")
    else:
        draw_arrow(axes, right, left, "arc3")
