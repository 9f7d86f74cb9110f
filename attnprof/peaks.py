"""The maximum of many size polynomials, pruned.

Comparing sympy expressions pairwise takes seconds; as dictionaries of monomials with
non-negative coefficients, the dominated ones drop out at once.
"""

from __future__ import annotations

from typing import Any

Monomials = dict[Any, Any]


def maximum_of(candidates: list[Any]) -> Any:
    """The largest of several expressions in sizes (each at least 1), as one sympy Max.

    A candidate is dropped where another has every coefficient at least as large; what
    remains may cross and is kept.
    """
    import sympy

    # expanding would walk through a switch's condition for every candidate: a name stands in
    switches = {
        switch: sympy.Dummy(nonnegative=True)
        for candidate in candidates
        for switch in sympy.sympify(candidate).atoms(sympy.Piecewise)
    }
    back = {name: switch for switch, name in switches.items()}
    tables: list[Monomials] = []
    for candidate in (sympy.sympify(c).xreplace(switches) for c in candidates):
        table = dict(sympy.expand(candidate).as_coefficients_dict())
        if any(_dominates(other, table) for other in tables):
            continue
        tables = [other for other in tables if not _dominates(table, other)]
        tables.append(table)
    terms = [
        sympy.Add(*(factor * term for term, factor in t.items())).xreplace(back) for t in tables
    ]
    return terms[0] if len(terms) == 1 else sympy.Max(*terms, evaluate=False)


def _dominates(large: Monomials, small: Monomials) -> bool:
    keys = set(large) | set(small)
    return all(large.get(key, 0) >= small.get(key, 0) for key in keys)
