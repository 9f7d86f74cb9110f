"""004, Sec 4.1 and A.1: operations of both forms, and the length from which they are equal."""

from __future__ import annotations

from typing import Any

from attnprof.algebra.orders import leading_terms, total
from attnprof.papers.agreement import same_formula
from attnprof.papers.checks import Check
from attnprof.papers.taylorshift.formulas import (
    closed_form,
    direct_flops,
    efficient_flops,
    fraction,
    squared_flops,
    stages,
    symbol,
    text,
)

#: Operations of an exponential, as this project counts.
EXPONENTIAL = 1
DEFINED = "stages of this project's definition of the form, each product m·k·n counted 2·m·k·n"


def quotient() -> dict[str, str]:
    """N0 as the fraction of the two counts, and divided out."""
    top, bottom = fraction()
    return {"fraction": f"({top})/({bottom})", "N0": closed_form("N0")}


def split() -> list[str]:
    """The numerators over 4d+6 that give d², then d, and what is left for the constant."""
    import sympy

    top, bottom = fraction()
    d, parts = symbol("d"), []
    for power in (2, 1):
        parts.append(sympy.expand(d**power * bottom))
        top = sympy.expand(top - parts[-1])
    return [str(part) for part in (*parts, top)]


def sums_and_factors() -> str:
    """Eq 3 with its last term as it must be: a factor, two sums, and the sum of all values."""
    import sympy

    counted = stages("taylor-efficient")
    columns = counted["sum of values"] - (symbol("d") + 1)  # N values take N - 1 additions
    return text(sympy.expand(counted["factors"] / 3 + counted["sums"] + columns))


def dearer_from() -> str:
    """Operations of an exponential from which on softmax attention takes more than Eq 1."""
    import sympy

    counted, price = stages("standard"), symbol("price")
    softmax = sum(count for name, count in counted.items() if name != "scaling")
    apart = softmax + (price - 1) * counted["exponentials"] - direct_flops()
    (even,) = sympy.solve(apart, price)
    return str(even)


def orders() -> dict[str, str]:
    """The term of each count that leads while N and d grow."""
    counts = {"efficient": efficient_flops(), "direct": direct_flops()}
    return {name: _order(count) for name, count in counts.items()}


def _order(count: Any) -> str:
    return text(total(leading_terms(count, ("N", "d")) or (), factors=False))


CHECKS = [
    Check(
        "004-EQ4",
        "4*N**2*d + 6*N**2",
        lambda: text(direct_flops()),
        how=f"{DEFINED}, the Taylor map 4 an entry, the normalisation 2",
        agree=same_formula,
    ),
    Check(
        "004-YSQU",
        "4*N*d**2*(d + 1) + 2*N*d**2",
        lambda: text(squared_flops()),
        how=f"{DEFINED}; box products one multiplication an entry",
        agree=same_formula,
    ),
    Check(
        "004-EQ5",
        "N*(4*d**3 + 10*d**2 + 8*d + 3)",
        lambda: text(efficient_flops()),
        how=f"{DEFINED}; of Eq 3 as it is printed, whose last term needs no sum",
        agree=same_formula,
        note="The column sums of V, which Eq 3 should add, are not in it: see 004-COLSUM.",
    ),
    Check(
        "004-EQ6",
        {"fraction": "(4*d**3 + 10*d**2 + 8*d + 3)/(4*d + 6)", "N0": "d**2 + d + 1/2"},
        quotient,
        how="our count of Eq 3 over N by that of Eq 1 over N², and the closed form that attnprof "
        "crossover finds for the printed counts",
        agree=same_formula,
    ),
    Check(
        "004-A1",
        ["4*d**3 + 6*d**2", "4*d**2 + 6*d", "3*d + 3"],
        split,
        how="4d³+10d²+8d+3 minus d²(4d+6) minus d(4d+6), step by step",
        agree=same_formula,
        why="the last numerator is printed 3d+3; what is left is 2d+3, half of 4d+6, which gives "
        "the ½ of the result. The three printed numerators add up to 4d³+10d²+9d+3.",
    ),
    Check(
        "004-COLSUM",
        "3*N*(d + 1)",
        sums_and_factors,
        how="one factor ½ and two sums of N × (d+1), and N-1 additions for each column of V",
        agree=same_formula,
        why="3N(d+1) covers the factor ½ and the two sums; the last term is the sum of each column "
        "of V (Algorithm 1), (N-1)(d+1) additions more. With them Eq 5 becomes "
        "N(4d³+10d²+9d+4) - (d+1).",
    ),
    Check(
        "004-STD-higher",
        {"standard takes more": True},
        lambda: {"standard takes more": float(dearer_from()) < EXPONENTIAL},
        how="definitions of both: 4N²d and, per score, 1 exponential against the Taylor map's 4",
        lacking="how many operations an exponential is; at one, as this project counts it, "
        "standard attention takes fewer",
        why=lambda *_: (
            "standard attention takes 4N²d + (2 + p)N² operations where an exponential takes p, "
            f"against 4N²d + 6N²: more only from p > {dearer_from()} on"
        ),
    ),
    Check(
        "004-COMPL",
        {"efficient": "N*d**3", "direct": "N**2*d"},
        orders,
        how="the highest term of each counted form",
        agree=same_formula,
    ),
]
