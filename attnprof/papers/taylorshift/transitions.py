"""Where the printed costs of both forms of 004 meet: N0 in operations, N1 in entries."""

from __future__ import annotations

from functools import cache
from typing import Any

from attnprof.papers.documents import document
from attnprof.papers.taylorshift.formulas import (
    direct_flops,
    efficient_flops,
    printed,
    symbol,
)

#: N0 and N1, and the metric of ``attnprof crossover`` that each is of.
METRICS = {"N0": "flops", "N1": "memory"}
WIDTHS = tuple(int(row["d"]) for row in document("004").rows("table02_transition_points"))


@cache
def _crossing(name: str, head_dim: int) -> tuple[Any, str | None]:
    """All crossings of the printed forms at one width, and the last one's closed form in d."""
    from attnprof import registry
    from attnprof.symbolic.meeting import Meeting, contests, solved
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
