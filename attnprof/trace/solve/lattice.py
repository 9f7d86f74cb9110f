"""Fit polynomials in the sizes that were numbers in the runs.

Each run gives polynomials in its symbols, as ``8*B*h`` at N = 4 and ``10*B*h`` at N = 5. Factors of
one monomial in all runs are a row, (8, 10, …), to which a polynomial in N is fitted here.

All arithmetic is rational. Points of several sizes are a lower set: a list of multi-indices that
holds, with every index, all that are smaller in each place. As many points are needed as there are
monomials.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise, product
from math import prod
from operator import mul
from typing import Any

import numpy as np
import sympy
from sympy.polys.matrices import DM

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
        matrix = sympy.Matrix([[1, *turns(x, self.kinds)] for x in self.xs])
        return tuple(self.xs[i] for i in matrix.T.rref()[1])

    @cached_property
    def _relations(self) -> list[list[Fraction]]:
        """Weights of values at the numbers: each sum is 0 if the cost is a sum over kinds."""
        relations = sympy.Matrix([[1, *turns(x, self.kinds)] for x in self.xs]).T.nullspace()
        return [[Fraction(int(w.p), int(w.q)) for w in relation] for relation in relations]

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
        follows = not any(sum(map(mul, weights, row)) for weights in self._relations)
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
        order, first = list(rows), len(self.indices)
        values = np.array(order, object).T
        monomials = [[prod(self.monomials(x, i)) for i in self.indices] for x in self.points]
        inverse, scale = DM(monomials[:first], sympy.ZZ).inv_den()
        inverse, scale = inverse.cancel_denom(scale)
        factors = np.array(inverse.to_list(), object) @ values[:first]
        further = np.array(monomials[first:], object).reshape(-1, first)
        follows = (further @ factors == scale * values[first:]).all(0)
        polynomials: dict[Row, Mapping[Index, Fraction]] = {}
        for place in np.flatnonzero(follows):
            column = zip(self.indices, factors[:, place], strict=True)
            polynomial = {index: Fraction(factor, scale) for index, factor in column if factor}
            for axis, sizes in enumerate(self.axes):
                polynomial = sizes.plainer(polynomial, axis)
            polynomials[order[place]] = polynomial
        return polynomials

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


def turns(size: Any, kinds: Sequence[int]) -> list[Any]:
    """Return how many numbers below a size are of each kind: ``[3, 2]`` of 5 and kinds (0, 1)."""
    period, counts = len(kinds), [0] * (max(kinds) + 1)
    for number, kind in enumerate(kinds):
        counts[kind] += (size + period - 1 - number) // period
    return counts
