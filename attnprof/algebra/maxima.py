"""The maximum of many size polynomials, pruned.

Sympy compares expressions for seconds; of dictionaries of monomials those dominated drop out.
"""

from collections.abc import Iterable
from typing import Any

Monomials = dict[Any, Any]


def maximum_of(candidates: Iterable[Any]) -> Any:
    """The largest of several expressions in sizes (each at least 1), as one sympy Max."""
    return running_maximum(0, [(candidate, 0, candidate) for candidate in candidates])


def running_maximum(start: Any, steps: Iterable[tuple[Any, Any, Any]]) -> Any:
    """The most that is held at any time, as one sympy Max of what may be the largest.

    ``start`` is held before; each step is (allocates, workspace, frees). A candidate is dropped
    where another has every coefficient at least as large: sizes are at least 1.
    """
    import sympy

    seen: dict[Any, Monomials] = {}  # most tensors' sizes repeat: they are expanded once
    names: dict[Any, Any] = {}

    def monomials(expression: Any) -> Monomials:
        expression = sympy.sympify(expression)
        if expression not in seen:
            # expanding would walk through a switch's condition: a name stands in for it
            for switch in expression.atoms(sympy.Piecewise):
                names.setdefault(switch, sympy.Dummy(nonnegative=True))
            plain = sympy.expand(expression.xreplace(names))
            seen[expression] = dict(plain.as_coefficients_dict())
        return seen[expression]

    held, peaks = monomials(start), list[Monomials]()
    for allocates, workspace, frees in steps:
        held = _plus(held, monomials(allocates), 1)
        peak = _plus(held, monomials(workspace), 1)
        if not any(_dominates(other, peak) for other in peaks):
            peaks = [*(other for other in peaks if not _dominates(peak, other)), peak]
        held = _plus(held, monomials(frees), -1)
    back = {name: switch for switch, name in names.items()}
    sums = (sympy.Add(*(n * term for term, n in table.items())) for table in peaks or [held])
    terms = [found.xreplace(back) for found in sums]
    return terms[0] if len(terms) == 1 else sympy.Max(*terms, evaluate=False)


def _plus(one: Monomials, more: Monomials, sign: int) -> Monomials:
    total = dict(one)
    for term, factor in more.items():
        total[term] = total.get(term, 0) + sign * factor
    return {term: factor for term, factor in total.items() if factor}


def _dominates(large: Monomials, small: Monomials) -> bool:
    keys = set(large) | set(small)
    return all(large.get(key, 0) >= small.get(key, 0) for key in keys)
