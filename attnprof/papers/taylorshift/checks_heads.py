"""004, Sec 4.3, A.2 and A.3: costs against the number of heads at a fixed d_e, and Eq 8 solved."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.papers.checks import Check, Checks, formula, within
from attnprof.papers.taylorshift.formulas import D, H, N, direct_flops, efficient_flops

#: Digits to which a root in radicals and the isolated root are compared.
DIGITS = 40
OPERATIONS = "h times our count of one head, with d = d_e/h"
ENTRIES = "h times the entries of the tensors that Sec 4.2 lists, with d = d_e/h"
X, Y, U, Z = map(symbol, "xyuz")
D_E = symbol("d_e")
#: Sec 4.2: the values, the scores, and their Taylor map, which needs its own memory.
DIRECT_ENTRIES = sympy.expand(N * D + N * N + N * N)
#: Sec 4.2: A_mod, queries, keys, values with a column of ones, box products of keys.
EFFICIENT_ENTRIES = sympy.expand(D**2 * (D + 1) + N * D + N * D + N * (D + 1) + N * D**2)


def all_heads(one: Any) -> Any:
    """The cost of h heads of width d_e / h, from that of one."""
    return sympy.expand(H * one.subs(D, D_E / H))


def slope_in_heads(one: Any) -> Any:
    """How the cost of all heads changes with h at a fixed d_e, written in d."""
    return sympy.expand(sympy.diff(all_heads(one), H).subs(D_E, D * H))


def falls_for_every_head_count(one: Any) -> bool:
    """Whether the cost falls for d ≥ 1, that is for every h up to d_e.

    With d = 1 + t every coefficient of the slope must be negative for t ≥ 0, N ≥ 1.
    """
    t, m = symbol("t"), symbol("m")
    slope = slope_in_heads(one).subs({D: 1 + t, N: 1 + m}, simultaneous=True)
    return all(x < 0 for x in sympy.Poly(sympy.expand(slope), t, m).coeffs())


@cache
def equation() -> Any:
    """8d³ + 10d² of the equation 8d³ + 10d² = 3, Eq 8."""
    return sympy.expand(3 - slope_in_heads(efficient_flops()) / N)


@cache
def steps() -> dict[str, Any]:
    """A.2's way from there to the larger solution for u = y³, each step from the one before."""
    depressed = sympy.expand(equation().subs(D, X - sympy.Rational(5, 12)) - 3)  # has no square
    monic = sympy.Poly(depressed, X).monic().as_expr()
    vieta = sympy.expand(monic.subs(X, Y + sympy.Rational(25, 144) / Y))
    quadratic = sympy.expand(vieta * Y**3).subs({Y**6: U**2, Y**3: U})
    a, b, c = sympy.Poly(quadratic, U).all_coeffs()
    u = (-b + sympy.sqrt(b**2 - 4 * a * c)) / (2 * a)
    return {"depressed": depressed, "monic": monic, "vieta": vieta, "u": u}


def real_solutions() -> list[Any]:
    """All real solutions of the equation, isolated exactly."""
    return list(sympy.Poly(equation() - 3, D).real_roots())


def same_number(published: Any, ours: Any) -> bool:
    """Whether two constants agree to forty digits, of which the last is rounded."""
    apart = (formula(published) - formula(ours)).evalf(DIGITS + 5)
    return bool(abs(apart) < sympy.Float(0.6, DIGITS) * sympy.Integer(10) ** -DIGITS)


def _check(claim: str, published: str, ours: Callable[[], Any], how: str, **more: Any) -> Check:
    """A claim that is a formula."""
    return Check(claim, published, lambda: str(ours()), how, **more)


