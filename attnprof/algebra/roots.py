"""Positive real roots of integer polynomials, isolated exactly, and their closed forms.

Entry points: :func:`positive_roots`, and :func:`closed_form` for a root as text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

from attnprof.algebra import polynomials
from attnprof.algebra.polynomials import (
    Poly,
    Polynomial,
    common,
    derivative,
    exact,
    plus,
    text,
    times,
    trimmed,
)

#: Least bits after the point of an isolated root, so that it rounds to the nearest float.
BITS = 64


@dataclass(frozen=True, order=True)
class Root:
    """A positive root: ``at`` is exact if rational, else the middle of a tiny interval around it.

    The interval contains no integer. ``crosses``: the sign changes at the root.
    """

    at: Fraction
    crosses: bool = True

    @property
    def ceiling(self) -> int:
        """The first integer at or above the root."""
        return math.ceil(self.at)


def exactly(position: Fraction | int) -> Root:
    """Return a root at a rational position."""
    return Root(Fraction(position))


def value_at(coefficients: Sequence[int], x: int | Fraction) -> int | Fraction:
    """Return the polynomial (lowest power first) at a rational, exactly."""
    value: int | Fraction = 0
    for factor in reversed(coefficients):
        value = value * x + factor
    return value


@cache
def positive_roots(coefficients: tuple[int, ...]) -> tuple[Root, ...]:
    """Return all real roots above 0, ascending; none for the zero polynomial."""
    f = trimmed(list(coefficients))
    while f and not f[0]:  # a root at 0
        f = f[1:]
    signs = {factor > 0 for factor in f if factor}
    if len(signs) < 2:  # Descartes: no sign variation, no root
        return ()
    roots = _isolated_roots(exact(f, common(f, derivative(f))))
    if not roots:
        return ()
    between = [Fraction(0), *((a + b) / 2 for a, b in pairwise(roots)), roots[-1] + 1]
    sides = pairwise(value_at(f, point) > 0 for point in between)
    return tuple(Root(at, left != right) for at, (left, right) in zip(roots, sides, strict=True))


def _isolated_roots(f: Poly, bits: int = BITS) -> list[Fraction]:
    """Return the positive roots of a square-free polynomial, in cells of 2**-bits.

    By Sturm's theorem: the number of sign changes along a chain falls by one at each root.
    """
    chain, lead = [f, derivative(f)], abs(f[-1])
    while len(chain[-1]) > 1:
        chain.append(times(polynomials.divided(chain[-2], chain[-1])[1], (-1,)))
    bits = max(bits, 2 * lead.bit_length() + 2)  # at most one rational root then fits in a cell

    @cache
    def changes(cell: int) -> int:
        signs = [value > 0 for part in chain if (value := _scaled_value(part, cell, bits))]
        return sum(a != b for a, b in pairwise(signs))

    isolated = []
    intervals = [(0, (2 + max(map(abs, f)) // lead) << bits)]
    while intervals:
        low, high = intervals.pop()
        roots, middle = changes(low) - changes(high), (low + high) // 2
        if roots == 1:
            isolated.append(_root_in(f, low, high, bits))
        elif roots and low == middle:  # two roots in one cell
            return _isolated_roots(f, 2 * bits)
        elif roots:
            intervals += [(middle, high), (low, middle)]
    return isolated


def _root_in(f: Poly, low: int, high: int, bits: int) -> Fraction:
    """Return the only root in (low, high]; if irrational, the middle of a cell of 2**-bits."""
    falls = (_scaled_value(f, low, bits) or _scaled_value(derivative(f), low, bits)) > 0
    while high - low > 1:
        middle = (low + high) // 2
        value = _scaled_value(f, middle, bits)
        low, high = (middle, high) if value and (value > 0) == falls else (low, middle)
    cell = Fraction(low + high, 2 << bits)
    near = cell.limit_denominator(abs(f[-1]))  # a rational root's denominator divides this
    is_root = abs(near - cell) <= Fraction(1, 2 << bits) and not value_at(f, near)
    return near if is_root else cell


def _scaled_value(f: Poly, cell: int, bits: int) -> int:
    """Return the value at cell / 2**bits times a positive factor, an integer."""
    value = 0
    for step, factor in enumerate(reversed(f)):
        value = value * cell + (factor << bits * step)
    return value


# -- in closed form --------------------------------------------------------------------
def closed_form(terms: Polynomial, head_dim: int, root: Root) -> str | None:
    """Return a root in the length as sympy text in ``d``, such as ``d**2 + sqrt(d)``, or None.

    ``terms`` is a polynomial in (seq_len, head_dim), ``root`` its root at this ``head_dim``, which
    picks one of two solutions. There is none if the degree in the length is above 2, or if the
    leading coefficient is 0 at this width.
    """
    low = min((i for i, _ in terms), default=0)
    degree = max((i for i, _ in terms), default=0) - low
    if degree not in (1, 2):
        return None
    scale = math.lcm(*(Fraction(factor).denominator for factor in terms.values()))
    in_width = [[0] * (1 + max(j for _, j in terms)) for _ in range(3)]
    for (i, j), factor in terms.items():
        in_width[i - low][j] = int(factor * scale)
    c, b, a = map(trimmed, in_width)
    if not value_at(a if degree == 2 else b, head_dim):
        return None
    if degree == 1:
        return _quotient_text(times(c, (-1,)), (), (), b)
    # (-b ± s·sqrt(r)) / 2a with s²·r = b² - 4ac
    outside, inside = polynomials.square_split(plus(times(b, b), times(times(a, c), (-4,))))
    top, bottom = times(b, (-1,)), times(a, (2,))
    below = value_at(bottom, head_dim)
    # the root lies above or below the middle -b/2a at this width
    above = root.at * below > value_at(top, head_dim)
    sign = 1 if above == (value_at(outside, head_dim) > 0) else -1
    radical = times(outside, (sign,))
    if inside == (1,):
        return _quotient_text(plus(top, radical), (), (), bottom)
    return _quotient_text(top, radical, inside, bottom)


def _quotient_text(plain: Poly, radical: Poly, inside: Poly, bottom: Poly) -> str:
    """Return (plain + radical·sqrt(inside)) / bottom, reduced, as text."""
    shared = bottom
    for part in (plain, radical):
        shared = common(shared, part) if part else shared
    if len(shared) > 1:
        plain, radical, bottom = (
            exact(part, common(shared, ())) for part in (plain, radical, bottom)
        )
    factor = math.gcd(*(polynomials.content(part) for part in (plain, radical, bottom) if part))
    factor *= -1 if bottom[-1] < 0 else 1
    plain, radical, bottom = (tuple(x // factor for x in part) for part in (plain, radical, bottom))
    if len(bottom) == 1:
        return polynomials.joined(_sum_terms(plain, radical, inside, bottom[0]))
    top = _sum_terms(plain, radical, inside, 1)
    return f"{_in_brackets(polynomials.joined(top))}/({text(bottom)})"


def _sum_terms(plain: Poly, radical: Poly, inside: Poly, denominator: int) -> list[str]:
    """Return the terms of the sum over the denominator as sympy orders them: the constant last."""
    terms = polynomials.terms_text(plain, denominator)
    if not radical:
        return terms
    constant = [terms.pop()] if plain and plain[0] else []
    sign = "-" if radical[-1] < 0 else "+"
    size = times(radical, (1 if sign == "+" else -1,))
    if len(size) == 1:
        value = Fraction(size[0], denominator)
        factor, below = f"{value.numerator}*" if value.numerator != 1 else "", value.denominator
    else:
        factor, below = f"{_in_brackets(text(size))}*", denominator
    root = f"{sign}{factor}sqrt({text(inside)}){f'/{below}' if below > 1 else ''}"
    return [*terms, root, *constant]


def _in_brackets(terms: str) -> str:
    return f"({terms})" if " " in terms else terms
