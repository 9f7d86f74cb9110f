"""Fit polynomials in the sizes that were numbers in the runs.

Each run gives polynomials in its symbols, as ``8*B*h`` at N = 4 and ``10*B*h`` at N = 5. Factors of
one monomial in all runs are a row, (8, 10, …), to which a polynomial in N is fitted here.

All arithmetic is rational. Points of several sizes are a lower set: a list of multi-indices that
holds, with every index, all that are smaller in each place. Divided differences work on it axis by
axis, and as many points are needed as there are monomials.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain, pairwise, product
from math import prod
from operator import mul
from typing import Any

import numpy as np

from attnprof.trace.solve.accounts import Index, Terms

Row = tuple[Any, ...]


def of_every_kind(sizes: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """Return few of the sizes: the first, two from a third of them on, one ending in each kind."""
    after = sizes[len(sizes) // 3 :][: max(2, len(kinds))]
    ending = {kinds[(x - 1) % len(kinds)]: x for x in reversed(after)}
    return [*{sizes[0], *after[:2], *ending.values()}]


def rows_of(columns: Sequence[Terms]) -> dict[Any, Row]:
    """Return the factors of every monomial, one a run: ``{B*h: (8, 10, 12)}``."""
    monomials = dict.fromkeys(chain(*columns))
    return {monomial: tuple(x.get(monomial, 0) for x in columns) for monomial in monomials}


@dataclass(frozen=True)
class SampledSizes:
    """Numbers of one size (``xs``) at which runs are made to fit a polynomial in it.

    With several ``kinds``, as (0, 0, 1) for layers of which every third is another one, the cost
    is instead a sum over how many numbers below the size are of each kind.
    """

    xs: tuple[int, ...]
    kinds: tuple[int, ...] = (0,)

    @classmethod
    def minimal(cls, first: int, kinds: tuple[int, ...]) -> "SampledSizes":
        """Return the fewest numbers from ``first`` on that give each kind a cost, and one more."""
        nodes = cls(tuple(range(first, first + len(kinds) + 2)), kinds).nodes
        more = next(x for x in range(first, nodes[-1] + 2) if x not in nodes)
        return cls(tuple(sorted((*nodes, more))), kinds)

    @classmethod
    def periodic(cls, xs: Sequence[int], period: int) -> "SampledSizes":
        """Return these numbers, each number of a period, from the first on, as another kind."""
        return cls(tuple(xs), tuple((number - xs[0]) % period for number in range(period)))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The numbers that fix the fit: the first that suffice for kinds; all for a polynomial."""
        if len(self.kinds) == 1:
            return self.xs
        import sympy

        matrix = sympy.Matrix([[1, *turns(x, self.kinds)] for x in self.xs])
        return tuple(self.xs[i] for i in matrix.T.rref()[1])

    @cached_property
    def _predictions(self) -> list[tuple[int, list[tuple[int, Any]]]]:
        """For each other number its index, and indices and weights of nodes that give its value."""
        import sympy

        rows = {x: [1, *turns(x, self.kinds)] for x in self.xs}
        inverse = sympy.Matrix([rows[x] for x in self.nodes]).inv()
        predictions = []
        for x in (x for x in self.xs if x not in self.nodes):
            weights = [Fraction(int(w.p), int(w.q)) for w in sympy.Matrix([rows[x]]) * inverse]
            at = [self.xs.index(node) for node in self.nodes]
            predictions.append((self.xs.index(x), list(zip(at, weights, strict=True))))
        return predictions

    def steepest(self, rows: set[Row]) -> int | None:
        """Return the highest power (or kind) that rows need; None if one of them does not fit."""
        highest = 0
        for row in rows:
            if any(row[0] != value for value in row):
                power = self._degree(row)
                if power is None:
                    return None
                highest = max(highest, power)
        return highest

    def _degree(self, row: Row) -> int | None:
        if len(self.kinds) == 1:
            return degree(self.xs, row)
        follows = all(sum(w * row[j] for j, w in nodes) == row[i] for i, nodes in self._predictions)
        return max(self.kinds) + 1 if follows else None

    def monomial(self, size: Any, index: int) -> Any:
        """Return the monomial of an index: ``size**index``, or the number of layers of a kind.

        The index after all kinds stands for the size itself.
        """
        if len(self.kinds) == 1 or index == 0:
            return size**index
        return size if index > max(self.kinds) + 1 else turns(size, self.kinds)[index - 1]

    def plainer(self, factors: dict[Index, Fraction], place: int) -> dict[Index, Fraction]:
        """Return factors in which the size itself has the cost that most kinds share.

        Kinds that cost 5, 5 and 9 become 5 times the size, and 4 for each number of the third kind.
        """
        if len(self.kinds) == 1:
            return factors
        plain = dict(factors)
        for rest in {(*index[:place], *index[place + 1 :]) for index in factors}:
            kinds = [(*rest[:place], i, *rest[place:]) for i in range(1, max(self.kinds) + 3)]
            costs = [plain.pop(kind, Fraction(0)) for kind in kinds[:-1]]
            usual = Counter(costs).most_common(1)[0][0]
            plain |= {kind: x - usual for kind, x in zip(kinds, costs, strict=False) if x != usual}
            plain |= {kinds[-1]: usual} if usual else {}
        return plain


