"""Checks of document 000's formulas: Sections 3.1 to 3.3, Eq 24, Figures 2 and 3.

Sizes are the document's: context length l, model width d_m, heads h. ``PRINTED`` has the document's
values by claim, ``OURS`` computes them again, ``FACTS`` are numbers for the verdict's text.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy

from attnprof import registry
from attnprof.closed_form.heatmap import Heatmap, heatmap_report
from attnprof.costs import CostTable
from attnprof.papers.better_attention import checks_parameters as sizes
from attnprof.papers.better_attention.checks_parameters import DOCUMENT, MECHANISMS
from attnprof.papers.checks import Facts, Ours, Printed, formula
from attnprof.papers.documents import number
from attnprof.record import Report
from attnprof.workload import Workload

#: Context length, model width, heads.
SYMBOLS = LENGTH, WIDTH, HEADS = sympy.symbols("l d_m h", positive=True)
#: Equations of one head as printed, letters for matrices; K and V are already a head's slices.
EQ14, EQ15, EQ16 = "S*V", "Q_head*K/sqrt(d_k)", "Q*W_Q"
CONSTANTS = {row["attention"]: row for row in DOCUMENT.rows("eq24_constants")}
FORMULAS = {name: f"{row['C_attn']}*l*d_m + {row['head_term']}" for name, row in CONSTANTS.items()}


# -- counts ----------------------------------------------------------------------------
def _workload(phase: str) -> Workload:
    return Workload(LENGTH, HEADS, WIDTH / HEADS, phase=phase)


@cache
def eq24(mechanism: str) -> Any:
    """Return Eq 24 as printed: FLOPs of a training step in l, d_m and h."""
    forms = {form.source: form for form in registry.get(mechanism).published()}
    return forms["000-EQ24"].formula(_workload("train"))


@cache
def definition(mechanism: str) -> CostTable:
    """Return the costs of a forward pass as the document defines it, step by step, no biases."""
    return registry.get(mechanism, bias=False).definition(_workload("forward"))


@cache
def multiply_adds(mechanism: str) -> Any:
    """Return multiplications and additions of all matrix products, forward and backward."""
    table = registry.get(mechanism, bias=False).cost(_workload("train"))
    return sympy.expand(table.matmul_flops)


@cache
def results_counted(mechanism: str) -> Any:
    """Return the count by Eq 24's convention: one operation per result, backward counts double.

    A product counts its results instead of its multiplications and additions; scaling,
    exponentials, row sums and normalisation count one an entry.
    """
    total = definition(mechanism).total
    return sympy.expand(3 * (total.dot_outputs + total.flops - total.matmul_flops))


@cache
def weights(mechanism: str) -> Any:
    """Return parameters without biases, as the document's remarks count them."""
    return sympy.expand(registry.get(mechanism, bias=False).parameters(_workload("forward")))


def products(mechanism: str) -> Any:
    """Return the number of matrix products of a forward pass: one a head and step, one by W^O."""
    stages = [stage for stage in definition(mechanism) if stage.cost.matmul_flops != 0]
    return (len(stages) - 1) * HEADS + 1


def ratio(count: Callable[[str], Any], mechanism: str = "efficient") -> Any:
    """Return the count of standard attention over that of another mechanism."""
    return sympy.cancel(count("standard") / count(mechanism))


@cache
def counter(count: Callable[[str], Any], mechanism: str) -> Callable[[int, int, int], int]:
    """Return a count (by one of the functions above) as a function of integers l, d_m and h."""
    function: Callable[[int, int, int], int] = sympy.lambdify(SYMBOLS, count(mechanism), "math")
    return function


def slopes() -> dict[str, str]:
    """Return the derivative of Eq 24 by d_m, per mechanism; it has no d_m if the cost is linear."""
    return {name: str(eq24(name).diff(WIDTH)) for name in MECHANISMS}


def shape_is_free_of_length() -> bool:
    """Return whether l only scales Eq 24's curves over d_m: FLOPs(d_m) / FLOPs(1) has no l."""
    shapes = [sympy.cancel(eq24(name) / eq24(name).subs(WIDTH, 1)) for name in MECHANISMS]
    return not any(LENGTH in shape.free_symbols for shape in shapes)


# -- definitions and remarks -----------------------------------------------------------
def _saved(mechanism: str) -> dict[str, Any]:
    return {
        "parameters": str(weights("standard") - weights(mechanism)),
        "products": str(products("standard") - products(mechanism)),
    }


