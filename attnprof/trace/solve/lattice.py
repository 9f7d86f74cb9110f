"""Polynomials over some sizes, given as numbers, of what runs give as polynomials over others."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

from attnprof.trace.solve.accounts import Terms
from attnprof.trace.solve.grid import Index, coefficients, degree, lower_set, turns

Row = tuple[Any, ...]
#: What a plain number is stepped by, in turn.
_STEPS = {"d": (1, 8, 16), "N": (1, 2, 4, 16, 64)}
_USUAL = (1, 2, 8)


def steps_of(name: str) -> tuple[int, ...]:
    """The steps that are tried along a size."""
    return _STEPS.get(name, _USUAL)


def of_every_kind(sizes: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """The first of some sizes; from a third of them on two, and others that end in each kind."""
    after = sizes[len(sizes) // 3 :][: max(2, len(kinds))]
    ending = {kinds[(x - 1) % len(kinds)]: x for x in reversed(after)}
    return [*{sizes[0], *after[:2], *ending.values()}]


def rows_of(columns: Sequence[Terms]) -> dict[Any, Row]:
    """The factors of every monomial in all runs, in order."""
    monomials = dict.fromkeys(chain(*columns))
    return {monomial: tuple(x.get(monomial, 0) for x in columns) for monomial in monomials}


@dataclass(frozen=True)
class Ladder:
    """Numbers of one size at which runs fit.

    With more than one of the ``kinds``, which come again, the cost is a sum over how many numbers
    below the size are of each.
    """

    xs: tuple[int, ...]
    kinds: tuple[int, ...] = (0,)

    @classmethod
    def telling(cls, first: int, kinds: tuple[int, ...]) -> "Ladder":
        """The fewest numbers from a first one on that tell kinds apart, and one more."""
        nodes = cls(tuple(range(first, first + len(kinds) + 2)), kinds).nodes
        more = next(x for x in range(first, nodes[-1] + 2) if x not in nodes)
        return cls(tuple(sorted((*nodes, more))), kinds)

    @classmethod
    def turning(cls, xs: Sequence[int], period: int) -> "Ladder":
        """Each number of a period, counted from the first of these, is of a kind of its own."""
        return cls(tuple(xs), tuple((number - xs[0]) % period for number in range(period)))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The first numbers that tell what one of each kind costs; of a polynomial all."""
        if len(self.kinds) == 1:
            return self.xs
        import sympy

        told = sympy.Matrix([[1, *turns(x, self.kinds)] for x in self.xs])
        return tuple(self.xs[i] for i in told.T.rref()[1])

    @cached_property
    def _others(self) -> list[tuple[int, list[tuple[int, Any]]]]:
        """Places of the other numbers, with the places and weights of nodes that tell the value."""
        import sympy

        rows = {x: [1, *turns(x, self.kinds)] for x in self.xs}
        inverse = sympy.Matrix([rows[x] for x in self.nodes]).inv()
        found = []
        for x in (x for x in self.xs if x not in self.nodes):
            weights = [Fraction(int(w.p), int(w.q)) for w in sympy.Matrix([rows[x]]) * inverse]
            at = [self.xs.index(node) for node in self.nodes]
            found.append((self.xs.index(x), list(zip(at, weights, strict=True))))
        return found

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
        if len(self.kinds) == 1:
            return degree(self.xs, row)
        follows = all(sum(w * row[j] for j, w in nodes) == row[i] for i, nodes in self._others)
        return max(self.kinds) + 1 if follows else None

    def value(self, size: Any, index: int) -> Any:
        """What a factor of this index is multiplied by, at a size; beyond all kinds, the size."""
        if len(self.kinds) == 1 or index == 0:
            return size**index
        return size if index > max(self.kinds) + 1 else turns(size, self.kinds)[index - 1]

    def plainer(self, factors: dict[Index, Fraction], place: int) -> dict[Index, Fraction]:
        """The same, with the size itself where most kinds cost the same."""
        if len(self.kinds) == 1:
            return factors
        found = dict(factors)
        for own in {(*index[:place], *index[place + 1 :]) for index in factors}:
            kinds = [(*own[:place], i, *own[place:]) for i in range(1, max(self.kinds) + 3)]
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
        kinds = [axis.kinds for axis in self.axes]
        table = coefficients([axis.nodes for axis in self.axes], on_grid, kinds)
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
