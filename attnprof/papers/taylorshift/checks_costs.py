"""004, Sec 4.1, 4.2, A.1, A.4 and Table 2: both forms' costs, and the lengths where they meet."""

from functools import partial
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.orders import leading_terms, total
from attnprof.papers.checks import Check, Checks
from attnprof.papers.taylorshift import formulas
from attnprof.papers.taylorshift.formulas import WIDTHS, D, H, N, first_lengths, printed

#: Operations of an exponential, as this project counts.
EXPONENTIAL = 1
DEFINED = "stages of this project's definition of the form, each product m·k·n counted 2·m·k·n"
#: N1 at most this part of N0 is "considerably smaller".
CONSIDERABLY = 2 / 3

CHECKS = Checks([
    Check(
        "004-EQ4",
        "4*N**2*d + 6*N**2",
        lambda: str(formulas.direct_flops()),
        how=f"{DEFINED}, the Taylor map 4 an entry, the normalisation 2",
    ),
    Check(
        "004-YSQU",
        "4*N*d**2*(d + 1) + 2*N*d**2",
        lambda: str(formulas.squared_flops()),
        how=f"{DEFINED}; box products one multiplication an entry",
    ),
    Check(
        "004-EQ5",
        "N*(4*d**3 + 10*d**2 + 8*d + 3)",
        lambda: str(formulas.efficient_flops()),
        how=f"{DEFINED}; of Eq 3 as it is printed, whose last term needs no sum",
        note="The column sums of V, which Eq 3 should add, are not in it: see 004-COLSUM.",
    ),
    Check(
        "004-EQ7",
        "(d**2 + 2*d + 1 + sqrt(d**4 + 12*d**3 + 14*d**2 + 4*d + 1))/4",
        lambda: closed_form("N1"),
        how="closed form that attnprof crossover finds for the printed entries of both forms",
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
        "004-T2-N1small",
        True,
        lambda: all(x["N1"] <= CONSIDERABLY * x["N0"] for x in map(first_lengths, WIDTHS)),
        how="N1 at most two thirds of N0 at every width of Table 2",
        note="The ratio falls from 0.64 at d = 8 to 0.51 at d = 128; its limit is one half.",
        tables=("2",),
    ),
    *(
        Check(
            f"004-T2-d{row['d']}",
            {"N0": int(row["N0"]), "N1": int(row["N1"])},
            partial(first_lengths, int(row["d"])),
            how="attnprof crossover on the printed counts: the root in N, rounded up",
        )
        for row in formulas.DOCUMENT.rows("table02_transition_points")
    ),
])  # fmt: skip


def fraction() -> tuple[Any, Any]:
    """N0 before it is divided out: the efficient count over N, the direct one over N²."""
    over, under = formulas.efficient_flops() / N, formulas.direct_flops() / N**2
    return sympy.expand(over), sympy.expand(under)


def closed_form(name: str) -> str:
    """N0 or N1 in d."""
    return str(formulas.crossing(name, WIDTHS[0])[1])


@CHECKS.answers(
    "004-EQ6",
    {"fraction": "(4*d**3 + 10*d**2 + 8*d + 3)/(4*d + 6)", "N0": "d**2 + d + 1/2"},
    how="our count of Eq 3 over N by that of Eq 1 over N², and the closed form that attnprof "
    "crossover finds for the printed counts",
)
def _quotient() -> dict[str, str]:
    top, bottom = fraction()
    return {"fraction": f"({top})/({bottom})", "N0": closed_form("N0")}


@CHECKS.answers(
    "004-A1",
    ["4*d**3 + 6*d**2", "4*d**2 + 6*d", "3*d + 3"],
    how="4d³+10d²+8d+3 minus d²(4d+6) minus d(4d+6), step by step",
    why="the last numerator is printed 3d+3; what is left is 2d+3, half of 4d+6, which gives "
    "the ½ of the result. The three printed numerators add up to 4d³+10d²+9d+3.",
)
def _split() -> list[str]:
    top, bottom = fraction()
    parts = [sympy.expand(D**power * bottom) for power in (2, 1)]
    return [str(part) for part in (*parts, sympy.expand(top - sum(parts)))]


@CHECKS.answers(
    "004-COLSUM",
    "3*N*(d + 1)",
    how="one factor ½ and two sums of N × (d+1), and N-1 additions for each column of V",
    why="3N(d+1) covers the factor ½ and the two sums; the last term is the sum of each column "
    "of V (Algorithm 1), (N-1)(d+1) additions more. With them Eq 5 becomes "
    "N(4d³+10d²+9d+4) - (d+1).",
)
def _sums_and_factors() -> str:
    counted = formulas.stages("taylor-efficient")
    columns = counted["sum of values"] - (D + 1)  # N values take N - 1 additions
    return str(sympy.expand(counted["factors"] / 3 + counted["sums"] + columns))


