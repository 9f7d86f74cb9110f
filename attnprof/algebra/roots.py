"""Positive real roots of integer polynomials, isolated exactly; floats only to show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

#: Width of an isolating interval, so that its middle rounds to the nearest float.
WIDTH = Fraction(1, 2**64)
SCALE = 64


@dataclass(frozen=True, order=True)
class Root:
    """A positive root: ``at`` is exact where rational, else the middle of a tiny interval.

    ``floor`` and ``whole`` (the root is an integer) are exact; ``crosses`` tells whether the
    sign changes there (an odd multiplicity).
    """

    at: Fraction
    floor: int
    whole: bool
    crosses: bool = True

    @property
    def ceiling(self) -> int:
        """The first integer at or above the root."""
        return self.floor if self.whole else self.floor + 1


def exactly(position: Fraction | int, *, crosses: bool = True) -> Root:
    """A root at a rational position."""
    at = Fraction(position)
    return Root(at, at.numerator // at.denominator, at.denominator == 1, crosses)


def value_at(coefficients: Sequence[int], x: int | Fraction) -> int | Fraction:
    """The polynomial (lowest power first) at a rational, exactly."""
    value: int | Fraction = 0
    for factor in reversed(coefficients):
        value = value * x + factor
    return value


@cache
def positive_roots(coefficients: tuple[int, ...]) -> tuple[Root, ...]:
    """All real roots above 0, ascending; none for the zero polynomial."""
    while coefficients and not coefficients[-1]:
        coefficients = coefficients[:-1]
    while coefficients and not coefficients[0]:
        coefficients = coefficients[1:]
    signs = [factor > 0 for factor in coefficients if factor]
    if all(sign == signs[0] for sign in signs):  # Descartes: no sign variation, no root
        return ()
    if len(coefficients) == 2:
        return (exactly(Fraction(-coefficients[0], coefficients[1])),)
    if len(coefficients) == 3:
        return _quadratic(*coefficients)
    return tuple(sorted(_isolated(coefficients)))


def _quadratic(c: int, b: int, a: int) -> tuple[Root, ...]:
    """Roots of a quadratic: the square root of its discriminant between two integers."""
    discriminant = b * b - 4 * a * c
    if discriminant < 0:
        return ()
    if discriminant == 0:
        both = exactly(Fraction(-b, 2 * a), crosses=False)
        return (both,) if both.at > 0 else ()
    whole = math.isqrt(discriminant)
    if whole * whole == discriminant:
        exact = sorted(Fraction(sign * whole - b, 2 * a) for sign in (-1, 1))
        return tuple(exactly(root) for root in exact if root > 0)
    # A step of the scaled square root moves the root by less than WIDTH.
    step = Fraction(1, 2**SCALE)
    near = math.isqrt(discriminant << 2 * SCALE) * step
    found = []
    for low, high in ((near, near + step), (-near - step, -near)):
        ends = sorted(((low - b) / (2 * a), (high - b) / (2 * a)))
        if ends[1] > 0:
            found.append(_root((c, b, a), max(ends[0], Fraction(0)), ends[1], 1))
    return tuple(sorted(found))


def _isolated(coefficients: tuple[int, ...]) -> list[Root]:
    from sympy import ZZ, Poly, Rational, Symbol

    polynomial = Poly(list(reversed(coefficients)), Symbol("x"), domain=ZZ)
    found = polynomial.intervals(inf=0, eps=Rational(WIDTH.numerator, WIDTH.denominator))
    return [
        _root(coefficients, Fraction(int(a.p), int(a.q)), Fraction(int(b.p), int(b.q)), times)
        for (a, b), times in found
    ]


def _root(coefficients: tuple[int, ...], low: Fraction, high: Fraction, times: int) -> Root:
    """The root of an isolating interval, narrower than 1: at most one integer lies in it."""
    crosses = bool(times % 2)
    if low == high:
        return exactly(low, crosses=crosses)
    inside = high.numerator // high.denominator
    if inside < low:
        return Root((low + high) / 2, inside, whole=False, crosses=crosses)
    if value_at(coefficients, inside) == 0:
        return exactly(inside, crosses=crosses)
    return _beside(coefficients, low, high, inside, crosses=crosses)


def _beside(
    coefficients: tuple[int, ...], low: Fraction, high: Fraction, integer: int, *, crosses: bool
) -> Root:
    """The interval cut at an integer that is not the root: which side holds it.

    An even root shows no change of sign, but its derivative does.
    """
    side = coefficients
    if not crosses:
        side = tuple(i * factor for i, factor in enumerate(coefficients))[1:]
    above = (value_at(side, integer) > 0) != (value_at(side, high) > 0)
    low, high = (Fraction(integer), high) if above else (low, Fraction(integer))
    floor = integer if above else integer - 1
    return Root((low + high) / 2, floor, whole=False, crosses=crosses)
