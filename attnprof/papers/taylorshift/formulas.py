"""004's formulas as expressions: what it prints, and what its definitions count to.

Symbols: N tokens, d the width of a head, h heads, d_e = h·d. All are positive.
"""

from __future__ import annotations

from functools import cache
from typing import Any

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
