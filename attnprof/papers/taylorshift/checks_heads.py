"""004, Sec 4.3, A.2 and A.3: costs against the number of heads at a fixed d_e, and Eq 8 solved."""

from functools import cache
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.papers.checks import Ours
from attnprof.papers.taylorshift.formulas import D, H, N, direct_flops, efficient_flops

#: Digits of the isolated root, which one in radicals is compared to.
DIGITS = 40
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


def flat_heads() -> dict[str, float]:
    """How many positive roots the derivative by h has, and the first."""
    roots = [root for root in real_solutions() if root.is_positive]
    return {"positive": len(roots), "d": float(roots[0].n(20))}


OURS: Ours = {
    "004-MHSA-triv": lambda: str(all_heads(direct_flops())),
    "004-MHSA-eff": lambda: str(all_heads(efficient_flops())),
    "004-MHSA-dops": lambda: str(slope_in_heads(efficient_flops())),
    "004-ent-triv": lambda: str(all_heads(DIRECT_ENTRIES)),
    "004-ent-eff": lambda: str(H * EFFICIENT_ENTRIES),
    "004-ent-effMH": lambda: str(all_heads(EFFICIENT_ENTRIES)),
    "004-ent-diff": lambda: str(slope_in_heads(EFFICIENT_ENTRIES)),
    "004-h0-range": lambda: falls_for_every_head_count(efficient_flops()),
    "004-h1": lambda: falls_for_every_head_count(EFFICIENT_ENTRIES),
    "004-A2-first": lambda: str(equation().subs(D, Z)),
    "004-A2-depressed": lambda: str(steps()["depressed"]),
    "004-A2-monic": lambda: str(steps()["monic"]),
    "004-A2-vieta": lambda: str(steps()["vieta"]),
    "004-A2-u": lambda: str(steps()["u"]),
    "004-h0-closed": lambda: str(real_solutions()[0].evalf(DIGITS)),
    "004-h0-onlyreal": lambda: {"real solutions": len(real_solutions())},
    "004-h0-root": flat_heads,
}
