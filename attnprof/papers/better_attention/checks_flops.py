"""000: Eq 24 and Figure 2, against the definitions."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy

from attnprof.papers.better_attention.formulas import (
    eq24,
    multiply_adds,
    results_counted,
    symbols,
)
from attnprof.papers.better_attention.values import MECHANISMS
from attnprof.papers.checks import Check, same_formula
from attnprof.papers.documents import document

CONSTANTS = {row["attention"]: row for row in document("000").rows("eq24_constants")}


def _each(count: Any) -> dict[str, str]:
    return {name: str(count(name)) for name in MECHANISMS}


def slopes() -> dict[str, str]:
    """What one more unit of width costs, by Eq 24; free of the width itself if linear."""
    return _each(lambda name: eq24(name).diff(symbols()[1]))


def _printed_eq24() -> dict[str, str]:
    return {name: f"{row['C_attn']}*l*d_m + {row['head_term']}" for name, row in CONSTANTS.items()}


def _slope_ratio() -> str:
    width = symbols()[1]
    return str(eq24("efficient").diff(width) / eq24("standard").diff(width))


def shape_is_free_of_length() -> bool:
    """Whether the length only scales the curves: whether FLOPs(d_m) / FLOPs(1) is free of it."""
    length, width, _ = symbols()
    shapes = [sympy.cancel(eq24(name) / eq24(name).subs(width, 1)) for name in MECHANISMS]
    return not any(length in shape.free_symbols for shape in shapes)


def _super_less_optimised() -> str:
    return str(sympy.factor(multiply_adds("super") - multiply_adds("optimised")))


CHECKS = [
    Check(
        "000-EQ24-linear",
        {name: row["slope_wrt_d_m"] for name, row in CONSTANTS.items()},
        slopes,
        how="derivatives of Eq 24 by d_m, all free of d_m",
        agree=same_formula,
        note="of the printed equation; the products of the definitions grow with d_m^2",
        tables=("eq24",),
    ),
    Check(
        "000-EQ24-exact",
        _printed_eq24(),
        partial(_each, multiply_adds),
        how="2mkn for each matrix product (m x k)(k x n) of Definitions 1 to 4, both passes",
        agree=same_formula,
        why="Eq 24 counts one operation for each result of a product instead of one multiplication "
        "and addition for each of its terms: every factor d_m, and l of the products with the "
        "scores, is lost. The products alone take these; softmax adds about 5 h l^2 a pass",
        tables=("eq24",),
    ),
    Check(
        "000-EQ24-origin",
        _printed_eq24(),
        partial(_each, results_counted),
        how="the whole of Eq 24 against results of the definitions' products, and scaling, "
        "exponential, row sum and division of each score, three times: forward once, backward "
        "twice",
        agree=same_formula,
        note="5, 4, 3 and 4 results of l x d_m and 5 of l x l a head, times 3; this is a number of "
        "results, not of FLOPs",
        tables=("eq24",),
    ),
    Check(
        "000-EQ24-35",
        "3/5",
        _slope_ratio,
        how="slope of Efficient over slope of standard attention in d_m, by Eq 24",
        agree=same_formula,
        tables=("eq24",),
    ),
    Check(
        "000-FIG2-shape",
        True,
        shape_is_free_of_length,
        how="Eq 24 over its own value at d_m = 1, looked through for l",
        why="C l d_m + 15 h l^2 = l (C d_m + 15 h l): slope over offset is C / (15 h l). The "
        "longer the context, the flatter all curves and the closer their ratios to 1",
    ),
    Check(
        "000-EQ24-superopt",
        "0",
        _super_less_optimised,
        how="multiplications and additions of Definition 4's products less those of Definition 2's",
        agree=same_formula,
        why="Super mixes values with an l x l map where Optimised maps keys with a d_m x d_m one: "
        "they cost the same only for l = d_m",
        tables=("eq24",),
    ),
]
