"""000: its counts in l, d_m and h (Sections 3.1 to 3.3, Eq 24), Figure 2, and Figure 3's ratio."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import sympy

from attnprof import registry
from attnprof.closed_form.heatmap import Heatmap, heatmap_report
from attnprof.costs import CostTable
from attnprof.papers.better_attention.checks_parameters import DOCUMENT, MECHANISMS, value
from attnprof.papers.checks import Ours, Printed, formula
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
    """Eq 24 as printed."""
    forms = {form.source: form for form in registry.get(mechanism).published()}
    return forms["000-EQ24"].formula(_workload("train"))


@cache
def definition(mechanism: str) -> CostTable:
    """The steps of a definition's forward pass, without biases."""
    return registry.get(mechanism, bias=False).definition(_workload("forward"))


@cache
def multiply_adds(mechanism: str) -> Any:
    """Multiplications and additions of all matrix products, forward and backward."""
    table = registry.get(mechanism, bias=False).cost(_workload("train"))
    return sympy.expand(table.matmul_flops)


@cache
def results_counted(mechanism: str) -> Any:
    """Eq 24's own convention: one operation for each result, the backward pass twice the forward.

    A product counts its results instead of its multiplications and additions; scaling,
    exponentials, row sums and normalisation count one an entry.
    """
    total = definition(mechanism).total
    return sympy.expand(3 * (total.dot_outputs + total.flops - total.matmul_flops))


@cache
def weights(mechanism: str) -> Any:
    """Parameters without biases, as the remarks count them."""
    return sympy.expand(registry.get(mechanism, bias=False).parameters(_workload("forward")))


def products(mechanism: str) -> Any:
    """Matrix products of one forward pass by the definition: one a head each, and that with W^O."""
    stages = [stage for stage in definition(mechanism) if stage.cost.matmul_flops != 0]
    return (len(stages) - 1) * HEADS + 1


def ratio(count: Callable[[str], Any], mechanism: str = "efficient") -> Any:
    """A count of standard over that of another mechanism."""
    return sympy.cancel(count("standard") / count(mechanism))


@cache
def counter(count: Callable[[str], Any], mechanism: str) -> Callable[[int, int, int], int]:
    """One of the counts above as a function of whole l, d_m and h."""
    function: Callable[[int, int, int], int] = sympy.lambdify(SYMBOLS, count(mechanism), "math")
    return function


def slopes() -> dict[str, str]:
    """What one more unit of width costs, by Eq 24; free of the width itself if linear."""
    return {name: str(eq24(name).diff(WIDTH)) for name in MECHANISMS}


def shape_is_free_of_length() -> bool:
    """Whether the length only scales the curves: whether FLOPs(d_m) / FLOPs(1) is free of it."""
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


def _share_saved() -> str:
    full, fewer = (int(value("6", "params", name, h="8")) for name in ("standard", "super"))
    return str(1 - Fraction(fewer, full))


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


def _conforming_slices() -> list[str]:
    """Which slices of K have the shape that Eq 15 needs."""
    length, width, head = 6, 4, 2
    queries, keys = np.ones((length, head)), np.ones((length, width))
    slices = {"rows": keys[head : 2 * head], "columns": keys[:, head : 2 * head]}
    return [
        name
        for name, part in slices.items()
        if part.T.shape[0] == queries.shape[1] and (queries @ part.T).shape == (length, length)
    ]


def _kernels() -> dict[str, Any]:
    """Maps that Definition 2 lacks, and the side from which Eq 5 applies W^K."""
    removed = set(registry.get("standard").projections) - set(registry.get("optimised").projections)
    keys, kernel = np.ones((6, 4)), np.ones((4, 2))  # l x d_m, d_m x d_k
    sides = {"left": (kernel, keys), "right": (keys, kernel)}
    return {
        "removed in Sec 3.1": [f"W^{letter.upper()}" for letter in sorted(removed)],
        "side of W^K": [side for side, (a, b) in sides.items() if a.shape[1] == b.shape[0]],
    }


# -- Figure 3 --------------------------------------------------------------------------
#: Its head counts.
PANELS = (1, 2, 4, 8)
#: Sizes on both its axes, which the document does not give: with these its means come out.
SIZES = tuple(2**exponent for exponent in range(11))
GRID = "Eq 24 for l and d_m in 1, 2, 4, ..., 1024"


@cache
def heatmaps() -> Report:
    """Eq 24 of standard over Efficient Attention on the grid, a panel a head count."""
    a, b = registry.get("standard"), registry.get("efficient")
    return heatmap_report(Heatmap(a=a, b=b, seq_lens=SIZES, d_models=SIZES, num_heads=PANELS))


def excess(statistic: str) -> dict[str, float]:
    """Mean or max excess in percent, by head count."""
    percent: dict[str, float] = heatmaps().summary[f"{statistic}_excess_percent"]
    return percent


def quoted(source: str, statistic: str) -> dict[str, float]:
    """What the caption or the text quotes."""
    rows = [row for row in DOCUMENT.rows("fig3_flop_ratio_quoted") if row["source"] == source]
    return {row["h"]: number(row[f"{statistic}_excess_pct"]) for row in rows}


def _quoted_order(source: str) -> list[str]:
    """Head counts by the quoted means, the largest first."""
    means = quoted(source, "mean")
    return sorted(means, key=lambda h: -means[h])


def _by_excess() -> list[str]:
    """Head counts by the slope of Eq 24's ratio in h, the largest excess first."""
    slope = sympy.factor(ratio(eq24).diff(HEADS))
    assert slope.is_negative or slope.is_positive
    return [str(h) for h in sorted(PANELS, reverse=bool(slope.is_positive))]


def largest_excess(heads: int) -> float:
    """What the excess of Eq 24 comes up to at a head count, in percent: its limit for short l."""
    return float(100 * (ratio(eq24).subs({LENGTH: 0, HEADS: heads}) - 1))


def exact_excess() -> dict[str, Any]:
    """The largest excess when multiplications and additions are counted, and what heads do.

    The ratio falls with r = l / d_m, so that its bound is its limit for short contexts.
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
    "000-REM3-CIFAR": _share_saved,
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
