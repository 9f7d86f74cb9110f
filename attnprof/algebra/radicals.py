"""The root of a difference in closed form: linear or quadratic in the length, in d."""

from __future__ import annotations

import math
from fractions import Fraction

from attnprof.algebra.polynomials import Polynomial
from attnprof.algebra.roots import Root, value_at
from attnprof.algebra.univariate import (
    Poly,
    common,
    content,
    exact,
    joined,
    plus,
    square_split,
    terms_text,
    text,
    times,
)


def closed_form(terms: Polynomial, head_dim: int, root: Root) -> str | None:
    """The root as sympy text in ``d``; None where the degree in the length is above 2.

    ``terms`` is the difference in (seq_len, head_dim); ``root``, a root of it at one head width,
    tells which of two is meant. None too where a leading coefficient vanishes at that width.
    """
    low = min((i for i, _ in terms), default=0)
    degree = max((i for i, _ in terms), default=0) - low
    if degree not in (1, 2):
        return None
    scale = math.lcm(*(Fraction(factor).denominator for factor in terms.values()))
    c, b, a = (_in_width(terms, low + power, scale) for power in range(3))
    if not value_at(a if degree == 2 else b, head_dim):
        return None
    if degree == 1:
        return _shown(times(c, (-1,)), (), (), b)
    return _quadratic(a, b, c, head_dim, root)


def _in_width(terms: Polynomial, power: int, scale: int) -> Poly:
    """The coefficient of one power of the length, a polynomial in d."""
    found = {j: int(factor * scale) for (i, j), factor in terms.items() if i == power}
    return tuple(found.get(j, 0) for j in range(1 + max(found, default=-1)))


def _quadratic(a: Poly, b: Poly, c: Poly, head_dim: int, root: Root) -> str:
    """(-b ± s·sqrt(r)) / 2a with s²·r = b² - 4ac."""
    outside, inside = square_split(plus(times(b, b), times(times(a, c), (-4,))))
    top, bottom = times(b, (-1,)), times(a, (2,))
    below = value_at(bottom, head_dim)
    # Which of the two: the root lies above or below the middle -b/2a at this width.
    above = root.at * below > value_at(top, head_dim)
    sign = 1 if above == (value_at(outside, head_dim) > 0) else -1
    radical = times(outside, (sign,))
    if inside == (1,):
        return _shown(plus(top, radical), (), (), bottom)
    return _shown(top, radical, inside, bottom)


def _shown(plain: Poly, radical: Poly, inside: Poly, bottom: Poly) -> str:
    """(plain + radical·sqrt(inside)) / bottom, reduced, as text."""
    shared = bottom
    for part in (plain, radical):
        shared = common(shared, part) if part else shared
    if len(shared) > 1:
        plain, radical, bottom = (
            exact(part, common(shared, ())) for part in (plain, radical, bottom)
        )
    number = math.gcd(*(content(part) for part in (plain, radical, bottom) if part))
    number *= -1 if bottom[-1] < 0 else 1
    plain, radical, bottom = (tuple(x // number for x in part) for part in (plain, radical, bottom))
    if len(bottom) == 1:
        return joined(_with_root(plain, radical, inside, bottom[0]))
    top = _with_root(plain, radical, inside, 1)
    return f"{_grouped(joined(top))}/({text(bottom)})"


def _with_root(plain: Poly, radical: Poly, inside: Poly, denominator: int) -> list[str]:
    """Terms of the sum, the root before the constant, as sympy orders them."""
    terms = terms_text(plain, denominator)
    if not radical:
        return terms
    constant = [terms.pop()] if plain and plain[0] else []
    return [*terms, _root_term(radical, inside, denominator), *constant]


def _root_term(radical: Poly, inside: Poly, denominator: int) -> str:
    sign = "-" if radical[-1] < 0 else "+"
    size = times(radical, (1 if sign == "+" else -1,))
    if len(size) == 1:
        value = Fraction(size[0], denominator)
        factor, below = f"{value.numerator}*" if value.numerator != 1 else "", value.denominator
    else:
        factor, below = f"{_grouped(text(size))}*", denominator
    return f"{sign}{factor}sqrt({text(inside)}){f'/{below}' if below > 1 else ''}"


def _grouped(sum_: str) -> str:
    return f"({sum_})" if " " in sum_ else sum_
