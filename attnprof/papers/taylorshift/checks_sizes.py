"""004, Table 1 and Fig 4: how large intermediate results get."""

from __future__ import annotations

from functools import partial

from attnprof.papers.agreement import same_formula, within
from attnprof.papers.checks import Check
from attnprof.papers.taylorshift.formulas import text
from attnprof.papers.taylorshift.sizes import (
    ERROR,
    LENGTH,
    NORMAL,
    SPHERE,
    denominator,
    printed_laws,
    printed_sizes,
    sizes,
)

HOW = (
    f"for long sequences, as B.2 has it: mean norm at N = {LENGTH} with rows of Q, K and V on the "
    "unit sphere, by moments"
)


def dimension_of_sphere() -> str:
    """Of the unit vectors among rows with d entries: d less the conditions on a small step.

    |x|² = 1 binds a step by its gradient 2x; the rank of that row counts.
    """
    import numpy as np

    row = np.random.default_rng(0).normal(size=(1, 8))
    return f"d - {int(np.linalg.matrix_rank(2 * row))}"


def _off(expression: str, printed: dict[str, float], ours: dict[str, float]) -> str:
    """How far the printed law is off, and that entries of unit variance explain it."""
    normal = sizes(expression, NORMAL)
    ratios = [printed[width] / ours[width] for width in ours]
    worst = max(abs(printed[width] / normal[width] - 1) for width in ours)
    return (
        f"With rows of V on the unit sphere, as the caption says, the printed law is "
        f"{min(ratios):.1f} to {max(ratios):.1f} times too large. It holds (to {worst:.2%}) where "
        "the entries of V have unit variance, rows of length √d."
    )


def _fits(claim: str, expression: str) -> Check:
    """A law that holds for the caption's rows, as far as B.2 says: 1 % for long sequences."""
    return Check(
        claim,
        printed_sizes(expression),
        partial(sizes, expression, SPHERE),
        how=HOW,
        agree=within(relative=ERROR),
        note="Within the 1 % that B.2 grants; the column of ones in V makes up the size.",
        tables=("1",),
    )


def _off_sphere(claim: str, expression: str) -> Check:
    """A law that holds for other values than the caption's."""
    return Check(
        claim,
        printed_sizes(expression),
        partial(sizes, expression, SPHERE),
        how=HOW,
        agree=within(relative=2 * ERROR),
        why=lambda printed, ours: _off(expression, printed, ours),
        tables=("1",),
    )


CHECKS = [
    _fits("004-T1-Amod", "A_mod"),
    _fits("004-T1-sq", "(QK^T)^2 V"),
    _off_sphere("004-T1-lin", "QK^T V"),
    _off_sphere("004-T1-Y", "Y"),
    Check(
        "004-T1-den",
        printed_laws()["Y_denom"],
        lambda: text(denominator()),
        how="N times the mean of 1 + x + x²/2 for x = q·k of unit vectors: E x = 0, E x² = 1/d",
        agree=same_formula,
        why="1 + 1/(2d) is (2d+1)/(2d), not (d+2)/(2d): the 2 stands at the wrong place. At large "
        "d the printed law is half of the right one.",
        tables=("1",),
    ),
    Check(
        "004-SPHERE",
        "d + 1",
        dimension_of_sphere,
        how="dimension of the unit vectors in R^d: d coordinates less the rank of |x|² = 1",
        agree=same_formula,
        why="Rows of Q, K, V have d entries; the unit vectors among them form S^(d-1), of "
        "dimension d-1. S^(d+1) would have rows of d+2 entries.",
    ),
]
