"""004, Sec 4.1, 4.2, A.1, A.4 and Table 2: both forms' costs, and the lengths where they meet."""

from functools import partial
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.orders import leading_terms, total
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.taylorshift import formulas
from attnprof.papers.taylorshift.formulas import DOCUMENT, WIDTHS, D, H, N, first_lengths, printed

#: Operations of an exponential, as this project counts.
EXPONENTIAL = 1
#: N1 at most this part of N0 is "considerably smaller".
CONSIDERABLY = 2 / 3


def fraction() -> tuple[Any, Any]:
    """N0 before it is divided out: the efficient count over N, the direct one over N²."""
    over, under = formulas.efficient_flops() / N, formulas.direct_flops() / N**2
    return sympy.expand(over), sympy.expand(under)


def closed_form(name: str) -> str:
    """N0 or N1 in d."""
    return str(formulas.crossing(name, WIDTHS[0])[1])


def split() -> list[str]:
    """The numerators of A.1: what d² and d times the lower side take, and what is left."""
    top, bottom = fraction()
    parts = [sympy.expand(D**power * bottom) for power in (2, 1)]
    return [str(part) for part in (*parts, sympy.expand(top - sum(parts)))]


def sums_and_factors() -> str:
    """FLOPs of one factor, the two sums, and the sums of V's columns."""
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


def orders() -> dict[str, str]:
    """The leading term of each form, without its factor."""
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


def radicands() -> list[str]:
    """What stands under the root, as it comes and expanded."""
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


def tightest_bound() -> str:
    """N1 with the root replaced by the root of that square."""
    a, b, _ = quadratic()
    return str(sympy.expand((-b + dominating_square()) / (2 * a)))


def solutions() -> dict[str, Any]:
    """A.4's equation in N, how many solutions it has, and how many are positive."""
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


TRANSITIONS = {f"004-T2-d{row['d']}": row for row in DOCUMENT.rows("table02_transition_points")}
PRINTED: Printed = {
    claim: {name: int(row[name]) for name in ("N0", "N1")} for claim, row in TRANSITIONS.items()
}
OURS: Ours = {
    "004-EQ4": lambda: str(formulas.direct_flops()),
    "004-YSQU": lambda: str(formulas.squared_flops()),
    "004-EQ5": lambda: str(formulas.efficient_flops()),
    "004-EQ6": lambda: {"fraction": "({})/({})".format(*fraction()), "N0": closed_form("N0")},
    "004-EQ7": lambda: closed_form("N1"),
    "004-A1": split,
    "004-COLSUM": sums_and_factors,
    "004-STD-higher": lambda: {"standard takes more": float(dearer_from()) < EXPONENTIAL},
    "004-COMPL": orders,
    "004-EQ7-rad": radicands,
    "004-N1-bound": tightest_bound,
    "004-A4-sq": lambda: {
        "root": str(dominating_square()), "square": str(sympy.expand(dominating_square() ** 2)),
    },
    "004-A4-word": solutions,
    "004-T2-N1small": lambda: all(
        x["N1"] <= CONSIDERABLY * x["N0"] for x in map(first_lengths, WIDTHS)
    ),
    **{claim: partial(first_lengths, int(row["d"])) for claim, row in TRANSITIONS.items()},
}  # fmt: skip
FACTS: Facts = {"004-STD-higher": lambda *_: {"price": dearer_from()}}
