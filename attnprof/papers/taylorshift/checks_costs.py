"""Checks of document 004, Sec 4 and A.1 to A.4: costs of both forms, crossings, number of heads.

Printed formulas and counts of its definitions are expressions in N tokens, head width d and h
heads, all positive.
"""

from functools import cache, partial
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.algebra.orders import leading_terms, total
from attnprof.crossovers.sides import Meeting, contests
from attnprof.crossovers.solve import solved
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("004")
FORMS = ("taylor-direct", "taylor-efficient")
N, D, H = map(symbol, "Ndh")
#: N0 and N1, and the metric of ``attnprof crossover`` that each is of.
METRICS = {"N0": "flops", "N1": "memory"}
WIDTHS = tuple(int(row["d"]) for row in DOCUMENT.rows("table02_transition_points"))
TRANSITIONS = {f"004-T2-d{row['d']}": row for row in DOCUMENT.rows("table02_transition_points")}
#: Digits of the isolated root, with which the root in radicals is compared.
DIGITS = 40
X, Y, U, Z = map(symbol, "xyuz")
D_E = symbol("d_e")
#: Sec 4.2: the values, the scores, and their Taylor map, which needs its own memory.
DIRECT_ENTRIES = sympy.expand(N * D + N * N + N * N)
#: Sec 4.2: A_mod, queries, keys, values with a column of ones, box products of keys.
EFFICIENT_ENTRIES = sympy.expand(D**2 * (D + 1) + N * D + N * D + N * (D + 1) + N * D**2)


def quoted(quantity: str) -> str:
    """Return a number of the document's text, as it is printed."""
    values = {row["quantity"]: row["value"] for row in DOCUMENT.rows("quoted_numbers")}
    return values[quantity]


@cache
def published(source: str) -> Any:
    """Return a printed form by its source (``004-EQ4``)."""
    forms = {form.source: form for name in FORMS for form in registry.get(name).published()}
    return forms[source]


def printed(source: str) -> Any:
    """Return a printed closed form in N and d (and h)."""
    form = published(source)
    return form.formula(Workload(N, 1 if form.heads == "one" else H, D))


@cache
def stages(mechanism: str) -> dict[str, Any]:
    """Return FLOPs of each stage of a mechanism's definition, one head."""
    by_stage: dict[str, Any] = {}
    for stage in registry.get(mechanism).definition(Workload(N, 1, D), "core"):
        by_stage[stage.name] = by_stage.get(stage.name, 0) + stage.cost.flops
    return by_stage


def direct_flops() -> Any:
    """Return Eq 1, counted by our definition; its normalisation of rows came later (Sec 3.3)."""
    eq1 = ("scores", "Taylor map", "row sums", "normalisation", "weighted values")
    return sum(stages("taylor-direct")[name] for name in eq1)


def squared_flops() -> Any:
    """Return Eq 2, counted by our definition."""
    squared = ("box products", "A_mod", "squared part")
    return sum(stages("taylor-efficient")[name] for name in squared)


def efficient_flops() -> Any:
    """Return Eq 3 as printed: one factor ½, two sums of N × (d+1), and Eq 1's division."""
    counted = stages("taylor-efficient")
    linear = counted["keysᵀ values"] + counted["linear part"]
    half = counted["factors"] / 3  # Algorithm 1 has three factors, Eq 3 one
    return squared_flops() + linear + half + counted["sums"] + counted["division"]


@cache
def crossing(name: str, head_dim: int) -> tuple[Any, str | None]:
    """Return all crossings of the printed forms at a width, and the last one's form in d."""
    direct, efficient = map(registry.get, FORMS)
    meeting = Meeting(direct, efficient, Workload(1, 1, head_dim))
    (contest,) = contests(meeting, kinds=("published",), metrics=(METRICS[name],))
    return solved(meeting, contest, head_dim)


def first_lengths(head_dim: int) -> dict[str, int]:
    """Return the first whole lengths from which on the efficient form is not dearer."""
    return {name: int(crossing(name, head_dim)[0].first_seq_len) for name in METRICS}


def fraction() -> tuple[Any, Any]:
    """Return N0 before it is divided out: the efficient count over N, the direct one over N²."""
    over, under = efficient_flops() / N, direct_flops() / N**2
    return sympy.expand(over), sympy.expand(under)


def _split() -> list[str]:
    top, bottom = fraction()
    parts = [sympy.expand(D**power * bottom) for power in (2, 1)]
    return [str(part) for part in (*parts, sympy.expand(top - sum(parts)))]


def _sums_and_factors() -> str:
    counted = stages("taylor-efficient")
    columns = counted["sum of values"] - (D + 1)  # N values take N - 1 additions
    return str(sympy.expand(counted["factors"] / 3 + counted["sums"] + columns))


def dearer_from() -> str:
    """Return operations of an exponential from which on softmax attention takes more than Eq 1."""
    counted, price = stages("standard"), symbol("price")
    softmax = sum(count for name, count in counted.items() if name != "scaling")
    difference = softmax + (price - 1) * counted["exponentials"] - direct_flops()
    (even,) = sympy.solve(difference, price)
    return str(even)


def _orders() -> dict[str, str]:
    counts = {"efficient": efficient_flops(), "direct": direct_flops()}
    leading = {name: leading_terms(count, ("N", "d")) for name, count in counts.items()}
    return {name: str(total(terms or (), factors=False)) for name, terms in leading.items()}


