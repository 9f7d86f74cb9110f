"""000: what the text says of its own definitions, in Sections 3.1 to 3.3."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from attnprof import registry
from attnprof.papers.checks import Check, formula, same_formula

#: Equations of one head as printed, letters for matrices; K and V are already a head's slices.
EQ14, EQ15, EQ16 = "S*V", "Q_head*K/sqrt(d_k)", "Q*W_Q"
EQ17 = {"inside softmax": "Q*W_Q*K/d_m", "after softmax": "V*W_O"}


def combined() -> dict[str, str]:
    """Equations 14 to 16 in one: what stands inside the softmax, and what follows it."""
    scores = formula(EQ15).subs(formula("Q_head"), formula(EQ16))
    return {
        "inside softmax": str(scores),
        "after softmax": str(formula(EQ14) / formula("S")),
    }


@cache
def reachable(width: int, heads: int, slicing: bool) -> int:
    """How many independent directions a layer's maps from V to its heads' parts of O have.

    A head applies B_i to V after mixing by S_i, and the B_i are all that weights can choose:
    W_i^V W_i^O, where slicing has columns of the identity for W_i^V. The rank of their
    derivatives by the weights, at weights of small whole numbers.
    """
    return sum(_head_directions(width, width // heads, i, slicing) for i in range(heads))


def _head_directions(width: int, head: int, i: int, slicing: bool) -> int:
    """The same of one head."""
    eye = np.eye(width)
    generator = np.random.default_rng(i)
    drawn = generator.integers(-9, 10, (2, width, head)).astype(float)
    left = eye[:, i * head : (i + 1) * head] if slicing else drawn[0]
    right = drawn[1].T
    by_right = np.einsum("ij,kb->jkib", left, eye).reshape(-1, width * width)
    by_left = np.einsum("ia,jk->aijk", eye, right).transpose(1, 2, 0, 3).reshape(-1, width * width)
    columns = by_right if slicing else np.concatenate([by_left, by_right])
    return int(np.linalg.matrix_rank(columns))


def same_effect(width: int = 8) -> dict[str, bool]:
    """Whether slicing reaches as many maps as projecting, by head count."""
    return {
        str(heads): reachable(width, heads, True) == reachable(width, heads, False)
        for heads in (1, 2, 4)
    }


def _effect_why(*_: Any) -> str:
    projecting, slicing = reachable(8, 2, False), reachable(8, 2, True)
    return (
        "slices of V are the special case W_i^V = columns of the identity. Both map into d_v "
        "dimensions a head, but a slice cannot choose which of V's columns it sees: with width 8 "
        f"and two heads {slicing} directions instead of {projecting}. Only with one head do they "
        "reach the same"
    )


def conforming_slices(length: int = 6, width: int = 4, heads: int = 2) -> list[str]:
    """The slices of K, rows or columns, for which Eq 15 gives l x l scores."""
    head = width // heads
    queries, keys = np.ones((length, head)), np.ones((length, width))
    slices = {"rows": keys[head : 2 * head], "columns": keys[:, head : 2 * head]}
    return [
        name
        for name, part in slices.items()
        if part.T.shape[0] == queries.shape[1] and (queries @ part.T).shape == (length, length)
    ]


def kernels() -> dict[str, Any]:
    """The map that Optimised leaves out, and the side from which W^K can be applied to K."""
    removed = set(registry.get("standard").projections) - set(registry.get("optimised").projections)
    keys, kernel = np.ones((6, 4)), np.ones((4, 2))  # l x d_m, d_m x d_k
    sides = {"left": (kernel, keys), "right": (keys, kernel)}
    fitting = [side for side, (a, b) in sides.items() if a.shape[1] == b.shape[0]]
    return {
        "removed in Sec 3.1": [f"W^{letter.upper()}" for letter in sorted(removed)],
        "side of W^K": fitting,
    }


CHECKS = [
    Check(
        "000-OPT-EQUIV",
        {"1": True, "2": True, "4": True},
        same_effect,
        how="independent directions of the maps V -> (B_1, ..., B_h) that weights can choose, by "
        "head count: rank of their derivatives at width 8",
        why=_effect_why,
    ),
    Check(
        "000-EQ17-18",
        EQ17,
        combined,
        how="Eq 16 put into Eq 15, and what Eq 14 has after the scores",
        agree=same_formula,
        why="Eq 14 to 16 divide by sqrt(d_k), not by d_m, and have no output map: a head's l x d_v "
        "result meets d_v rows W_i^O in the sum that gives O, not W^O with all its rows. Eq 18 "
        "repeats both",
    ),
    Check(
        "000-DEF3",
        ["rows"],
        conforming_slices,
        how="Eq 15 with both slices of K at l = 6, d_m = 4, h = 2: which one gives l x l scores",
        why="Q_i' is l x d_k and rows of K are d_k x d_m: Q_i' K_i^T does not exist. Columns are "
        "meant, as for V_i in Sec 3.1",
    ),
    Check(
        "000-SEC32",
        {"removed in Sec 3.1": ["W^O"], "side of W^K": ["left"]},
        kernels,
        how="maps of Definition 1 that Definition 2 lacks; shapes of K and W_i^K in Eq 5",
        why="Sec 3.1 removes W^V and keeps W^O (Definition 2); Eq 5 applies W_i^K from the right",
    ),
]
