"""001's figures: both surfaces of scores, the tensor C, the matrix A."""

from typing import Any

from attnprof.papers.regenerated import Values
from attnprof.render.plots import style
from attnprof.render.plots.documents import drawing, of
from attnprof.render.plots.style import Figure

COLOURS_OF = {"q": style.ORANGE, "k": style.SKY}


def draw_surfaces(figure: Figure, data: Values) -> str:
    """Draw the dot product's paraboloid, and a network's folded sheet."""
    import numpy as np

    side = data["facts"]["points"]
    titles = {"dot_product": "dot product", "neural": "Neural Attention"}
    panels: list[Any] = style.split(figure, 2, subplot_kw={"projection": "3d"})
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        keys = ("x", "y", name)
        x, y, z = (np.array([row[k] for row in data["rows"]]).reshape(side, side) for k in keys)
        axes.plot_surface(x, y, z, cmap="viridis", linewidth=0, rcount=side, ccount=side)
        ends = [-1, 0, 1]
        axes.set(title=title, xlabel="x", ylabel="y", xticks=ends, yticks=ends)
        axes.set_zlabel("score z", labelpad=1)
        axes.tick_params(pad=0)
        axes.set_box_aspect(None, zoom=0.88)
    return (
        "Scores of a query and a key that are both (x, y). Neural Attention: one hidden layer of "
        f"{data['facts']['neurons']} ReLU neurons with random weights, not a trained one."
    )


def draw_tensor(figure: Figure, data: Values) -> str:
    """Draw a panel for each k: the entries of C at i, j."""
    tokens, depth = data["facts"]["tokens"], 2 * data["facts"]["reduced"]
    panels = style.split(figure, depth, 1.6)
    ticks = [index + 0.5 for index in range(tokens)]
    names = [str(index + 1) for index in range(tokens)]
    for place, axes in enumerate(panels, 1):
        for row in of(data["rows"], k=place):
            left, top, letter = row["j"] - 1, row["i"] - 1, row["holds"][0]
            corners = [left + x for x in (0, 1, 1, 0)], [top + y for y in (0, 0, 1, 1)]
            axes.fill(*corners, facecolor=COLOURS_OF[letter], edgecolor="white")
            axes.text(left + 0.5, top + 0.5, f"${letter}_{{{row['holds'][1:]}}}$", **style.CENTRED)
        axes.set_xticks(ticks, names)
        axes.set_yticks(ticks, names)
        axes.set(xlim=(0, tokens), ylim=(tokens, 0), aspect="equal", xlabel="j")
        axes.set_title(f"k = {place}")
    panels[0].set_ylabel("i")
    return "C at i, j, k: Q' (orange) is copied along j, K' (blue) along i."


def draw_matrix(figure: Figure, data: Values) -> str:
    """Draw the scores of all pairs."""
    import numpy as np

    tokens = data["facts"]["tokens"]
    scores = np.array([row["score"] for row in data["rows"]]).reshape(tokens, tokens)
    axes = figure.subplots()
    axes.imshow(scores, cmap="Blues", vmax=2 * scores.max() - scores.min())
    for row in data["rows"]:
        axes.text(row["j"] - 1, row["i"] - 1, f"{row['score']:.2f}", **style.CENTRED)
    names = [str(index + 1) for index in range(tokens)]
    axes.set_xticks(range(tokens), names)
    axes.set_yticks(range(tokens), names)
    axes.set(xlabel="j", ylabel="i")
    return "Scores A of all pairs: random Q', K' and weights, one hidden layer."


DRAWINGS = {
    "1": drawing(2.9, draw_surfaces), "3": drawing(2.2, draw_tensor),
    "8": drawing(2.8, draw_matrix),
}  # fmt: skip
