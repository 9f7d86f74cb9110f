"""001's figures that need no training, and its tables, made again.

Figures are both surfaces, the tensor C and the matrix A. Tables have computed sizes and gains, and
the least memory and time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attnprof.papers.neural_attention import checks
from attnprof.papers.neural_attention.checks import MILLION, graph_dimensions, model_size, name_of
from attnprof.papers.regenerated import Computed, Row, Statement, figures_of, tables_of

#: Figure 1: points a side of the square [-1, 1]², and neurons of the hidden layer.
POINTS, NEURONS = 61, 16
#: Figures 2, 3, 7 and 8: tokens and d'.
TOKENS, REDUCED = 3, 2
SEED = 8


@dataclass(frozen=True)
class Scorer:
    """Eq 4 with ReLU: w_a^T relu(W_h c + b_h) + b_a."""

    hidden_weight: Any
    hidden_bias: Any
    score_weight: Any
    score_bias: Any

    def __call__(self, pairs: Any) -> Any:
        """Return scores of pairs, the last axis being [q, k]."""
        hidden = np.maximum(pairs @ self.hidden_weight.T + self.hidden_bias, 0)
        return hidden @ self.score_weight + self.score_bias


def drawn_scorer(inputs: int, neurons: int) -> Scorer:
    """Return a scorer before training, with weights from a normal distribution."""
    rng = np.random.default_rng(SEED)
    return Scorer(
        2 * rng.standard_normal((neurons, inputs)), rng.standard_normal(neurons),
        rng.standard_normal(neurons) / neurons**0.5, rng.standard_normal(),
    )  # fmt: skip


def surfaces() -> Computed:
    """Return Figure 1: scores of q = k = (x, y) by the dot product, and by a random network."""
    side = np.linspace(-1, 1, POINTS)
    x, y = np.meshgrid(side, side, indexing="ij")
    vectors = np.stack([x, y], -1)
    dot = (vectors * vectors).sum(-1)
    neural = drawn_scorer(4, NEURONS)(np.concatenate([vectors, vectors], -1))
    step = side[1] - side[0]
    bend = np.diff(dot, 2, 0) / step**2
    kinks = np.abs(np.diff(neural, 2, 0)) > 1e-9
    rows = [
        {"x": float(a), "y": float(b), "dot_product": float(c), "neural": float(d)}
        for a, b, c, d in zip(x.flat, y.flat, dot.flat, neural.flat, strict=True)
    ]
    dimensions = graph_dimensions()
    said: list[Statement] = [
        ("paraboloid", np.allclose(bend, 2), {"least": bend.min(), "most": bend.max()}),
        ("edges", 0 < kinks.mean() < 1, {"share": kinks.mean()}),
        ("manifolds", dimensions["graph"] == 3, dimensions),
    ]
    return rows, said, {"points": POINTS, "neurons": NEURONS}


def pair_tensor() -> Computed:
    """Return Figures 2 and 3: the place of each value of Q' and K' in C."""
    tokens, columns = range(1, TOKENS + 1), range(1, 2 * REDUCED + 1)
    rows = [
        {"i": i, "j": j, "k": k, "holds": f"q{i}{k}" if k <= REDUCED else f"k{j}{k - REDUCED}"}
        for i, j, k in product(tokens, tokens, columns)
    ]
    copies = Counter(row["holds"] for row in rows)
    gaps = {"n": TOKENS, "twice": 2 * REDUCED, "values": len(rows)}
    copied = {"n": TOKENS, "values": len(copies), "times": max(copies.values())}
    said: list[Statement] = [
        ("shape", len(rows) == TOKENS**2 * 2 * REDUCED, gaps),
        ("copies", set(copies.values()) == {TOKENS}, copied),
    ]
    return rows, said, {"tokens": TOKENS, "reduced": REDUCED}


def operands() -> tuple[Any, Any]:
    """Return Q' and K' of Figures 7 and 8, from a normal distribution."""
    rng = np.random.default_rng(SEED + 1)
    return rng.standard_normal((TOKENS, REDUCED)), rng.standard_normal((TOKENS, REDUCED))


def score_matrix() -> Computed:
    """Return Figures 7 and 8: C through the network, pair by pair."""
    q, k = operands()
    scorer = drawn_scorer(2 * REDUCED, 4 * REDUCED)
    rows = [
        {"i": i + 1, "j": j + 1, "score": float(scorer(np.concatenate([q[i], k[j]])))}
        for i, j in product(range(TOKENS), repeat=2)
    ]
    pairs = [np.broadcast_to(x, (TOKENS, TOKENS, REDUCED)) for x in (q[:, None], k[None])]
    whole = scorer(np.concatenate(pairs, -1))
    same = np.allclose(whole.flat, [row["score"] for row in rows])
    shape = {"n": TOKENS, "shape": " x ".join(map(str, whole.shape))}
    square = whole.shape == (TOKENS, TOKENS)
    said: list[Statement] = [("scores", square, shape), ("shared", same, {})]
    return rows, said, {"tokens": TOKENS}


FIGURES = figures_of("001", {
    "1": ("Scores of q = k = (x, y)", surfaces), "3": ("The tensor C of Eq 7", pair_tensor),
    "8": ("The matrix A of Eq 9", score_matrix),
})  # fmt: skip


SIZE = "model size (M)"


def _bounds(task: str) -> dict[str, Callable[[Row], float]]:
    """Return the least memory, in 16 bits, and time of a task's rows."""
    return {
        "memory (GB/batch)": lambda row: checks.least_memory(task, name_of(row)) / 2,
        "inference speed (ms/sample)": lambda row: checks.least_time(task, name_of(row)),
    }


TABLES = tables_of(
    "001",
    {
        "1": {SIZE: lambda row: model_size("lm", name_of(row)) / MILLION},
        "2": {"improvement (%)": lambda row: checks.reduction(name_of(row))},
        "3": {SIZE: lambda row: model_size("cifar10", name_of(row)) / MILLION},
        "4": {SIZE: lambda row: model_size("cifar100", name_of(row)) / MILLION},
        "5": {"improvement (points)": lambda row: checks.gain(row["dataset"])},
        "6": _bounds("nlp"),
        "7": _bounds("vision"),
        "8": _bounds("vision"),
    },
)