def dearer_from() -> str:
    """Operations of an exponential from which on softmax attention takes more than Eq 1."""
    counted, price = formulas.stages("standard"), symbol("price")
    softmax = sum(count for name, count in counted.items() if name != "scaling")
    apart = softmax + (price - 1) * counted["exponentials"] - formulas.direct_flops()
    (even,) = sympy.solve(apart, price)
    return str(even)


@CHECKS.answers(
    "004-COMPL",
    {"efficient": "N*d**3", "direct": "N**2*d"},
    how="the highest term of each counted form",
)
def _orders() -> dict[str, str]:
    counts = {"efficient": formulas.efficient_flops(), "direct": formulas.direct_flops()}
    leading = {name: leading_terms(count, ("N", "d")) for name, count in counts.items()}
    return {name: str(total(terms or (), factors=False)) for name, terms in leading.items()}


def quadratic() -> tuple[Any, Any, Any]:
    """Coefficients a, b, c of aN² + bN + c = 0, whose larger root is N1."""
    difference = printed("004-ENT-DIRECT") - printed("004-ENT-EFFICIENT")
    a, b, c = sympy.Poly(difference, N).all_coeffs()
    return a, b, c


def radicand() -> Any:
    """What stands under the root of N1 = (d²+2d+1 + √…)/4."""
    a, b, c = quadratic()
    return sympy.expand(b**2 - 4 * a * c)


@CHECKS.answers(
    "004-EQ7-rad",
    ["(d**2 + 2*d + 1)**2 + 8*(d**3 + d**2)", "d**4 + 12*d**3 + 14*d**2 + 4*d + 1"],
    how="discriminant of the difference of the printed entries, as it stands and expanded",
)
def _radicands() -> list[str]:
    a, b, c = quadratic()
    return [f"({sympy.expand(-b)})**2 + {-4 * a}*({c})", str(radicand())]


def dominating_square() -> Any:
    """The smallest d²+ed+s whose square is never below the radicand for d ≥ 0.

    The two highest powers fix d² + ed, the value at 0 the least possible s; that s is enough if
    no coefficient of the difference is negative.
    """
    r = sympy.Poly(radicand(), D)
    _, cubic, *_, constant = r.all_coeffs()
    root = D**2 + cubic / 2 * D + sympy.sqrt(constant)
    over = sympy.Poly(root**2, D) - r
    if any(coefficient < 0 for coefficient in over.all_coeffs()):
        raise ArithmeticError("the square of the leading terms is not above the radicand")
    return root


@CHECKS.answers(
    "004-N1-bound",
    "d**2/2 + 2*d + 1/2",
    how="the smallest d²/2+2d+c that is nowhere below N1: c from d = 0, the rest by signs",
    note="The bound is the best of its form: at d → 0 it is reached.",
)
def tightest_bound() -> str:
    """N1 with the root replaced by the root of that square."""
    a, b, _ = quadratic()
    return str(sympy.expand((-b + dominating_square()) / (2 * a)))


@CHECKS.answers(
    "004-A4-sq",
    {"root": "d**2 + 6*d + 1", "square": "d**4 + 12*d**3 + 38*d**2 + 12*d + 1"},
    how="the smallest square above the radicand, multiplied out",
)
def _square() -> dict[str, str]:
    root = dominating_square()
    return {"root": str(root), "square": str(sympy.expand(root**2))}


@CHECKS.answers(
    "004-A4-word",
    {
        "equation": "d*N + 2*N**2 - d**2*(d + 1) - 2*d*N - (d + 1)*N - d**2*N",
        "solutions": 2,
        "positive": 1,
    },
    how="printed entries of h heads over h; signs of the radicand's and of c's coefficients",
    note="The larger solution is the positive one. N and N1 stand for the same unknown, and "
    "the factor h on both sides cancels: slips of writing, nothing depends on them.",
)
def _solutions() -> dict[str, Any]:
    a, _, c = quadratic()
    all_heads = printed("004-MHSA-ENT-DIRECT") - printed("004-MHSA-ENT-EFFICIENT")
    # Signs of all coefficients in d decide: nothing is tried at single widths.
    real = all(x > 0 for x in sympy.Poly(radicand(), D).coeffs())
    # Roots of different signs have a negative product c/a.
    apart = a > 0 and all(x < 0 for x in sympy.Poly(c, D).coeffs())
    return {
        "equation": str(sympy.expand(all_heads / H)),
        "solutions": 2 if real else 0,
        "positive": 1 if apart else 0,
    }
