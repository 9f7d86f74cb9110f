"""The maximum of many size polynomials, pruned.

Sympy compares expressions for seconds; of dictionaries of monomials those dominated drop out.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

#: Factors by the number of the term.
Monomials = dict[int, Any]


def maximum_of(candidates: Iterable[Any]) -> Any:
    """The largest of several expressions in sizes (each at least 1), as one sympy Max."""
    return running_maximum(0, [(candidate, 0, candidate) for candidate in candidates])


def running_maximum(start: Any, steps: Iterable[tuple[Any, Any, Any]]) -> Any:
    """The most that is held at any time, as one sympy Max of what may be the largest.

    ``start`` is held before; each step is (allocates, workspace, frees). A candidate is dropped
    where another has every coefficient at least as large: sizes are at least 1.
    """
    import sympy

    seen: dict[Any, Monomials] = {}  # most tensors' sizes repeat
    places: dict[Any, int] = {}  # terms by number, which compares faster

    def monomials(expression: Any) -> Monomials:
        if expression not in seen:
            found = _expanded(sympy.sympify(expression)).items()
            seen[expression] = {places.setdefault(x, len(places)): factor for x, factor in found}
        return seen[expression]

    held, peaks = monomials(start), list[Monomials]()
    for allocates, workspace, frees in steps:
        held = _plus(held, monomials(allocates), 1)
        peak = _plus(held, monomials(workspace), 1)
        if not any(_dominates(other, peak) for other in peaks):
            peaks = [*(other for other in peaks if not _dominates(peak, other)), peak]
        held = _plus(held, monomials(frees), -1)
    terms = list(places)
    most = [sympy.Add(*(n * terms[i] for i, n in table.items())) for table in peaks or [held]]
    return most[0] if len(most) == 1 else sympy.Max(*most, evaluate=False)


@lru_cache(maxsize=4096)
def _expanded(expression: Any) -> dict[Any, Any]:
    """Terms of a sum and their factors, ints where they are whole."""
    import sympy

    # expanding would walk through a switch's condition: a name stands in for it
    names = {x: sympy.Dummy(nonnegative=True) for x in expression.atoms(sympy.Piecewise)}
    back = {name: switch for switch, name in names.items()}
    found = sympy.expand(expression.xreplace(names)).as_coefficients_dict()
    return {
        term.xreplace(back): int(factor) if factor.is_Integer else factor
        for term, factor in found.items()
        if factor
    }


def _plus(one: Monomials, more: Monomials, sign: int) -> Monomials:
    total = dict(one)
    for term, factor in more.items():
        total[term] = total.get(term, 0) + sign * factor
    return {term: factor for term, factor in total.items() if factor}


def _dominates(large: Monomials, small: Monomials) -> bool:
    more = all(large.get(term, 0) >= factor for term, factor in small.items())
    return more and all(factor >= 0 or term in small for term, factor in large.items())
