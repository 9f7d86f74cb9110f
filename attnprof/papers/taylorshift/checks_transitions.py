"""004, Table 2: the lengths from which the efficient form is cheaper."""

from __future__ import annotations

from functools import cache, partial

from attnprof.papers.checks import Check
from attnprof.papers.documents import document

ROWS = document("004").rows("table02_transition_points")


@cache
def transitions(head_dim: int) -> dict[str, int]:
    """The first whole lengths at or above the roots of the published counts' differences."""
    import sympy

    from attnprof.papers.taylorshift.formulas import published

    N, d = sympy.symbols("N d", positive=True)
    found = {}
    for name, direct, efficient in (
        ("N0", "operations_direct", "operations_efficient"),
        ("N1", "entries_direct", "entries_efficient"),
    ):
        difference = (published(direct) - published(efficient)).subs(d, head_dim)
        found[name] = int(sympy.ceiling(max(sympy.Poly(difference, N).nroots(n=30))))
    return found


CHECKS = [
    Check(
        f"004-T2-d{row['d']}",
        {"N0": int(row["N0"]), "N1": int(row["N1"])},
        partial(transitions, int(row["d"])),
        how="largest root in N of direct minus efficient, of the printed counts, rounded up",
        tables=("2",),
    )
    for row in ROWS
]
