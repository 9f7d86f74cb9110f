"""Mechanisms as diagrams of blocks, a panel each: inputs below, the output on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.style import (
    BLACK,
    GREEN,
    NORMAL,
    ORANGE,
    PAGE_WIDTH,
    SKY,
    SMALL,
    caption,
    label_panels,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Where inputs stand, and what comes out where two branches meet.
INPUTS = {"Q": 0.0, "K": 1.0, "V": 2.0}
JOINED = {"Q K": "scores", "scores V": "heads"}
#: Blocks with weights are filled; all others are outlined.
FILLS = {"Linear": SKY, "Linear*": ORANGE, "Slice": "white", "MatMul": GREEN}
#: Half a block's width and height, where a column is one wide and a level one high.
HALF_WIDTH, HALF_HEIGHT = 0.42, 0.3
#: How far beside a block another may stand and still be joined by a straight arrow, halved.
ASIDE = 0.3

Place = tuple[float, float]


def draw_diagram(data: FigureData) -> Figure:
    """One panel a mechanism, from rows of ``block``, what it works ``on``, and its ``map``."""
    names = list(dict.fromkeys(row["mechanism"] for row in data.rows))
    figure = new_figure(PAGE_WIDTH, 3.6)
    panels = list(figure.subplots(1, len(names), sharey=True))
    label_panels(panels)
    for axes, name in zip(panels, names, strict=True):
        top = _panel(axes, [row for row in data.rows if row["mechanism"] == name])
        axes.set_title(name, fontsize=NORMAL)
        axes.set_xlim(-0.55, 2.55)
        axes.set_ylim(-0.5, max(axes.get_ylim()[1], top + 0.5))
        axes.axis("off")
    caption(
        figure,
        "Linear: a map applied from the right, to a token's features. Linear*: a map applied from "
        "the left, over tokens.",
    )
    return figure


def _panel(axes: Axes, rows: Sequence[Mapping[str, str]]) -> float:
    """Draw one mechanism; gives the height of its output."""
    ends: dict[str, Place] = {name: (x, 0.0) for name, x in INPUTS.items()}
    for name, (x, y) in ends.items():
        axes.text(x, y, f"${name}$", ha="center", va="center", fontsize=NORMAL)
    for row in rows:
        below = [ends[name] for name in row["on"].split()]
        place = sum(x for x, _ in below) / len(below), max(y for _, y in below) + 1
        for start in below:
            _arrow(axes, start, place)
        _block(axes, place, row)
        ends[JOINED.get(row["on"], row["on"])] = place
    x, y = place
    _arrow(axes, place, (x, y + 1))
    axes.text(x, y + 1, "$O$", ha="center", va="center", fontsize=NORMAL)
    return y + 1


def _block(axes: Axes, place: Place, row: Mapping[str, str]) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = place
    axes.add_patch(
        FancyBboxPatch(
            (x - HALF_WIDTH, y - HALF_HEIGHT), 2 * HALF_WIDTH, 2 * HALF_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.08", linewidth=0.6, edgecolor=BLACK,
            facecolor=FILLS.get(row["block"], "0.93"), alpha=0.85, zorder=2,
        )
    )  # fmt: skip
    axes.text(x, y, row["block"], ha="center", va="center", fontsize=SMALL - 0.5, zorder=3)


def _arrow(axes: Axes, start: Place, end: Place) -> None:
    """From the top of one block to the other's bottom; from far away up first, then to its side."""
    (x0, y0), (x1, y1) = start, end
    far = abs(x0 - x1) > 2 * ASIDE
    if far:
        target = (x1 + (HALF_WIDTH if x0 > x1 else -HALF_WIDTH), y1)
    else:
        target = (x1 + (ASIDE * (x0 - x1) / HALF_WIDTH / 2), y1 - HALF_HEIGHT)
    style = {"connectionstyle": "angle,angleA=90,angleB=0"} if far else {}
    axes.annotate(
        "", target, (x0, y0 + HALF_HEIGHT),
        arrowprops={
            "arrowstyle": "-|>", "linewidth": 0.7, "color": BLACK, "shrinkA": 0, "shrinkB": 0,
            "mutation_scale": 6, **style,
        },
    )  # fmt: skip
