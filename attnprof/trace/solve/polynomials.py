"""Exact polynomials through integer counts: degrees on a line, coefficients on a grid.

All arithmetic is rational. The grid is a lower set: a list of multi-indices that holds, with every
index, all that are smaller in each place. Divided differences work on it axis by axis, and as many
points are needed as there are monomials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

Index = tuple[int, ...]
#: Highest power of one size that is looked for.
MOST = 4


def degree(xs: Sequence[int], ys: Sequence[int]) -> int | None:
    """The degree of the polynomial through all points; None unless two or more points confirm it.

    ``xs`` are distinct. With n points only degrees up to n - 2 can be told from an accident.
    """
    row = [Fraction(y) for y in ys]
    found = 0 if any(row) else -1
    for level in range(1, len(xs)):
        row = [
            (after - before) / (xs[i + level] - xs[i])
            for i, (before, after) in enumerate(pairwise(row))
        ]
        if any(row):
            found = level
    return max(found, 0) if found <= len(xs) - 2 else None


def lower_set(boxes: Iterable[Index]) -> list[Index]:
    """All multi-indices inside one of the boxes, smaller ones first."""
    found = {index for box in boxes for index in product(*(range(n + 1) for n in box))}
    return sorted(found, key=lambda index: (sum(index), index))


def coefficients(
    nodes: Sequence[Sequence[int]], values: Mapping[Index, Sequence[int]]
) -> dict[Index, list[Fraction]]:
    """The polynomials through values on a lower set: for each monomial, one factor a column.

    ``nodes[axis][i]`` is the size at place i of that axis; ``values`` the columns at every index.
    """
    table = {index: [Fraction(value) for value in row] for index, row in values.items()}
    # all differences first: a monomial's factor needs the higher differences of its whole axis
    for step in (_differences, _monomials):
        for axis, xs in enumerate(nodes):
            for fibre in _fibres(table, axis):
                rows = step(xs, [table[index] for index in fibre])
                table.update(zip(fibre, rows, strict=True))
    return table


def _fibres(table: Iterable[Index], axis: int) -> list[list[Index]]:
    """Indices that differ in one place only, in order."""
    lines: dict[Index, list[Index]] = {}
    for index in table:
        lines.setdefault(index[:axis] + index[axis + 1 :], []).append(index)
    return [sorted(line, key=lambda index: index[axis]) for line in lines.values()]


def _differences(xs: Sequence[int], rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """Divided differences: factors of 1, of x - x0, of (x - x0)(x - x1) and so on."""
    for level in range(1, len(rows)):
        for i in range(len(rows) - 1, level - 1, -1):
            step = xs[i] - xs[i - level]
            rows[i] = [(a - b) / step for a, b in zip(rows[i], rows[i - 1], strict=True)]
    return rows


def _monomials(xs: Sequence[int], rows: list[list[Fraction]]) -> list[list[Fraction]]:
    """The same polynomials over 1, x, x², … (Horner, from the highest difference)."""
    found: list[list[Fraction]] = [rows[-1]]
    for place in range(len(rows) - 2, -1, -1):
        x = xs[place]
        shifted = [[Fraction(0)] * len(rows[0]), *found]
        for power, row in enumerate(found):
            shifted[power] = [a - x * b for a, b in zip(shifted[power], row, strict=True)]
        shifted[0] = [a + b for a, b in zip(shifted[0], rows[place], strict=True)]
        found = shifted
    return found


def expression(names: Sequence[str], factors: Mapping[Index, Fraction]) -> Any:
    """Factors of monomials as a sympy expression; a plain int where no size is in it."""
    import sympy

    from attnprof.algebra.expressions import symbol

    symbols = [symbol(name) for name in names]
    terms = [
        sympy.Rational(factor.numerator, factor.denominator)
        * sympy.Mul(*(s**power for s, power in zip(symbols, index, strict=True)))
        for index, factor in factors.items()
        if factor
    ]
    total = sympy.Add(*terms)
    return int(total) if total.is_Integer else total