def quadratic() -> tuple[Any, Any, Any]:
    """Return coefficients a, b, c of aN² + bN + c = 0, whose larger root is N1."""
    difference = printed("004-ENT-DIRECT") - printed("004-ENT-EFFICIENT")
    a, b, c = sympy.Poly(difference, N).all_coeffs()
    return a, b, c


def radicand() -> Any:
    """Return the radicand of N1 = (d²+2d+1 + √…)/4."""
    a, b, c = quadratic()
    return sympy.expand(b**2 - 4 * a * c)


def _radicands() -> list[str]:
    a, b, c = quadratic()
    return [f"({sympy.expand(-b)})**2 + {-4 * a}*({c})", str(radicand())]


def dominating_square() -> Any:
    """Return the smallest d²+ed+s whose square is never below the radicand for d ≥ 0.

    The two highest powers fix d² + ed, the value at 0 the least possible s. It is large enough if
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
    """Return N1 with the root replaced by the root of that square."""
    a, b, _ = quadratic()
    return str(sympy.expand((-b + dominating_square()) / (2 * a)))


def _solutions() -> dict[str, Any]:
    a, _, c = quadratic()
    all_heads = printed("004-MHSA-ENT-DIRECT") - printed("004-MHSA-ENT-EFFICIENT")
    # Signs of all coefficients in d decide: nothing is tried at single widths.
    real = all(x > 0 for x in sympy.Poly(radicand(), D).coeffs())
    # Roots of different signs have a negative product c/a.
    opposite = a > 0 and all(x < 0 for x in sympy.Poly(c, D).coeffs())
    return {
        "equation": str(sympy.expand(all_heads / H)),
        "solutions": 2 if real else 0,
        "positive": 1 if opposite else 0,
    }


def all_heads(one: Any) -> Any:
    """Return the cost of h heads of width d_e / h, from the cost of one."""
    return sympy.expand(H * one.subs(D, D_E / H))


def slope_in_heads(one: Any) -> Any:
    """Return how the cost of all heads changes with h at a fixed d_e, written in d."""
    return sympy.expand(sympy.diff(all_heads(one), H).subs(D_E, D * H))


def falls_for_every_head_count(one: Any) -> bool:
    """Return whether the cost falls for d ≥ 1, that is for every h up to d_e.

    With d = 1 + t every coefficient of the slope must be negative for t ≥ 0, N ≥ 1.
    """
    t, m = symbol("t"), symbol("m")
    slope = slope_in_heads(one).subs({D: 1 + t, N: 1 + m}, simultaneous=True)
    return all(x < 0 for x in sympy.Poly(sympy.expand(slope), t, m).coeffs())


@cache
def equation() -> Any:
    """Return 8d³ + 10d² of the equation 8d³ + 10d² = 3, Eq 8."""
    return sympy.expand(3 - slope_in_heads(efficient_flops()) / N)


@cache
def steps() -> dict[str, Any]:
    """Return the steps of A.2 that lead to the larger solution for u = y³, by name."""
    depressed = sympy.expand(equation().subs(D, X - sympy.Rational(5, 12)) - 3)  # has no square
    monic = sympy.Poly(depressed, X).monic().as_expr()
    vieta = sympy.expand(monic.subs(X, Y + sympy.Rational(25, 144) / Y))
    quadratic = sympy.expand(vieta * Y**3).subs({Y**6: U**2, Y**3: U})
    a, b, c = sympy.Poly(quadratic, U).all_coeffs()
    u = (-b + sympy.sqrt(b**2 - 4 * a * c)) / (2 * a)
    return {"depressed": depressed, "monic": monic, "vieta": vieta, "u": u}


def real_solutions() -> list[Any]:
    """Return all real solutions of the equation, isolated exactly."""
    return list(sympy.Poly(equation() - 3, D).real_roots())


def _flat_heads() -> dict[str, float]:
    roots = [root for root in real_solutions() if root.is_positive]
    return {"positive": len(roots), "d": float(roots[0].n(20))}


PRINTED: Printed = {
    claim: {name: int(row[name]) for name in ("N0", "N1")} for claim, row in TRANSITIONS.items()
}
OURS: Ours = {
    "004-EQ4": lambda: str(direct_flops()),
    "004-YSQU": lambda: str(squared_flops()),
    "004-EQ5": lambda: str(efficient_flops()),
    "004-EQ6": lambda: {
        "fraction": "({})/({})".format(*fraction()),
        "N0": str(crossing("N0", WIDTHS[0])[1]),
    },
    "004-EQ7": lambda: str(crossing("N1", WIDTHS[0])[1]),
    "004-A1": _split,
    "004-COLSUM": _sums_and_factors,
    # an exponential is one operation here
    "004-STD-higher": lambda: {"standard takes more": float(dearer_from()) < 1},
    "004-COMPL": _orders,
    "004-EQ7-rad": _radicands,
    "004-N1-bound": tightest_bound,
    "004-A4-sq": lambda: {
        "root": str(dominating_square()),
        "square": str(sympy.expand(dominating_square() ** 2)),
    },
    "004-A4-word": _solutions,
    "004-T2-N1small": lambda: all(
        x["N1"] <= 2 / 3 * x["N0"] for x in map(first_lengths, WIDTHS)
    ),  # "considerably smaller"
    **{claim: partial(first_lengths, int(row["d"])) for claim, row in TRANSITIONS.items()},
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
    "004-h0-root": _flat_heads,
}
FACTS: Facts = {"004-STD-higher": lambda *_: {"price": dearer_from()}}
