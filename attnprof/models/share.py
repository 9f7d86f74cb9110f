"""From which length on a part of a model is half of its work."""

from typing import Any


def half_length(part: Any, whole: Any) -> int | None:
    """The first length N from which on a part is half of the whole or more, for a batch of 1.

    Both are expressions in B and N. None where that never comes to be, or is no polynomial in N.
    """
    import sympy

    from attnprof.algebra.expressions import symbol

    n = symbol("N")
    difference = sympy.expand((2 * part - whole).subs(symbol("B"), 1))
    if not difference.is_polynomial(n) or difference.free_symbols - {n}:
        return None
    poly = sympy.Poly(difference, n)
    if poly.LC() <= 0:
        return None
    roots = [root for root in poly.real_roots() if root > 0]
    return max(1, int(sympy.ceiling(max(roots)))) if roots else 1