CHECKS = Checks([
    _check("004-MHSA-triv", "4*N**2*d_e + 6*h*N**2", lambda: all_heads(direct_flops()), OPERATIONS),
    _check("004-MHSA-eff", "N*(4*d_e**3/h**2 + 10*d_e**2/h + 8*d_e + 3*h)",
        lambda: all_heads(efficient_flops()), OPERATIONS),
    _check("004-MHSA-dops", "N*(3 - 8*d**3 - 10*d**2)", lambda: slope_in_heads(efficient_flops()),
        f"derivative by h of {OPERATIONS}, written in d again"),
    _check("004-ent-triv", "d_e*N + 2*N**2*h", lambda: all_heads(DIRECT_ENTRIES), ENTRIES),
    _check("004-ent-eff", "h*(d**3 + (N + 1)*d**2 + 3*N*d + N)", lambda: H * EFFICIENT_ENTRIES,
        "h times the entries of the tensors that Sec 4.2 lists"),
    _check("004-ent-effMH", "d_e**3/h**2 + (N + 1)*d_e**2/h + 3*N*d_e + N*h",
        lambda: all_heads(EFFICIENT_ENTRIES), ENTRIES),
    _check("004-ent-diff", "-2*d**3 - (N + 1)*d**2 + N", lambda: slope_in_heads(EFFICIENT_ENTRIES),
        f"derivative by h of {ENTRIES}, written in d again"),
    Check(
        "004-h0-range",
        True,
        lambda: falls_for_every_head_count(efficient_flops()),
        "the derivative by h has negative coefficients only once d = 1 + t is put in",
    ),
    Check(
        "004-h1",
        True,
        partial(falls_for_every_head_count, EFFICIENT_ENTRIES),
        "the derivative by h has negative coefficients only once d = 1 + t is put in: it is "
        "zero at some d < 1, so at more heads than channels",
    ),
    _check("004-A2-first", "10*z**3 + 11*z**2", lambda: equation().subs(D, Z),
        "the derivative by h of our count, set to zero and ordered as Eq 8",
        why="Eq 8, which this line repeats, is 8d³ + 10d² = 3; the chain that follows solves "
        "Eq 8."),
    _check("004-A2-depressed", "10*x**3 - 25/6*x - 199/108", lambda: steps()["depressed"],
        "Eq 8 with d = x - 5/12, multiplied out",
        why="The leading coefficient stays 8: 8x³ - 25/6·x - 199/108 = 0 (the right side is "
        "missing too). The next line, with 25/48 = 25/(6·8), is right."),
    _check("004-A2-monic", "x**3 - 25/48*x - 199/864", lambda: steps()["monic"],
        "Eq 8 with d = x - 5/12, over its leading coefficient"),
    _check("004-A2-vieta", "y**3 - 199/864 + 15625/(2985984*y**3)", lambda: steps()["vieta"],
        "the same with x = y + 25/(144y), multiplied out"),
    _check("004-A2-u", "(199 + 18*sqrt(74))/1728", lambda: steps()["u"],
        "the larger solution of the quadratic in u = y³"),
    _check("004-h0-closed", "cbrt(199 + 18*sqrt(74))/12 + 25/(12*cbrt(199 + 18*sqrt(74))) - 5/12",
        lambda: real_solutions()[0].evalf(DIGITS),
        "the real root of Eq 8, isolated exactly and evaluated to forty digits", agree=same_number),
    Check(
        "004-h0-onlyreal",
        {"real solutions": 1},
        lambda: {"real solutions": len(real_solutions())},
        "real roots of Eq 8, isolated exactly",
        note="Sec 4.3 says 'single positive solution', A.2 'only real solution'; both hold.",
    ),
])  # fmt: skip


@CHECKS.answers(
    "004-h0-root",
    {"positive": 1, "d": 0.47},
    how="roots of the derivative by h of our count, isolated exactly",
    agree=within(absolute=0.005),
    note="h0 = d_e/0.4673 = 2.14 d_e: more heads than channels.",
)
def _flat_heads() -> dict[str, float]:
    roots = [root for root in real_solutions() if root.is_positive]
    return {"positive": len(roots), "d": float(roots[0].n(20))}
