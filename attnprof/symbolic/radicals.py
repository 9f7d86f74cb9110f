"""The root of a difference in closed form: linear or quadratic in the length, in d."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from attnprof.symbolic.polynomials import Terms
from attnprof.symbolic.roots import Root

#: How near a closed form must come to the exact root to be it.
TOLERANCE = 1e-12


def closed_form(terms: Terms, head_dim: int, root: Root) -> str | None:
    """The root as sympy text in ``d``; None where the degree in the length is above 2.

    ``terms`` is the difference in (seq_len, head_dim); ``root`` tells at one head width which of
    two roots is meant.
    """
    low = min((i for i, _ in terms), default=0)
    degree = max((i for i, _ in terms), default=0) - low
    if degree not in (1, 2):
        return None
    c, b, a = (_in_width(terms, low + power) for power in range(3))
    if degree == 1:
        return str(_quotient(-c, b))
    return _quadratic(a, b, c, head_dim, root)


def _in_width(terms: Terms, power: int) -> Any:
    """The coefficient of one power of the length, a polynomial in d."""
    from sympy import QQ, Poly, Symbol

    found = {
        (j,): QQ(Fraction(factor).numerator, Fraction(factor).denominator)
        for (i, j), factor in terms.items()
        if i == power
    }
    return Poly.from_dict(found or {(0,): QQ(0)}, Symbol("d"), domain=QQ)


def _quotient(top: Any, bottom: Any) -> Any:
    factor, top, bottom = top.cancel(bottom)
    if bottom.is_ground:
        return (top * factor).quo_ground(bottom.LC()).as_expr()
    return factor * top.as_expr() / bottom.as_expr()


def _quadratic(a: Any, b: Any, c: Any, head_dim: int, root: Root) -> str | None:
    """(-b ± sqrt(b² - 4ac)) / 2a, squares taken out of the root."""
    from sympy import sqrt

    content, factors = (b * b - 4 * a * c).sqf_list()
    inside, outside = a.one * content, a.one
    for factor, times in factors:
        inside, outside = inside * factor ** (times % 2), outside * factor ** (times // 2)
    denominator, inside = inside.clear_denoms(convert=False)
    inside = inside * denominator  # sqrt(p/q) = sqrt(p·q)/q, and clear_denoms gave p = inside·q
    for sign in (1, -1):
        plain = _quotient(-b, a * 2)
        radical = _quotient(outside * sign, a * 2 * denominator) * sqrt(inside.as_expr())
        found = plain + radical
        value = float(found.subs(_symbol(), head_dim))
        if abs(value - float(root.at)) <= TOLERANCE * max(1.0, float(root.at)):
            return str(found.expand())
    return None


def _symbol() -> Any:
    from sympy import Symbol

    return Symbol("d")
