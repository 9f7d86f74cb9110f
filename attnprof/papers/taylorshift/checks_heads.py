"""004, Sec 4.3 and A.3: both forms' costs against the number of heads at a fixed d_e."""

from __future__ import annotations

from typing import Any

from attnprof.papers.agreement import same_formula, within
from attnprof.papers.checks import Check
from attnprof.papers.taylorshift.formulas import (
    all_heads,
    direct_entries,
    direct_flops,
    efficient_entries,
    efficient_flops,
    slope_in_heads,
    symbol,
    text,
)

OPERATIONS = "h times our count of one head, with d = d_e/h"
ENTRIES = "h times the entries of the tensors that Sec 4.2 lists, with d = d_e/h"


def sizes_listed() -> str:
    """One head's entries times h."""
    return text(symbol("h") * efficient_entries())


def flat_heads() -> dict[str, float]:
    """The positive head widths at which operations do not change with h, and their number."""
    import sympy

    d, N = symbol("d"), symbol("N")
    slope = sympy.Poly(slope_in_heads(efficient_flops()) / N, d)
    roots = [root for root in slope.real_roots() if root.is_positive]
    return {"positive": len(roots), "d": float(roots[0].n(20))}


def falls_for_every_head_count(one: Any) -> bool:
    """Whether the cost falls for d ≥ 1, that is for every h up to d_e.

    With d = 1 + t every coefficient of the slope must be negative for t ≥ 0, N ≥ 1.
    """
    import sympy

    d, N, t, m = (symbol(name) for name in ("d", "N", "t", "m"))
    slope = slope_in_heads(one).subs({d: 1 + t, N: 1 + m}, simultaneous=True)
    return all(x < 0 for x in sympy.Poly(sympy.expand(slope), t, m).coeffs())


CHECKS = [
    Check(
        "004-MHSA-triv",
        "4*N**2*d_e + 6*h*N**2",
        lambda: text(all_heads(direct_flops())),
        how=OPERATIONS,
        agree=same_formula,
    ),
    Check(
        "004-MHSA-eff",
        "N*(4*d_e**3/h**2 + 10*d_e**2/h + 8*d_e + 3*h)",
        lambda: text(all_heads(efficient_flops())),
        how=OPERATIONS,
        agree=same_formula,
    ),
    Check(
        "004-MHSA-dops",
        "N*(3 - 8*d**3 - 10*d**2)",
        lambda: text(slope_in_heads(efficient_flops())),
        how=f"derivative by h of {OPERATIONS}, written in d again",
        agree=same_formula,
    ),
    Check(
        "004-h0-root",
        {"positive": 1, "d": 0.47},
        flat_heads,
        how="roots of the derivative by h of our count, isolated exactly",
        agree=within(absolute=0.005),
        note="h0 = d_e/0.4673 = 2.14 d_e: more heads than channels.",
    ),
    Check(
        "004-h0-range",
        True,
        lambda: falls_for_every_head_count(efficient_flops()),
        how="the derivative by h has negative coefficients only once d = 1 + t is put in",
    ),
    Check(
        "004-ent-triv",
        "d_e*N + 2*N**2*h",
        lambda: text(all_heads(direct_entries())),
        how=ENTRIES,
        agree=same_formula,
    ),
    Check(
        "004-ent-eff",
        "h*(d**3 + (N + 1)*d**2 + 3*N*d + N)",
        sizes_listed,
        how="h times the entries of the tensors that Sec 4.2 lists",
        agree=same_formula,
    ),
    Check(
        "004-ent-effMH",
        "d_e**3/h**2 + (N + 1)*d_e**2/h + 3*N*d_e + N*h",
        lambda: text(all_heads(efficient_entries())),
        how=ENTRIES,
        agree=same_formula,
    ),
    Check(
        "004-ent-diff",
        "-2*d**3 - (N + 1)*d**2 + N",
        lambda: text(slope_in_heads(efficient_entries())),
        how=f"derivative by h of {ENTRIES}, written in d again",
        agree=same_formula,
    ),
    Check(
        "004-h1",
        True,
        lambda: falls_for_every_head_count(efficient_entries()),
        how="the derivative by h has negative coefficients only once d = 1 + t is put in: it is "
        "zero at some d < 1, so at more heads than channels",
    ),
]
