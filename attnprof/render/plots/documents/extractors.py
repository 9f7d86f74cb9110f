"""Draw document 002's sublayers as boxes from left to right, each right of its inputs.

In a figure of a column's width they go downwards.
"""

from attnprof.papers.regenerated import Values
from attnprof.render.plots import style
from attnprof.render.plots.documents import Rows, draw_arrow, draw_box, drawing
from attnprof.render.plots.style import Axes, Figure, Place

#: Half a box's sides; positions of steps are 1 apart in both directions.
HALF = HALF_WIDTH, HALF_HEIGHT = 0.46, 0.33
#: Boxes on the width of a page and of a column, and an inch's share of a row.
COLUMNS, ABREAST, ROW = 9, 4, 0.62
INPUT = "input row"


def draw_sublayer(figure: Figure, data: Values) -> str:
    """Draw one box a step, the critical path filled."""
    places = _places(data["rows"])
    columns, rows = (max(place[axis] for place in places.values()) + 1 for axis in (0, 1))
    down, axes = style.narrow(), figure.subplots()
    figure.set_figheight(0.45 + ROW * (columns if down else rows))
    for row in data["rows"]:
        for other in row["waits for"].split(" + "):
            _arrow(axes, places[other], places[row["step"]], down=down)
    ends = {name: _turned(place, down=down) for name, place in places.items()}
    _box(axes, ends[INPUT], "input", "row $t$", filled=False)
    for row in data["rows"]:
        name = "mapped rows" if row["step"] == "input" else row["step"]
        words = name.replace(" ", "\n"), row["operations"].replace(";", " · ")
        _box(axes, ends[row["step"]], *words, filled=row["on critical path"])
    if down:
        axes.set(xlim=(-0.5, max(rows, ABREAST) - 0.5), ylim=(0.5 - columns, 0.5))
    else:
        axes.set(xlim=(-0.5, max(columns, COLUMNS) - 0.5), ylim=(-0.5, rows - 0.5))
    axes.axis("off")
    return f"Filled: the critical path, {data['facts']['its steps']} dependent operations."


def _places(rows: Rows) -> dict[str, Place]:
    """Return each step's position: right of all its inputs, the critical path in the lowest row."""
    depth = {INPUT: 0}
    for row in rows:
        depth[row["step"]] = 1 + max(depth[name] for name in row["waits for"].split(" + "))
    heights: dict[int, int] = {}
    places: dict[str, Place] = {INPUT: (0.0, 0.0)}
    for row in sorted(rows, key=lambda row: not row["on critical path"]):
        column = depth[row["step"]]
        height = max(0 if row["on critical path"] else 1, heights.get(column, 0))
        heights[column] = height + 1
        places[row["step"]] = (float(column), float(height))
    return places


def _box(axes: Axes, place: Place, name: str, operations: str, *, filled: bool) -> None:
    draw_box(axes, place, HALF, 0.06, facecolor=style.SKY if filled else "white")
    for text, shift in ((name, 0.09), (operations, -0.23)):
        axes.text(place[0], place[1] + shift, text, fontsize=style.SMALL, zorder=3, **style.CENTRED)


def _turned(place: Place, *, down: bool) -> Place:
    """Return a position turned by a quarter, if steps go downwards."""
    return (place[1], -place[0]) if down else place


def _arrow(axes: Axes, start: Place, end: Place, *, down: bool) -> None:
    """Draw an arrow: straight along a row, up or down between rows, an arc over a row's boxes."""
    (x0, y0), (x1, y1) = start, end
    ahead, aside = (HALF_HEIGHT, HALF_WIDTH) if down else HALF
    angles = "angle,angleA={},angleB={}"
    right, left = (x0 + ahead, y0), (x1 - ahead, y1)
    top, onto = (x0, y0 + aside), (x1, y1 + aside)
    if y0 < y1:
        path = top, left, angles.format(90 - 90 * down, -90 * down)
    elif y0 > y1:
        path = right, onto, angles.format(-90 * down, 90 - 90 * down)
    elif x1 - x0 > 1:
        path = top, onto, "arc3,rad=-0.25"
    else:
        path = right, left, "arc3"
    draw_arrow(axes, _turned(path[0], down=down), _turned(path[1], down=down), path[2])


DRAWINGS = dict.fromkeys("23456", drawing(ROW, draw_sublayer))
