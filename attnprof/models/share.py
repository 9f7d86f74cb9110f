"""Find the length from which on a part of a model is half of its work."""

from collections.abc import Callable
from typing import Any

#: Lengths tried on either side: formulas may hold for multiples of a block alone.
_NEAR = 64


def half_length(part: Any, whole: Any, holds: Callable[[int], bool]) -> int | None:
    """Return the first length N from which on a part is half of the whole or more.

    Both are expressions in B and N, for a batch of 1. None if there is no such length, if the
    difference is no polynomial in N, or if formulas hold (``holds``) at no length on either side of
    it.
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
    length = max(1, int(sympy.ceiling(max(roots)))) if roots else 1
    below = range(max(1, length - _NEAR), length) if length > 1 else [1]
    met = any(map(holds, below)) and any(map(holds, range(length, length + _NEAR)))
    return length if met else None