@dataclass
class Lattice:
    """The ``points`` at which runs were made: first one for each of ``indices``, then more."""

    axes: Sequence[SampledSizes]
    indices: Sequence[Index]
    points: Sequence[Sequence[int]]

    def fit(self, rows: set[Row]) -> dict[Row, Mapping[Index, Fraction]]:
        """Return the polynomial of each row whose values at the further points confirm it."""
        order = list(rows)
        on_grid = {index: [row[i] for row in order] for i, index in enumerate(self.indices)}
        kinds = [axis.kinds for axis in self.axes]
        table = coefficients([axis.nodes for axis in self.axes], on_grid, kinds)
        polynomials: dict[Row, Mapping[Index, Fraction]] = {}
        for place, row in enumerate(order):
            factors: dict[Index, Fraction] = {i: x[place] for i, x in table.items() if x[place]}
            if self._follows(factors, row):
                for axis, sizes in enumerate(self.axes):
                    factors = sizes.plainer(factors, axis)
                polynomials[row] = factors
        return polynomials

    def _follows(self, factors: Mapping[Index, Fraction], row: Row) -> bool:
        first = len(self.indices)
        return all(
            sum(x * prod(self.monomials(point, index)) for index, x in factors.items()) == value
            for point, value in zip(self.points[first:], row[first:], strict=True)
        )

    def monomials(self, sizes: Sequence[Any], index: Index) -> Iterator[Any]:
        """Yield the monomial of an index in each size; their product belongs to its factor."""
        return (axis.monomial(x, i) for axis, x, i in zip(self.axes, sizes, index, strict=True))


def indices_for(columns: Sequence[tuple[SampledSizes, Mapping[Any, Row]]]) -> list[Index]:
    """Return the multi-indices of all monomials that the rows along each axis leave possible."""
    boxes: dict[Any, list[int]] = {}
    axes = len(columns)
    for axis, (sizes, named) in enumerate(columns):
        for name, row in named.items():
            box = boxes.setdefault(name, [0] * axes)
            box[axis] = max(box[axis], sizes.steepest({row}) or 0)
    return lower_set([tuple([0] * axes), *map(tuple, boxes.values())])


# -- exact polynomials through values on a lower set --------------------------------------
def degree(xs: Sequence[int], ys: Sequence[int]) -> int | None:
    """Return the degree of the polynomial through all points; None unless more points confirm it.

    ``xs`` are distinct. With n points only degrees up to n - 2 can be told from an accident.
    """
    row: list[Any] = [y if isinstance(y, int) else Fraction(y) for y in ys]
    highest, even = 0, len({b - a for a, b in pairwise(xs)}) == 1
    for level in range(1, len(xs)):
        row = [b - a for a, b in pairwise(row)]
        if not even:  # in equal steps all are divided by the same number
            row = [Fraction(y, xs[i + level] - xs[i]) for i, y in enumerate(row)]
        if any(row):
            highest = level
    return highest if highest <= len(xs) - 2 else None


