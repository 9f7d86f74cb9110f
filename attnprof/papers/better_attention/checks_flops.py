"""000: Eq 24 and Figure 2, against the definitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sympy

from attnprof.papers.better_attention.values import (
    DOCUMENT,
    LENGTH,
    MECHANISMS,
    WIDTH,
    eq24,
    multiply_adds,
    results_counted,
)
from attnprof.papers.checks import Checks

CONSTANTS = {row["attention"]: row for row in DOCUMENT.rows("eq24_constants")}
PRINTED = {name: f"{row['C_attn']}*l*d_m + {row['head_term']}" for name, row in CONSTANTS.items()}
CHECKS = Checks()
_about = partial(CHECKS.answers, tables=("eq24",))


def _each(count: Callable[[str], Any]) -> dict[str, str]:
    return {name: str(count(name)) for name in MECHANISMS}


@_about(
    "000-EQ24-linear",
    {name: row["slope_wrt_d_m"] for name, row in CONSTANTS.items()},
    how="derivatives of Eq 24 by d_m, all free of d_m",
    note="of the printed equation; the products of the definitions grow with d_m^2",
)
def slopes() -> dict[str, str]:
    """What one more unit of width costs, by Eq 24; free of the width itself if linear."""
    return _each(lambda name: eq24(name).diff(WIDTH))


@_about(
    "000-EQ24-exact",
    PRINTED,
    how="2mkn for each matrix product (m x k)(k x n) of Definitions 1 to 4, both passes",
    why="Eq 24 counts one operation for each result of a product instead of one multiplication "
    "and addition for each of its terms: every factor d_m, and l of the products with the "
    "scores, is lost. The products alone take these; softmax adds about 5 h l^2 a pass",
)
def _exact() -> dict[str, str]:
    return _each(multiply_adds)


@_about(
    "000-EQ24-origin",
    PRINTED,
    how="the whole of Eq 24 against results of the definitions' products, and scaling, "
    "exponential, row sum and division of each score, three times: forward once, backward "
    "twice",
    note="5, 4, 3 and 4 results of l x d_m and 5 of l x l a head, times 3; this is a number of "
    "results, not of FLOPs",
)
def _results() -> dict[str, str]:
    return _each(results_counted)


@_about(
    "000-EQ24-35",
    "3/5",
    how="slope of Efficient over slope of standard attention in d_m, by Eq 24",
)
def _slope_ratio() -> str:
    return str(eq24("efficient").diff(WIDTH) / eq24("standard").diff(WIDTH))


@CHECKS.answers(
    "000-FIG2-shape",
    True,
    how="Eq 24 over its own value at d_m = 1, looked through for l",
    why="C l d_m + 15 h l^2 = l (C d_m + 15 h l): slope over offset is C / (15 h l). The "
    "longer the context, the flatter all curves and the closer their ratios to 1",
)
def shape_is_free_of_length() -> bool:
    """Whether the length only scales the curves: whether FLOPs(d_m) / FLOPs(1) is free of it."""
    shapes = [sympy.cancel(eq24(name) / eq24(name).subs(WIDTH, 1)) for name in MECHANISMS]
    return not any(LENGTH in shape.free_symbols for shape in shapes)


@_about(
    "000-EQ24-superopt",
    "0",
    how="multiplications and additions of Definition 4's products less those of Definition 2's",
    why="Super mixes values with an l x l map where Optimised maps keys with a d_m x d_m one: "
    "they cost the same only for l = d_m",
)
def _super_less_optimised() -> str:
    return str(sympy.factor(multiply_adds("super") - multiply_adds("optimised")))