def _saved_by_super() -> dict[str, Any]:
    slack = sympy.Symbol("slack", nonnegative=True)
    beyond = sympy.expand(weights("standard") - weights("super") - WIDTH**2)
    written = sympy.Poly(beyond.subs(WIDTH, LENGTH + slack), LENGTH, slack)
    return {**_saved("super"), "d_m^2 or more while l <= d_m": bool(min(written.coeffs()) >= 0)}


def _on_cifar(mechanism: str) -> int:
    """Return the printed parameters of a layer with eight heads on CIFAR100."""
    return int(sizes.value("6", "params", mechanism, h="8"))


def _share_in_numbers(_: Any, ours: str) -> dict[str, Any]:
    full, fewer = map(_on_cifar, ("standard", "super"))
    width = sizes.EXPERIMENTS["CIFAR100"].d_model
    return {
        "full": full, "own": fewer, "less": full - fewer, "share": float(Fraction(ours)),
        "quarter": full // 4, "tokens": sizes.implied_length(fewer, width), "width": width,
    }  # fmt: skip


@cache
def reachable(width: int, heads: int, slicing: bool) -> int:
    """Return the dimension of the space of maps from V to O that a layer's weights can reach.

    Head i mixes tokens by S_i and applies B_i = W_i^V W_i^O to V; with ``slicing`` W_i^V is a slice
    of the identity. The dimension is the rank of the derivatives of all B_i by the weights, at
    random small integers.
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


def _conforming_slices() -> list[str]:
    """Return the slices of K ("rows", "columns") that have the shape which Eq 15 needs."""
    length, width, head = 6, 4, 2
    queries, keys = np.ones((length, head)), np.ones((length, width))
    slices = {"rows": keys[head : 2 * head], "columns": keys[:, head : 2 * head]}
    return [
        name
        for name, part in slices.items()
        if part.T.shape[0] == queries.shape[1] and (queries @ part.T).shape == (length, length)
    ]


def _kernels() -> dict[str, Any]:
    """Return the weights that Definition 2 removes, and the side from which Eq 5 applies W^K."""
    removed = set(registry.get("standard").projections) - set(registry.get("optimised").projections)
    keys, kernel = np.ones((6, 4)), np.ones((4, 2))  # l x d_m, d_m x d_k
    sides = {"left": (kernel, keys), "right": (keys, kernel)}
    return {
        "removed in Sec 3.1": [f"W^{letter.upper()}" for letter in sorted(removed)],
        "side of W^K": [side for side, (a, b) in sides.items() if a.shape[1] == b.shape[0]],
    }


# -- Figure 3 --------------------------------------------------------------------------
#: Head counts of the figure's panels.
PANELS = (1, 2, 4, 8)
#: Sizes on both axes of the figure: not in the document, but they give its printed means.
SIZES = tuple(2**exponent for exponent in range(11))
#: The largest power of two in grids that are tried for the printed means: 2**13.
LARGEST = 13
GRID = "Eq 24 for l and d_m in 1, 2, 4, ..., 1024"


@cache
def heatmaps() -> Report:
    """Return Eq 24 of standard over Efficient Attention on the figure's grid, by head count."""
    a, b = registry.get("standard"), registry.get("efficient")
    return heatmap_report(Heatmap(a=a, b=b, seq_lens=SIZES, d_models=SIZES, num_heads=PANELS))


def excess(statistic: str) -> dict[str, float]:
    """Return the mean or max excess of standard attention in percent, by head count."""
    percent: dict[str, float] = heatmaps().summary[f"{statistic}_excess_percent"]
    return percent


def quoted(source: str, statistic: str) -> dict[str, float]:
    """Return the printed mean or max excess in percent by head count, from caption or text."""
    rows = [row for row in DOCUMENT.rows("fig3_flop_ratio_quoted") if row["source"] == source]
    return {row["h"]: number(row[f"{statistic}_excess_pct"]) for row in rows}


def _quoted_order(source: str) -> list[str]:
    """Return head counts in the order of the printed means, the largest first."""
    means = quoted(source, "mean")
    return sorted(means, key=lambda h: -means[h])


def _by_excess() -> list[str]:
    """Return head counts in the order of Eq 24's excess, the largest first, by its slope in h."""
    slope = sympy.factor(ratio(eq24).diff(HEADS))
    assert slope.is_negative or slope.is_positive
    return [str(h) for h in sorted(PANELS, reverse=bool(slope.is_positive))]


