"""001's figures: both surfaces of scores, the tensor C, the matrix A."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnprof.papers.regenerated import FigureData
from attnprof.render.plots.style import (
    ORANGE,
    PAGE_WIDTH,
    SKY,
    SMALL,
    caption,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS_OF = {"q": ORANGE, "k": SKY}


def draw_surfaces(data: FigureData) -> Figure:
    """The dot product's paraboloid, and a network's folded sheet."""
    import numpy as np

    figure = new_figure(PAGE_WIDTH, 3.4)
    side = data.facts["points"]
    panels = [figure.add_subplot(1, 2, place, projection="3d") for place in (1, 2)]
    titles = {"dot_product": "dot product", "neural": "Neural Attention"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        x, y, z = (
            np.array([row[key] for row in data.rows]).reshape(side, side)
            for key in ("x", "y", name)
        )
        axes.plot_surface(x, y, z, cmap="viridis", linewidth=0, rcount=side, ccount=side)
        axes.set_title(title)
        axes.set_xlabel("x")
        axes.set_ylabel("y")
        axes.set_zlabel("score z", labelpad=1)
        axes.tick_params(labelsize=SMALL - 1, pad=0)
        axes.set_box_aspect(None, zoom=0.88)
        axes.set_xticks([-1, 0, 1])
        axes.set_yticks([-1, 0, 1])
    caption(
        figure,
        "Scores of a query and a key that are both (x, y). Right: one hidden layer of "
        f"{data.facts['neurons']} ReLU neurons with random weights, not a trained one.",
    )
    return figure


def draw_tensor(data: FigureData) -> Figure:
    """A panel for each k: what C holds at i, j."""
    tokens, depth = data.facts["tokens"], 2 * data.facts["reduced"]
    figure = new_figure(PAGE_WIDTH, 2.4)
    panels = figure.subplots(1, depth)
    for place, axes in enumerate(panels, 1):
        for row in data.rows:
            if row["k"] != place:
                continue
            corner = (row["j"] - 1, row["i"] - 1)
            shade = COLOURS_OF[row["holds"][0]]
            axes.fill(
                [corner[0] + x for x in (0, 1, 1, 0)], [corner[1] + y for y in (0, 0, 1, 1)],
                facecolor=shade, edgecolor="white",
            )  # fmt: skip
            letter, index = row["holds"][0], row["holds"][1:]
            axes.text(corner[0] + 0.5, corner[1] + 0.5, f"${letter}_{{{index}}}$",
                      ha="center", va="center")  # fmt: skip
        ticks = [index + 0.5 for index in range(tokens)]
        names = [str(index + 1) for index in range(tokens)]
        axes.set_xticks(ticks, names)
        axes.set_yticks(ticks, names)
        axes.set_xlim(0, tokens)
        axes.set_ylim(tokens, 0)
        axes.set_aspect("equal")
        axes.set_xlabel("j")
        axes.set_title(f"k = {place}")
    panels[0].set_ylabel("i")
    caption(figure, "C at i, j, k: Q' (orange) is copied along j, K' (blue) along i.")
    return figure


def draw_matrix(data: FigureData) -> Figure:
    """The scores of all pairs."""
    import numpy as np

    tokens = data.facts["tokens"]
    scores = np.array([row["score"] for row in data.rows]).reshape(tokens, tokens)
    figure = new_figure(PAGE_WIDTH * 0.4, 2.8)
    axes = figure.subplots()
    axes.imshow(scores, cmap="Blues", vmax=2 * scores.max() - scores.min())
    for row in data.rows:
        axes.text(row["j"] - 1, row["i"] - 1, f"{row['score']:.2f}", ha="center", va="center")
    names = [str(index + 1) for index in range(tokens)]
    axes.set_xticks(range(tokens), names)
    axes.set_yticks(range(tokens), names)
    axes.set_xlabel("j")
    axes.set_ylabel("i")
    caption(figure, "Scores A of all pairs: random Q', K' and weights, one hidden layer.")
    return figure


DRAWINGS: dict[str, Callable[[FigureData], Figure]] = {
    "1": draw_surfaces,
    "3": draw_tensor,
    "8": draw_matrix,
}