def lower_set(boxes: Iterable[Index]) -> list[Index]:
    """Return all multi-indices inside one of the boxes, smaller ones first."""
    indices = {index for box in boxes for index in product(*(range(n + 1) for n in box))}
    return sorted(indices, key=lambda index: (sum(index), index))


def coefficients(
    nodes: Sequence[Sequence[int]],
    values: Mapping[Index, Sequence[int]],
    kinds: Sequence[Sequence[int]] = (),
) -> dict[Index, Any]:
    """Return the polynomials through values on a lower set: for each monomial, one factor a column.

    ``nodes[axis][i]`` is the size at place i of that axis; ``values`` are the columns at every
    index. Along an axis of several ``kinds`` (as of layers) place i stands not for a power but for
    how many numbers below the size are of kind i - 1.
    """
    table = {index: np.array([*map(Fraction, row)], object) for index, row in values.items()}
    steps = [
        (_to_increments, partial(_to_turns, kinds=along))
        if len(along) > 1
        else (_to_differences, _to_monomials)
        for along in kinds or [(0,)] * len(nodes)
    ]
    # all differences first: a monomial's factor needs the higher differences of its whole axis
    for second, (axis, xs) in product((False, True), enumerate(nodes)):
        step = steps[axis][second]
        fibres: dict[Index, list[Index]] = {}  # indices that differ in one place only, in order
        for index in sorted(table):
            fibres.setdefault(index[:axis] + index[axis + 1 :], []).append(index)
        for fibre in fibres.values():
            rows = [table[index] for index in fibre]
            step(xs, rows)
            table.update(zip(fibre, rows, strict=True))
    return table


def _to_differences(xs: Sequence[int], rows: list[Any]) -> None:
    """Replace values by divided differences: factors of 1, x - x0, (x - x0)(x - x1) and so on."""
    for level in range(1, len(rows)):
        for i in range(len(rows) - 1, level - 1, -1):
            rows[i] = (rows[i] - rows[i - 1]) / (xs[i] - xs[i - level])


def _to_monomials(xs: Sequence[int], rows: list[Any]) -> None:
    """Replace divided differences by factors of 1, x, x², … (Horner, from the highest one)."""
    for place in range(len(rows) - 2, -1, -1):
        for power in range(place, len(rows) - 1):
            rows[power] = rows[power] - xs[place] * rows[power + 1]


def turns(size: Any, kinds: Sequence[int]) -> list[Any]:
    """Return how many numbers below a size are of each kind: ``[3, 2]`` of 5 and kinds (0, 1)."""
    period, counts = len(kinds), [0] * (max(kinds) + 1)
    for number, kind in enumerate(kinds):
        counts[kind] += (size + period - 1 - number) // period
    return counts


def _to_increments(_xs: Sequence[int], rows: list[Any]) -> None:
    """Replace all values but the first by how much they exceed it."""
    rows[1:] = [row - rows[0] for row in rows[1:]]


def _to_turns(xs: Sequence[int], rows: list[Any], kinds: Sequence[int]) -> None:
    """Replace increments by the cost of one more number of each kind."""
    if len(rows) == 1:
        return
    import sympy

    first, *more = (sympy.Matrix(turns(x, kinds)) for x in xs)
    inverse = sympy.Matrix([list(x - first) for x in more]).inv()
    fractions = [[Fraction(int(x.p), int(x.q)) for x in row] for row in inverse.tolist()]
    rows[1:] = [sum(map(mul, row, rows[1:])) for row in fractions]
    rows[0] = rows[0] - sum(int(x) * row for x, row in zip(first, rows[1:], strict=True))