def _fitting_grids(said: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, Any]:
    """Return how many grids of consecutive powers of two (three or more a side) give the means."""
    sides = [slice(a, b + 1) for a, b in combinations(range(LARGEST + 1), 2) if b - a >= 2]
    powers = 2.0 ** np.arange(LARGEST + 1)
    of_sizes = sympy.lambdify(SYMBOLS, 100 * (ratio(eq24) - 1), "numpy")
    cells = {h: of_sizes(powers[:, None], powers, int(h)) for h in said}
    fitting = [
        tuple(f"{powers[side][0]:.0f} to {powers[side][-1]:.0f}" for side in grid)
        for grid in product(sides, sides)
        if all(round(cells[h][grid].mean()) == mean for h, mean in said.items())
    ]
    others = (" by ".join(grid) for grid in fitting if grid != (f"1 to {SIZES[-1]}",) * 2)
    means = {f"h{h}": mean for h, mean in ours.items()}
    return {"largest": LARGEST, "grids": len(fitting), "other": next(others, "no other"), **means}


def largest_excess(heads: int) -> float:
    """Return the supremum of Eq 24's excess at a head count, in percent: its limit for short l."""
    return float(100 * (ratio(eq24).subs({LENGTH: 0, HEADS: heads}) - 1))


def exact_excess() -> dict[str, Any]:
    """Return the largest excess in multiplications and additions, and whether it depends on heads.

    The ratio falls with r = l / d_m, so its supremum is the limit for short contexts.
    """
    share = sympy.Symbol("r", positive=True)
    exact = sympy.cancel(ratio(multiply_adds).subs(LENGTH, share * WIDTH))
    assert sympy.factor(exact.diff(share)).is_negative
    return {
        "at most": float(100 * (exact.subs(share, 0) - 1)),
        "falls with the heads": HEADS in exact.free_symbols,
    }


PRINTED: Printed = {
    "000-EQ24-exact": FORMULAS,
    "000-EQ24-origin": FORMULAS,
    "000-EQ24-linear": {name: row["slope_wrt_d_m"] for name, row in CONSTANTS.items()},
    "000-FIG3-formula": f"({FORMULAS['standard']})/({FORMULAS['efficient']})",
    "000-FIG3-order-text": _quoted_order("text_B2"),
    "000-FIG3-order-caption": _quoted_order("caption"),
    "000-FIG3-grid": quoted("text_B2", "mean"),
    "000-FIG3-max": {
        name: max(quoted(source, "max").values())
        for name, source in (("caption", "caption"), ("text", "text_B2"))
    },
    "000-FIG3-all": {h: int(most) for h, most in quoted("text_B2", "max").items()},
}
OURS: Ours = {
    "000-REM1": partial(_saved, "optimised"),
    "000-REM2": partial(_saved, "efficient"),
    "000-REM3": _saved_by_super,
    "000-REM3-CIFAR": lambda: str(1 - Fraction(_on_cifar("super"), _on_cifar("standard"))),
    "000-OPT-EQUIV": lambda: {
        str(h): reachable(8, h, True) == reachable(8, h, False) for h in (1, 2, 4)
    },
    "000-EQ17-18": lambda: {
        "inside softmax": str(formula(EQ15).subs(formula("Q_head"), formula(EQ16))),
        "after softmax": str(formula(EQ14) / formula("S")),
    },
    "000-DEF3": _conforming_slices,
    "000-SEC32": _kernels,
    "000-EQ24-exact": lambda: {name: str(multiply_adds(name)) for name in MECHANISMS},
    "000-EQ24-origin": lambda: {name: str(results_counted(name)) for name in MECHANISMS},
    "000-EQ24-35": lambda: str(eq24("efficient").diff(WIDTH) / eq24("standard").diff(WIDTH)),
    "000-EQ24-superopt": lambda: str(
        sympy.factor(multiply_adds("super") - multiply_adds("optimised"))
    ),
    "000-EQ24-linear": slopes,
    "000-EQ24-exactratio": exact_excess,
    "000-FIG2-shape": shape_is_free_of_length,
    "000-FIG3-formula": lambda: str(ratio(results_counted)),
    "000-FIG3-order-text": _by_excess,
    "000-FIG3-order-caption": _by_excess,
    "000-FIG3-grid": lambda: excess("mean"),
    "000-FIG3-max": lambda: dict.fromkeys(("caption", "text"), largest_excess(1)),
    "000-FIG3-all": lambda: {str(h): int(largest_excess(h)) for h in PANELS},
}
FACTS: Facts = {
    "000-OPT-EQUIV": lambda *_: {"sliced": reachable(8, 2, True), "mapped": reachable(8, 2, False)},
    "000-REM3-CIFAR": _share_in_numbers,
    "000-FIG3-grid": _fitting_grids,
}
