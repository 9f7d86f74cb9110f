"""000: what the text says of its own definitions in Sections 3.1 to 3.3, and Remarks 1 to 3."""

from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import sympy

from attnprof import registry
from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import LENGTH, WIDTH, products, value, weights
from attnprof.papers.checks import Check, Checks, formula

#: Equations of one head as printed, letters for matrices; K and V are already a head's slices.
EQ14, EQ15, EQ16 = "S*V", "Q_head*K/sqrt(d_k)", "Q*W_Q"
EQ17 = {"inside softmax": "Q*W_Q*K/d_m", "after softmax": "V*W_O"}
SAVED = "parameters without biases and products a head of Definitions 1 to 4, one less the other"


def saved(mechanism: str) -> dict[str, Any]:
    """What a mechanism has less than standard attention."""
    return {
        "parameters": str(weights("standard") - weights(mechanism)),
        "products": str(products("standard") - products(mechanism)),
    }


@cache
def reachable(width: int, heads: int, slicing: bool) -> int:
    """How many independent directions a layer's maps from V to its heads' parts of O have.

    A head applies B_i to V after mixing by S_i, and the B_i are all that weights can choose:
    W_i^V W_i^O, where slicing has columns of the identity for W_i^V. The rank of their
    derivatives by the weights, at weights of small whole numbers.
    """
    head, eye, directions = width // heads, np.eye(width), 0
    for i in range(heads):
        drawn = np.random.default_rng(i).integers(-9, 10, (2, width, head)).astype(float)
        left = eye[:, i * head : (i + 1) * head] if slicing else drawn[0]
        by_right = np.einsum("ij,kb->jkib", left, eye).reshape(-1, width * width)
        by_left = np.einsum("ia,kj->ijak", eye, drawn[1]).reshape(-1, width * width)
        columns = by_right if slicing else np.concatenate([by_left, by_right])
        directions += int(np.linalg.matrix_rank(columns))
    return directions


CHECKS = Checks([
    *(
        Check(claim, printed, partial(saved, mechanism), how=SAVED)
        for claim, mechanism, printed in (
            ("000-REM1", "optimised", {"parameters": "d_m**2", "products": "h"}),
            ("000-REM2", "efficient", {"parameters": "2*d_m**2", "products": "2*h"}),
        )
    ),
    Check(
        "000-OPT-EQUIV",
        {"1": True, "2": True, "4": True},
        lambda: {str(h): reachable(8, h, True) == reachable(8, h, False) for h in (1, 2, 4)},
        how="independent directions of the maps V -> (B_1, ..., B_h) that weights can choose, by "
        "head count: rank of their derivatives at width 8",
        why=lambda *_: (
            "slices of V are the special case W_i^V = columns of the identity. Both map into d_v "
            "dimensions a head, but a slice cannot choose which of V's columns it sees: with width "
            f"8 and two heads {reachable(8, 2, True)} directions instead of "
            f"{reachable(8, 2, False)}. Only with one head do they reach the same"
        ),
    ),
    Check(
        "000-EQ17-18",
        EQ17,
        lambda: {
            "inside softmax": str(formula(EQ15).subs(formula("Q_head"), formula(EQ16))),
            "after softmax": str(formula(EQ14) / formula("S")),
        },
        how="Eq 16 put into Eq 15, and what Eq 14 has after the scores",
        why="Eq 14 to 16 divide by sqrt(d_k), not by d_m, and have no output map: a head's l x d_v "
        "result meets d_v rows W_i^O in the sum that gives O, not W^O with all its rows. Eq 18 "
        "repeats both",
    ),
])  # fmt: skip


@CHECKS.answers(
    "000-DEF3",
    ["rows"],
    how="Eq 15 with both slices of K at l = 6, d_m = 4, h = 2: which one gives l x l scores",
    why="Q_i' is l x d_k and rows of K are d_k x d_m: Q_i' K_i^T does not exist. Columns are "
    "meant, as for V_i in Sec 3.1",
)
def _conforming_slices() -> list[str]:
    length, width, head = 6, 4, 2
    queries, keys = np.ones((length, head)), np.ones((length, width))
    slices = {"rows": keys[head : 2 * head], "columns": keys[:, head : 2 * head]}
    return [
        name
        for name, part in slices.items()
        if part.T.shape[0] == queries.shape[1] and (queries @ part.T).shape == (length, length)
    ]


@CHECKS.answers(
    "000-SEC32",
    {"removed in Sec 3.1": ["W^O"], "side of W^K": ["left"]},
    how="maps of Definition 1 that Definition 2 lacks; shapes of K and W_i^K in Eq 5",
    why="Sec 3.1 removes W^V and keeps W^O (Definition 2); Eq 5 applies W_i^K from the right",
)
def _kernels() -> dict[str, Any]:
    removed = set(registry.get("standard").projections) - set(registry.get("optimised").projections)
    keys, kernel = np.ones((6, 4)), np.ones((4, 2))  # l x d_m, d_m x d_k
    sides = {"left": (kernel, keys), "right": (keys, kernel)}
    return {
        "removed in Sec 3.1": [f"W^{letter.upper()}" for letter in sorted(removed)],
        "side of W^K": [side for side, (a, b) in sides.items() if a.shape[1] == b.shape[0]],
    }


@CHECKS.answers(
    "000-REM3",
    {"parameters": "2*d_m**2 - l**2", "products": "h", "d_m^2 or more while l <= d_m": True},
    how=f"{SAVED}; the rest over d_m^2 has no negative term in l and d_m - l",
)
def _super() -> dict[str, Any]:
    slack = sympy.Symbol("slack", nonnegative=True)
    beyond = sympy.expand(weights("standard") - weights("super") - WIDTH**2)
    written = sympy.Poly(beyond.subs(WIDTH, LENGTH + slack), LENGTH, slack)
    return {**saved("super"), "d_m^2 or more while l <= d_m": bool(min(written.coeffs()) >= 0)}


def _share_why(_: Any, ours: Any) -> str:
    full, own = (int(value("6", "params", name, h="8")) for name in ("standard", "super"))
    width = values.EXPERIMENTS["CIFAR100"].d_model
    return (
        f"{full:,} - {own:,} = {full - own:,} is {float(Fraction(ours)):.2%} of {full:,}; a "
        f"quarter is {full // 4:,}. The layer mixes {values.implied_seq_len(own, width)} tokens, "
        f"more than d_m = {width}, so Remark 3 does not hold for it"
    )


@CHECKS.answers(
    "000-REM3-CIFAR",
    "1/4",
    how="Table 6: one less Super's parameters over those of standard attention",
    why=_share_why,
)
def _share_saved() -> str:
    full, own = (int(value("6", "params", name, h="8")) for name in ("standard", "super"))
    return str(1 - Fraction(own, full))
