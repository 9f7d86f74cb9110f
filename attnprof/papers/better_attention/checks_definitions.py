"""000: what the text says of its own definitions in Sections 3.1 to 3.3, and Remarks 1 to 3."""

from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import sympy

from attnprof import registry
from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import LENGTH, WIDTH, products, value, weights
from attnprof.papers.checks import Facts, Ours, formula

#: Equations of one head as printed, letters for matrices; K and V are already a head's slices.
EQ14, EQ15, EQ16 = "S*V", "Q_head*K/sqrt(d_k)", "Q*W_Q"


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


def conforming_slices() -> list[str]:
    """Which slices of K have the shape that Eq 15 needs."""
    length, width, head = 6, 4, 2
    queries, keys = np.ones((length, head)), np.ones((length, width))
    slices = {"rows": keys[head : 2 * head], "columns": keys[:, head : 2 * head]}
    return [
        name
        for name, part in slices.items()
        if part.T.shape[0] == queries.shape[1] and (queries @ part.T).shape == (length, length)
    ]


def kernels() -> dict[str, Any]:
    """Maps that Definition 2 lacks, and the side from which Eq 5 applies W^K."""
    removed = set(registry.get("standard").projections) - set(registry.get("optimised").projections)
    keys, kernel = np.ones((6, 4)), np.ones((4, 2))  # l x d_m, d_m x d_k
    sides = {"left": (kernel, keys), "right": (keys, kernel)}
    return {
        "removed in Sec 3.1": [f"W^{letter.upper()}" for letter in sorted(removed)],
        "side of W^K": [side for side, (a, b) in sides.items() if a.shape[1] == b.shape[0]],
    }


def saved_by_super() -> dict[str, Any]:
    """What Super has less, and whether that is d_m² or more while l is at most d_m."""
    slack = sympy.Symbol("slack", nonnegative=True)
    beyond = sympy.expand(weights("standard") - weights("super") - WIDTH**2)
    written = sympy.Poly(beyond.subs(WIDTH, LENGTH + slack), LENGTH, slack)
    return {**saved("super"), "d_m^2 or more while l <= d_m": bool(min(written.coeffs()) >= 0)}


def share_saved() -> str:
    """One less Super's parameters in Table 6 over those of standard attention."""
    full, own = (int(value("6", "params", name, h="8")) for name in ("standard", "super"))
    return str(1 - Fraction(own, full))


def shares_apart(_: Any, ours: Any) -> dict[str, Any]:
    """The numbers behind that share, and the length that Super's layer has by them."""
    full, own = (int(value("6", "params", name, h="8")) for name in ("standard", "super"))
    width = values.EXPERIMENTS["CIFAR100"].d_model
    return {
        "full": full, "own": own, "less": full - own, "share": float(Fraction(ours)),
        "quarter": full // 4, "tokens": values.implied_seq_len(own, width), "width": width,
    }  # fmt: skip


OURS: Ours = {
    "000-REM1": partial(saved, "optimised"),
    "000-REM2": partial(saved, "efficient"),
    "000-REM3": saved_by_super,
    "000-REM3-CIFAR": share_saved,
    "000-OPT-EQUIV": lambda: {
        str(h): reachable(8, h, True) == reachable(8, h, False) for h in (1, 2, 4)
    },
    "000-EQ17-18": lambda: {
        "inside softmax": str(formula(EQ15).subs(formula("Q_head"), formula(EQ16))),
        "after softmax": str(formula(EQ14) / formula("S")),
    },
    "000-DEF3": conforming_slices,
    "000-SEC32": kernels,
}
FACTS: Facts = {
    "000-OPT-EQUIV": lambda *_: {"sliced": reachable(8, 2, True), "mapped": reachable(8, 2, False)},
    "000-REM3-CIFAR": shares_apart,
}
