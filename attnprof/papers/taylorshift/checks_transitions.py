"""004, Sec 4.2, A.4 and Table 2: the lengths from which the efficient form is cheaper."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnprof.papers.agreement import same_formula
from attnprof.papers.checks import Check
from attnprof.papers.documents import document
from attnprof.papers.taylorshift.formulas import (
    WIDTHS,
    closed_form,
    first_lengths,
    printed,
    quadratic,
    symbol,
)

ROWS = document("004").rows("table02_transition_points")
#: N1 at most this part of N0 is "considerably smaller".
CONSIDERABLY = 2 / 3


def radicand() -> Any:
    """What stands under the root of N1 = (d²+2d+1 + √…)/4."""
    import sympy

    a, b, c = quadratic()
    return sympy.expand(b**2 - 4 * a * c)


def radicands() -> list[str]:
    """The radicand as the solution formula gives it, and multiplied out."""
    import sympy

    a, b, c = quadratic()
    return [f"({sympy.expand(-b)})**2 + {-4 * a}*({c})", str(radicand())]


def dominating_square() -> Any:
    """The smallest d²+ed+s whose square is never below the radicand for d ≥ 0.

    The two highest powers fix d² + ed, the value at 0 the least possible s; that s is enough if
    no coefficient of the difference is negative.
    """
    import sympy

    d = symbol("d")
    r = sympy.Poly(radicand(), d)
    _, cubic, *_, constant = r.all_coeffs()
    root = d**2 + cubic / 2 * d + sympy.sqrt(constant)
    over = sympy.Poly(root**2, d) - r
    if any(coefficient < 0 for coefficient in over.all_coeffs()):
        raise ArithmeticError("the square of the leading terms is not above the radicand")
    return root


def tightest_bound() -> str:
    """N1 with the root replaced by the root of that square."""
    import sympy

    a, b, _ = quadratic()
    return str(sympy.expand((-b + dominating_square()) / (2 * a)))


def square() -> dict[str, str]:
    """The square that bounds the radicand, and what it is multiplied out."""
    import sympy

    root = dominating_square()
    return {"root": str(root), "square": str(sympy.expand(root**2))}


def solutions() -> dict[str, Any]:
    """The equation of A.4 without its factor h, how many roots it has, and how many positive.

    Signs of all coefficients in d decide: nothing is tried at single widths.
    """
    import sympy

    d, h = symbol("d"), symbol("h")
    a, _, c = quadratic()
    all_heads = printed("004-MHSA-ENT-DIRECT") - printed("004-MHSA-ENT-EFFICIENT")
    real = all(x > 0 for x in sympy.Poly(radicand(), d).coeffs())
    # Roots of different signs have a negative product c/a.
    apart = a > 0 and all(x < 0 for x in sympy.Poly(c, d).coeffs())
    return {
        "equation": str(sympy.expand(all_heads / h)),
        "solutions": 2 if real else 0,
        "positive": 1 if apart else 0,
    }


CHECKS = [
    Check(
        "004-EQ7",
        "(d**2 + 2*d + 1 + sqrt(d**4 + 12*d**3 + 14*d**2 + 4*d + 1))/4",
        lambda: closed_form("N1"),
        how="closed form that attnprof crossover finds for the printed entries of both forms",
        agree=same_formula,
    ),
    Check(
        "004-EQ7-rad",
        ["(d**2 + 2*d + 1)**2 + 8*(d**3 + d**2)", "d**4 + 12*d**3 + 14*d**2 + 4*d + 1"],
        radicands,
        how="discriminant of the difference of the printed entries, as it stands and expanded",
        agree=same_formula,
    ),
    Check(
        "004-N1-bound",
        "d**2/2 + 2*d + 1/2",
        tightest_bound,
        how="the smallest d²/2+2d+c that is nowhere below N1: c from d = 0, the rest by signs",
        agree=same_formula,
        note="The bound is the best of its form: at d → 0 it is reached.",
    ),
    Check(
        "004-A4-sq",
        {"root": "d**2 + 6*d + 1", "square": "d**4 + 12*d**3 + 38*d**2 + 12*d + 1"},
        square,
        how="the smallest square above the radicand, multiplied out",
        agree=same_formula,
    ),
    Check(
        "004-A4-word",
        {
            "equation": "d*N + 2*N**2 - d**2*(d + 1) - 2*d*N - (d + 1)*N - d**2*N",
            "solutions": 2,
            "positive": 1,
        },
        solutions,
        how="printed entries of h heads over h; signs of the radicand's and of c's coefficients",
        agree=same_formula,
        note="The larger solution is the positive one. N and N1 stand for the same unknown, and "
        "the factor h on both sides cancels: slips of writing, nothing depends on them.",
    ),
    *(
        Check(
            f"004-T2-d{row['d']}",
            {"N0": int(row["N0"]), "N1": int(row["N1"])},
            partial(first_lengths, int(row["d"])),
            how="attnprof crossover on the printed counts: the root in N, rounded up",
            tables=("2",),
        )
        for row in ROWS
    ),
    Check(
        "004-T2-N1small",
        True,
        lambda: all(
            first_lengths(d)["N1"] <= CONSIDERABLY * first_lengths(d)["N0"] for d in WIDTHS
        ),
        how="N1 at most two thirds of N0 at every width of Table 2",
        note="The ratio falls from 0.64 at d = 8 to 0.51 at d = 128; its limit is one half.",
        tables=("2",),
    ),
]
