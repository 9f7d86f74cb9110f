"""Polynomials over some sizes, given as numbers, of what runs give as polynomials over others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any

from attnprof.trace.solve.accounts import Terms
from attnprof.trace.solve.grid import Index, coefficients, degree, lower_set, turns

Row = tuple[Any, ...]


def rows_of(columns: Sequence[Terms]) -> dict[Any, Row]:
    """The factors of every monomial in all runs, in order."""
    monomials = dict.fromkeys(chain(*columns))
    return {monomial: tuple(x.get(monomial, 0) for x in columns) for monomial in monomials}


@dataclass(frozen=True)
class Ladder:
    """Numbers of one size at which runs fit, the first of them the nodes of the polynomial.

    With a ``period`` above 1 the cost grows by the same over so many numbers: it is a sum over
    how many numbers below the size are of each kind.
    """

    xs: tuple[int, ...]
    period: int = 1

    def steepest(self, rows: set[Row]) -> int | None:
        """The highest index of rows along the size; None where one of them does not fit."""
        found = 0
        for row in rows:
            if any(row[0] != value for value in row):
                of = self._degree(row)
                if of is None:
                    return None
                found = max(found, of)
        return found

    def _degree(self, row: Row) -> int | None:
        if self.period == 1:
            return degree(self.xs, row)
        grown = {after - before for before, after in zip(row, row[self.period :], strict=False)}
        return self.period if len(grown) == 1 else None

    def value(self, size: Any, index: int) -> Any:
        """What a factor of this index is multiplied by, at a size; beyond the period, the size."""
        if self.period == 1 or index == 0:
            return size**index
        return size if index > self.period else turns(size, self.xs[0] + index - 1, self.period)

    def plainer(self, factors: dict[Index, Fraction], place: int) -> dict[Index, Fraction]:
        """The same, with the size itself where most kinds cost the same."""
        if self.period == 1:
            return factors
        found = dict(factors)
        for own in {(*index[:place], *index[place + 1 :]) for index in factors}:
            kinds = [(*own[:place], i, *own[place:]) for i in range(1, self.period + 2)]
            costs = [found.pop(kind, Fraction(0)) for kind in kinds[:-1]]
            usual = Counter(costs).most_common(1)[0][0]
            found |= {kind: x - usual for kind, x in zip(kinds, costs, strict=False) if x != usual}
            found |= {kinds[-1]: usual} if usual else {}
        return found


@dataclass
class Lattice:
    """Points at which runs were made, the first of them one for each of the ``indices``."""

    axes: Sequence[Ladder]
    indices: Sequence[Index]
    points: Sequence[Sequence[int]]

    def solved(self, rows: set[Row]) -> dict[Row, Mapping[Index, Fraction]]:
        """The polynomial of each row that has one, which its further points confirm."""
        order = list(rows)
        on_grid = {index: [row[i] for row in order] for i, index in enumerate(self.indices)}
        periods = [axis.period for axis in self.axes]
        table = coefficients([axis.xs for axis in self.axes], on_grid, periods)
        found: dict[Row, Mapping[Index, Fraction]] = {}
        for place, row in enumerate(order):
            factors: dict[Index, Fraction] = {i: x[place] for i, x in table.items() if x[place]}
            if self._follows(factors, row):
                for axis, ladder in enumerate(self.axes):
                    factors = ladder.plainer(factors, axis)
                found[row] = factors
        return found

    def _follows(self, factors: Mapping[Index, Fraction], row: Row) -> bool:
        first = len(self.indices)
        return all(
            sum(x * prod(self.values(point, index)) for index, x in factors.items()) == value
            for point, value in zip(self.points[first:], row[first:], strict=True)
        )

    def values(self, sizes: Sequence[Any], index: Index) -> Iterator[Any]:
        """What a factor of this index is multiplied by, for each size."""
        return (axis.value(x, i) for axis, x, i in zip(self.axes, sizes, index, strict=True))


def indices_for(columns: Sequence[tuple[Ladder, Mapping[Any, Row]]]) -> list[Index]:
    """Multi-indices of all monomials that the rows along each axis (by name) leave possible."""
    boxes: dict[Any, list[int]] = {}
    axes = len(columns)
    for axis, (ladder, named) in enumerate(columns):
        for name, row in named.items():
            of = ladder.steepest({row}) or 0
            box = boxes.setdefault(name, [0] * axes)
            box[axis] = max(box[axis], of)
    return lower_set([tuple([0] * axes), *map(tuple, boxes.values())])
