"""The documents' figures drawn from our data: a module a document, named like its folder in papers.

Each has ``DRAWINGS: dict[str, Callable[[FigureData], Figure]]``, keyed like the ``FIGURES`` there;
a drawing is called in the house style and gives a matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attnprof.errors import CannotRunError
from attnprof.papers.documents import document
from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.style import figure_bytes, plot, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawings(number: str) -> dict[str, Callable[[FigureData], Figure]]:
    """How a document's figures are drawn, by figure; empty where nobody wrote that."""
    place = f"attnprof.render.plots.documents.{document(number).folder}"
    found: dict[str, Callable[[FigureData], Figure]] = {}
    if find_spec(place):
        found.update(import_module(place).DRAWINGS)
    return found


def plot_figure(number: str, name: str, data: FigureData, path: str | Path) -> None:
    """Draw a document's figure; PNG, SVG or PDF by the suffix.

    Raises :class:`attnprof.errors.RequestError` for another suffix or an unwritable path,
    :class:`CannotRunError` where the figure has data and no drawing.
    """
    draw = drawings(number).get(name)
    if draw is None:
        raise CannotRunError(f"{number}: figure {name} has data and no drawing")
    plot(path, draw, data)


def picture(number: str, name: str, data: FigureData) -> bytes | None:
    """A document's figure as PNG; None where it has no drawing."""
    draw = drawings(number).get(name)
    if draw is None:
        return None
    with styled():
        return figure_bytes(draw(data))
