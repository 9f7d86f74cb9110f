"""004's formulas as expressions: what it prints, and what its definitions count to.

Symbols: N tokens, d the width of a head, h heads, d_e = h·d. All are positive.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attnprof.papers.documents import document

#: Stages of our definitions that belong to Eq 1: its normalisation of rows came later (Sec 3.3).
DIRECT = ("scores", "Taylor map", "row sums", "normalisation", "weighted values")
#: The squared part of Eq 3 (Eq 2), and its linear part.
SQUARED = ("box products", "A_mod", "squared part")
LINEAR = ("keysᵀ values", "linear part")


@cache
def symbol(name: str) -> Any:
    """A positive symbol."""
    import sympy

    return sympy.Symbol(name, positive=True)


def _workload(**sizes: Any) -> Any:
    from attnprof.workload import Workload

    return Workload(**{"seq_len": symbol("N"), "num_heads": 1, "head_dim": symbol("d"), **sizes})


@cache
def printed(source: str) -> Any:
    """A printed closed form by its source (``004-EQ4``), in N and d (and h)."""
    from attnprof import registry

    for name in ("taylor-direct", "taylor-efficient"):
        for form in registry.get(name).published():
            if form.source == source:
                heads = {} if form.heads == "one" else {"num_heads": symbol("h")}
                return form.formula(_workload(**heads))
    raise KeyError(source)


@cache
def stages(mechanism: str) -> dict[str, Any]:
    """FLOPs of each stage of a mechanism's definition, one head."""
    from attnprof import registry

    found: dict[str, Any] = {}
    for stage in registry.get(mechanism).definition(_workload(), "core"):
        found[stage.name] = found.get(stage.name, 0) + stage.cost.flops
    return found


def direct_flops() -> Any:
    """Eq 1, counted by our definition."""
    counted = stages("taylor-direct")
    return sum(counted[name] for name in DIRECT)


def squared_flops() -> Any:
    """Eq 2, counted by our definition."""
    counted = stages("taylor-efficient")
    return sum(counted[name] for name in SQUARED)


def efficient_flops() -> Any:
    """Eq 3 as it is printed: one factor ½, two sums of N × (d+1), and the division by Eq 1."""
    counted = stages("taylor-efficient")
    linear = sum(counted[name] for name in LINEAR)
    half = counted["factors"] / 3  # Algorithm 1 has three factors, Eq 3 one
    return squared_flops() + linear + half + counted["sums"] + counted["division"]


def direct_entries() -> Any:
    """Sec 4.2: the values, the scores, and their Taylor map, which needs its own memory."""
    N, d = symbol("N"), symbol("d")
    return _entries((N, d), (N, N), (N, N))


def efficient_entries() -> Any:
    """Sec 4.2: A_mod, queries, keys, values with a column of ones, box products of keys."""
    N, d = symbol("N"), symbol("d")
    return _entries((d**2, d + 1), (N, d), (N, d), (N, d + 1), (N, d**2))


def _entries(*shapes: tuple[Any, Any]) -> Any:
    import sympy

    return sympy.expand(sum(rows * columns for rows, columns in shapes))


def all_heads(one: Any) -> Any:
    """The cost of h heads of width d_e / h, from that of one."""
    import sympy

    return sympy.expand(symbol("h") * one.subs(symbol("d"), symbol("d_e") / symbol("h")))


def slope_in_heads(one: Any) -> Any:
    """How the cost of all heads changes with h at a fixed d_e, written in d."""
    import sympy

    slope = sympy.diff(all_heads(one), symbol("h"))
    return sympy.expand(slope.subs(symbol("d_e"), symbol("d") * symbol("h")))


def text(expression: Any) -> str:
    """An expression as answers carry it."""
    return str(expression)


#: N0 and N1, and the metric of ``attnprof crossover`` that each is of.
METRICS = {"N0": "flops", "N1": "memory"}
WIDTHS = tuple(int(row["d"]) for row in document("004").rows("table02_transition_points"))


@cache
def _crossing(name: str, head_dim: int) -> tuple[Any, str | None]:
    """All crossings of the printed forms at one width, and the last one's closed form in d."""
    from attnprof import registry
    from attnprof.closed_form.crossover import Meeting, contests, solved
    from attnprof.workload import Workload

    direct, efficient = (registry.get(f"taylor-{form}") for form in ("direct", "efficient"))
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
def fraction() -> tuple[Any, Any]:
    """N0 before it is divided out: the efficient count over N, the direct one over N²."""
    import sympy

    N = symbol("N")
    return sympy.expand(efficient_flops() / N), sympy.expand(direct_flops() / N**2)


@cache
def quadratic() -> tuple[Any, Any, Any]:
    """Coefficients a, b, c of aN² + bN + c = 0, whose larger root is N1."""
    import sympy

    difference = printed("004-ENT-DIRECT") - printed("004-ENT-EFFICIENT")
    a, b, c = sympy.Poly(difference, symbol("N")).all_coeffs()
    return a, b, c
