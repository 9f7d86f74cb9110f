"""Draw the documents' figures from our data: a module a document, named like its folder in papers.

Each has ``DRAWINGS``, keyed like the ``FIGURES`` there; a drawing is called in the house style and
returns a matplotlib figure. :func:`plot_figure` writes a figure, :func:`picture` gives it a page.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.papers.documents import document
from attnprof.papers.regenerated import Values
from attnprof.render.plots import style
from attnprof.render.plots.style import Axes, Figure, Place

Rows = Sequence[Mapping[str, Any]]
Drawing = Callable[[Values], Figure]


def drawing(height: float, fill: Callable[[Figure, Values], str]) -> Drawing:
    """Return a drawing so many inches high: ``fill`` fills the figure and returns its caption."""

    def draw(data: Values) -> Figure:
        figure = style.new_figure(height)
        style.caption(figure, fill(figure, data))
        return figure

    return draw


def drawings(number: str) -> dict[str, Drawing]:
    """Return the drawings of a document; empty if it has no module."""
    place = f"{__name__}.{document(number).folder}"
    return dict(import_module(place).DRAWINGS) if find_spec(place) else {}


def plot_figure(number: str, data: Values, path: str | Path, size: str = "page") -> None:
    """Draw a document's figure; PNG, SVG or PDF by the suffix.

    Raises :class:`attnprof.errors.RequestError` for another suffix or an unwritable path,
    :class:`CannotRunError` where the figure has data and no drawing.
    """
    draw = drawings(number).get(data["name"])
    if draw is None:
        raise CannotRunError(f"{number}: figure {data['name']} has data and no drawing")
    style.plot(path, draw, data, size=size)


def picture(number: str, data: Values) -> str | None:
    """Return a document's figure as an element of a page; None if it has no drawing."""
    draw = drawings(number).get(data["name"])
    return draw and style.inline_figure(draw, data, name=f"f{number}-{data['name']}")


def curve(
    rows: Rows, field: str, unit: float = 1, axis: str = "seq_len"
) -> tuple[list[Any], list[float]]:
    """Return the axis' values and the field's, in this unit, of rows that have the field."""
    points = [(row[axis], row[field] / unit) for row in rows if row[field] is not None]
    return [x for x, _ in points], [y for _, y in points]


def of(rows: Rows, **values: Any) -> Rows:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def draw_box(axes: Axes, place: Place, half: Place, rounding: float, **look: Any) -> None:
    """Draw a box around a centre, of this half width and height."""
    from matplotlib.patches import FancyBboxPatch

    (x, y), (width, height) = place, half
    look |= {"zorder": 2, "linewidth": 0.6, "edgecolor": style.BLACK,
             "boxstyle": f"round,pad=0,rounding_size={rounding}"}  # fmt: skip
    axes.add_patch(FancyBboxPatch((x - width, y - height), 2 * width, 2 * height, **look))


def draw_arrow(axes: Axes, start: Place, end: Place, connection: str) -> None:
    """Draw an arrow whose line takes matplotlib's connection style."""
    look = {
        "arrowstyle": "-|>", "linewidth": 0.7, "color": style.BLACK, "shrinkA": 0, "shrinkB": 0,
        "mutation_scale": 6, "connectionstyle": connection,
    }  # fmt: skip
    axes.annotate("", end, start, arrowprops=look)
