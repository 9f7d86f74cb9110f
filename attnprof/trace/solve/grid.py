"""Runs on a grid of shapes, and the polynomials through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from attnprof.algebra.maxima import maximum_of
from attnprof.trace.events import Trace
from attnprof.trace.solve.budget import BudgetedRuns, NotInterpolatedError
from attnprof.trace.solve.columns import Column, Sheet, sheet
from attnprof.trace.solve.polynomials import Index, coefficients, degree, expression, lower_set
from attnprof.trace.solve.shapes import Line
from attnprof.trace.totals import totals

#: More monomials than this are not solved for; more runs than this do not confirm the peak.
_MONOMIALS, _CONFIRMING = 160, 40

Forms = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ShapeGrid:
    """Lines through an anchor, and runs where their nodes cross.

    Only as many shapes are run as there are monomials that the degrees along the lines allow.
    """

    runs: BudgetedRuns
    anchor: Mapping[str, int]
    lines: Mapping[str, Line]
    phases: Sequence[str]

    def solved(self) -> tuple[Forms, Trace, bool]:
        """Formulas by phase, a trace of formulas, and whether that is operation by operation.

        A phase lacks ``peak_bytes`` where what is held at its worst moment is no polynomial.
        """
        indices = self._indices()
        shapes = [self._shape(index) for index in indices]
        more = [s for s in self.runs.seen() if self._inside(s) and s not in shapes][:_CONFIRMING]
        found = sheet([self._run(shape) for shape in [*shapes, *more]], self.phases)
        fit = _Fit([*self.lines], self._nodes, indices)
        fit.solve(
            {
                *found.counts(),
                *found.times(),
                *found.storages(),
                *(c for h in found.held.values() for c in h),
            }
        )
        peaks = {phase: self._peak(found, phase, fit, more) for phase in self.phases}
        smooth = None not in peaks.values()

        def known(column: Column) -> Any:
            return fit(column) if more and fit.follows(column, more) else None

        trace = found.rebuilt(fit, known, with_storages=smooth)
        forms = {phase: totals(trace, phase) for phase in self.phases}
        for phase, peak in peaks.items():
            forms[phase].pop("peak_bytes")
            if peak is not None:
                forms[phase]["peak_bytes"] = peak
        return forms, trace, smooth and found.aligned

    @property
    def _nodes(self) -> list[list[int]]:
        return [line.nodes for line in self.lines.values()]

    def _shape(self, index: Index) -> dict[str, int]:
        places = zip(self.lines, self._nodes, index, strict=True)
        return {**self.anchor, **{name: xs[place] for name, xs, place in places}}

    def _inside(self, shape: Mapping[str, int]) -> bool:
        return all(
            self.lines[name].holds(size) if name in self.lines else size == self.anchor[name]
            for name, size in shape.items()
        )

    def _run(self, shape: Mapping[str, int]) -> Trace:
        trace = self.runs.tried(shape)
        if trace is None:
            raise NotInterpolatedError(f"it cannot run at {dict(shape)}")
        return trace

    def _indices(self) -> list[Index]:
        """Indices of all monomials that the degrees along the lines leave possible."""
        axes = range(len(self.lines))
        points: list[Index] = [tuple(0 for _ in axes)]
        for axis in axes:
            points += [
                tuple(place if other == axis else 0 for other in axes)
                for place in range(1, len(self._nodes[axis]))
            ]
        found = sheet([self._run(self._shape(point)) for point in points], self.phases)
        columns = {*found.counts(), *found.moments()}
        indices = lower_set(self._box(points, column) for column in columns)
        if len(indices) > _MONOMIALS:
            raise NotInterpolatedError(f"{len(indices)} monomials are possible, too many to solve")
        return indices

    def _box(self, points: Sequence[Index], column: Column) -> Index:
        """The degree of a column in each size, by its values along the lines."""
        box = []
        for axis, xs in enumerate(self._nodes):
            on = [
                value
                for point, value in zip(points, column, strict=True)
                if all(place == 0 for other, place in enumerate(point) if other != axis)
            ]
            found = degree(xs, on)
            box.append(len(xs) - 1 if found is None else found)
        return tuple(box)

    def _peak(
        self, found: Sheet, phase: str, fit: _Fit, more: Sequence[Mapping[str, int]]
    ) -> Any | None:
        """A maximum over the moments that are polynomials, if the worst is always one of them."""
        kept = [column for column in found.held[phase] if fit.follows(column, more)]
        if not kept or tuple(map(max, zip(*kept, strict=True))) != found.most[phase]:
            return None
        return maximum_of(map(fit, kept))


class _Fit:
    """From a column at the grid's shapes (and at more) to its polynomial."""

    def __init__(
        self, names: Sequence[str], nodes: Sequence[Sequence[int]], indices: Sequence[Index]
    ) -> None:
        self._names, self._nodes, self._indices = names, nodes, indices
        self._known: dict[Column, dict[Index, Fraction]] = {}

    def solve(self, columns: set[Column]) -> None:
        """All columns at once, from their first values: those on the grid."""
        order = sorted(columns)
        values = {
            index: [column[place] for column in order] for place, index in enumerate(self._indices)
        }
        table = coefficients(self._nodes, values)
        for place, column in enumerate(order):
            found = {index: row[place] for index, row in table.items() if row[place]}
            self._known[column] = found

    def __call__(self, column: Column) -> Any:
        return expression(self._names, self._known[column])

    def follows(self, column: Column, more: Sequence[Mapping[str, int]]) -> bool:
        """Whether the polynomial gives the column's further values, at those shapes."""
        values = column[len(self._indices) :]
        return all(
            sum(self._terms(column, shape)) == value
            for shape, value in zip(more, values, strict=True)
        )

    def _terms(self, column: Column, shape: Mapping[str, int]) -> Iterator[Fraction]:
        for index, factor in self._known[column].items():
            powers = (shape[name] ** power for name, power in zip(self._names, index, strict=True))
            yield factor * prod(powers)
