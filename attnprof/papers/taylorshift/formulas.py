"""004's formulas as expressions: what it prints, and what its definitions count to.

Symbols: N tokens, d the width of a head, h heads, d_e = h·d. All are positive.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.closed_form.crossover import Meeting, contests, solved
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("004")
FORMS = ("taylor-direct", "taylor-efficient")
N, D, H, D_E = (symbol(name) for name in ("N", "d", "h", "d_e"))
#: Stages of our definitions that belong to Eq 1: its normalisation of rows came later (Sec 3.3).
DIRECT = ("scores", "Taylor map", "row sums", "normalisation", "weighted values")
#: The squared part of Eq 3 (Eq 2), and its linear part.
SQUARED = ("box products", "A_mod", "squared part")
LINEAR = ("keysᵀ values", "linear part")


def quoted(quantity: str) -> str:
    """A number of the running text, as it is printed there."""
    values = {row["quantity"]: row["value"] for row in DOCUMENT.rows("quoted_numbers")}
    return values[quantity]


@cache
def published(source: str) -> Any:
    """A printed form by its source (``004-EQ4``)."""
    forms = {form.source: form for name in FORMS for form in registry.get(name).published()}
    return forms[source]


@cache
def printed(source: str) -> Any:
    """Its closed form in N and d (and h)."""
    form = published(source)
    return form.formula(Workload(N, 1 if form.heads == "one" else H, D))


@cache
def stages(mechanism: str) -> dict[str, Any]:
    """FLOPs of each stage of a mechanism's definition, one head."""
    found: dict[str, Any] = {}
    for stage in registry.get(mechanism).definition(Workload(N, 1, D), "core"):
        found[stage.name] = found.get(stage.name, 0) + stage.cost.flops
    return found


def direct_flops() -> Any:
    """Eq 1, counted by our definition."""
    return sum(stages("taylor-direct")[name] for name in DIRECT)


def squared_flops() -> Any:
    """Eq 2, counted by our definition."""
    return sum(stages("taylor-efficient")[name] for name in SQUARED)


def efficient_flops() -> Any:
    """Eq 3 as it is printed: one factor ½, two sums of N × (d+1), and the division by Eq 1."""
    counted = stages("taylor-efficient")
    linear = sum(counted[name] for name in LINEAR)
    half = counted["factors"] / 3  # Algorithm 1 has three factors, Eq 3 one
    return squared_flops() + linear + half + counted["sums"] + counted["division"]


def direct_entries() -> Any:
    """Sec 4.2: the values, the scores, and their Taylor map, which needs its own memory."""
    return sympy.expand(N * D + N * N + N * N)


def efficient_entries() -> Any:
    """Sec 4.2: A_mod, queries, keys, values with a column of ones, box products of keys."""
    return sympy.expand(D**2 * (D + 1) + N * D + N * D + N * (D + 1) + N * D**2)


def all_heads(one: Any) -> Any:
    """The cost of h heads of width d_e / h, from that of one."""
    return sympy.expand(H * one.subs(D, D_E / H))


def slope_in_heads(one: Any) -> Any:
    """How the cost of all heads changes with h at a fixed d_e, written in d."""
    return sympy.expand(sympy.diff(all_heads(one), H).subs(D_E, D * H))


#: N0 and N1, and the metric of ``attnprof crossover`` that each is of.
METRICS = {"N0": "flops", "N1": "memory"}
WIDTHS = tuple(int(row["d"]) for row in DOCUMENT.rows("table02_transition_points"))


@cache
def _crossing(name: str, head_dim: int) -> tuple[Any, str | None]:
    """All crossings of the printed forms at one width, and the last one's closed form in d."""
    direct, efficient = map(registry.get, FORMS)
    meeting = Meeting(direct, efficient, Workload(1, 1, head_dim))
    (contest,) = contests(meeting, kinds=("published",), metrics=(METRICS[name],))
    return solved(meeting, contest, head_dim)


def first_lengths(head_dim: int) -> dict[str, int]:
    """The first whole lengths from which on the efficient form is not dearer."""
    return {name: int(_crossing(name, head_dim)[0].first_seq_len) for name in METRICS}


def closed_form(name: str) -> str:
    """N0 or N1 in d."""
    return str(_crossing(name, WIDTHS[0])[1])


@cache
def quadratic() -> tuple[Any, Any, Any]:
    """Coefficients a, b, c of aN² + bN + c = 0, whose larger root is N1."""
    difference = printed("004-ENT-DIRECT") - printed("004-ENT-EFFICIENT")
    a, b, c = sympy.Poly(difference, N).all_coeffs()
    return a, b, c
