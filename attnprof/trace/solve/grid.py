"""Fit exact polynomials through the counts of runs on a grid of shapes.

All arithmetic is rational. The grid is a lower set: a list of multi-indices that holds, with every
index, all that are smaller in each place. Divided differences work on it axis by axis, and as many
points are needed as there are monomials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise, product
from math import prod
from operator import mul
from typing import Any

import numpy as np

from attnprof.algebra.maxima import maximum_of
from attnprof.trace.events import Trace, totals_by_phase
from attnprof.trace.solve.budget import NoFormulaError, Runs
from attnprof.trace.solve.columns import Column, Sheet, sheet
from attnprof.trace.solve.shapes import Line

#: Most monomials that are solved for; most runs outside of the grid that confirm a peak.
_MONOMIALS, _CONFIRMING = 160, 40

Index = tuple[int, ...]
#: Highest power of one size that is looked for.
MOST = 4


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
    ways = [
        (_to_increments, partial(_to_turns, kinds=along))
        if len(along) > 1
        else (_to_differences, _to_monomials)
        for along in kinds or [(0,)] * len(nodes)
    ]
    # all differences first: a monomial's factor needs the higher differences of its whole axis
    for second, (axis, xs) in product((False, True), enumerate(nodes)):
        step = ways[axis][second]
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


def expression(names: Sequence[str], factors: Mapping[Index, Fraction]) -> Any:
    """Return factors of monomials as a sympy expression; a plain int if no size is in it."""
    import sympy

    from attnprof.algebra.expressions import symbol

    symbols = [symbol(name) for name in names]
    monomials = {index: sympy.Mul(*map(pow, symbols, index)) for index in factors}
    total = sympy.Add(*(sympy.Rational(n) * monomials[index] for index, n in factors.items()))
    return int(total) if total.is_Integer else total


@dataclass(frozen=True)
class ShapeGrid:
    """Lines of sizes through an anchor shape, and runs where their nodes cross.

    Only as many shapes are run as there are monomials that the degrees along the lines allow.
    """

    runs: Runs
    anchor: Mapping[str, int]
    lines: Mapping[str, Line]

    def solved(self) -> tuple[dict[str, dict[str, Any]], Trace]:
        """Return formulas by phase, and a trace of formulas.

        A phase lacks ``peak_bytes`` if the bytes held at its peak are no polynomial; the trace is
        then without storages.
        """
        indices = self._indices()
        shapes = [self._shape(index) for index in indices]
        inside: dict[str, Sequence[int]] = {name: (size,) for name, size in self.anchor.items()}
        inside |= {name: line.sizes for name, line in self.lines.items()}
        seen = (x for x in self.runs.seen() if all(n in inside[name] for name, n in x.items()))
        more = [shape for shape in seen if shape not in shapes][:_CONFIRMING]
        columns = self._sheet([*shapes, *more])
        fit = _Fit([*self.lines], self._nodes, indices, more)
        fit.solve({*columns.counts(), *columns.others(), *chain(*columns.held.values())})
        peaks = {phase: fit.peak(columns, phase) for phase in self.runs.phases}
        trace = fit.trace(columns, held=columns.aligned and None not in peaks.values())
        forms = totals_by_phase(trace, self.runs.phases)
        for phase, peak in peaks.items():
            forms[phase].pop("peak_bytes")
            if peak is not None:
                forms[phase]["peak_bytes"] = peak
        return forms, trace

    @property
    def _nodes(self) -> list[list[int]]:
        return [line.nodes for line in self.lines.values()]

    def _shape(self, index: Index) -> dict[str, int]:
        places = zip(self.lines, self._nodes, index, strict=True)
        return {**self.anchor, **{name: xs[place] for name, xs, place in places}}

    def _sheet(self, shapes: Iterable[Mapping[str, int]]) -> Sheet:
        traces = []
        for shape in shapes:
            trace = self.runs.tried(shape)
            if trace is None:
                raise NoFormulaError(f"it cannot run at {dict(shape)}")
            traces.append(trace)
        return sheet(traces, self.runs.phases)

    def _indices(self) -> list[Index]:
        """Return the indices of all monomials that the degrees along the lines leave possible."""
        axes = range(len(self.lines))
        points = [tuple(0 for _ in axes)]
        for axis, xs in enumerate(self._nodes):
            points += [tuple(k * (a == axis) for a in axes) for k in range(1, len(xs))]
        columns = self._sheet(map(self._shape, points))
        indices = lower_set(
            tuple(_degree_along(xs, axis, points, column) for axis, xs in enumerate(self._nodes))
            for column in {*columns.counts(), *chain(*columns.held.values())}
        )
        if len(indices) > _MONOMIALS:
            raise NoFormulaError(f"{len(indices)} monomials are possible, too many to solve")
        return indices


def _degree_along(xs: Sequence[int], axis: int, points: Sequence[Index], column: Column) -> int:
    """Return the degree of a column in one size, by its values along that size's line."""
    pairs = zip(points, column, strict=True)
    highest = degree(xs, [value for point, value in pairs if sum(point) == point[axis]])
    return len(xs) - 1 if highest is None else highest


@dataclass
class _Fit:
    """The polynomials of columns, fitted at the grid's shapes and checked at ``more`` shapes."""

    names: Sequence[str]
    nodes: Sequence[Sequence[int]]
    indices: Sequence[Index]
    more: Sequence[Mapping[str, int]]
    found: dict[Column, dict[Index, Fraction]] = field(default_factory=dict)

    def solve(self, columns: set[Column]) -> None:
        """Fit all columns at once, to their first values: those on the grid."""
        order = sorted(columns)
        values = {index: [c[place] for c in order] for place, index in enumerate(self.indices)}
        table = coefficients(self.nodes, values)
        for place, column in enumerate(order):
            self.found[column] = {i: row[place] for i, row in table.items() if row[place]}

    def __call__(self, column: Column) -> Any:
        return expression(self.names, self.found[column])

    def follows(self, column: Column) -> bool:
        """Return whether the polynomial gives the column's values at the ``more`` shapes."""
        terms = self.found[column].items()
        for shape, value in zip(self.more, column[len(self.indices) :], strict=True):
            sizes = [shape[name] for name in self.names]
            if sum(factor * prod(map(pow, sizes, index)) for index, factor in terms) != value:
                return False
        return True

    def peak(self, columns: Sheet, phase: str) -> Any | None:
        """Return the maximum of all moments that are polynomials; None if a run's peak is none."""
        kept = list(filter(self.follows, columns.held[phase]))
        if not kept or tuple(map(max, zip(*kept, strict=True))) != columns.most[phase]:
            return None
        return maximum_of(map(self, kept))

    def trace(self, columns: Sheet, *, held: bool) -> Trace:
        """Return a trace whose sizes are polynomials; a call's ``times`` is None if it has none."""
        calls = []
        for call in columns.trace.calls:
            known = columns.aligned or (self.more and self.follows(call.times))
            times = (1 if columns.aligned else self(call.times)) if known else None
            new = replace(call.mapped(self), times=times)
            if not held:
                new = replace(new, takes=0, gives=0, workspace=0, born=(), died=())
            calls.append(new)
        modules = {name: self(own) for name, own in columns.trace.modules.items()}
        routes = [(self(rows), self(experts)) for rows, experts in columns.trace.routes]
        parameters, notes = self(columns.trace.parameters), columns.trace.notes
        return Trace(calls, parameters, notes, modules=modules, routes=routes)
