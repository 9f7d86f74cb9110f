"""Runs on a grid of shapes, and the polynomials through them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from attnprof.algebra.maxima import maximum_of
from attnprof.trace.events import Trace
from attnprof.trace.solve.budget import NoFormulaError, Runs
from attnprof.trace.solve.columns import Column, Sheet, sheet
from attnprof.trace.solve.polynomials import Index, coefficients, degree, expression, lower_set
from attnprof.trace.solve.shapes import Line

#: More monomials than this are not solved for; more runs than this do not confirm the peak.
_MONOMIALS, _CONFIRMING = 160, 40

Forms = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ShapeGrid:
    """Lines through an anchor, and runs where their nodes cross.

    Only as many shapes are run as there are monomials that the degrees along the lines allow.
    """

    runs: Runs
    anchor: Mapping[str, int]
    lines: Mapping[str, Line]

    def solved(self) -> tuple[Forms, Trace]:
        """Formulas by phase, and a trace of formulas.

        A phase lacks ``peak_bytes`` where what is held at its worst moment is no polynomial; the
        trace then says nothing of what is held.
        """
        indices = self._indices()
        shapes = [self._shape(index) for index in indices]
        more = [s for s in self.runs.seen() if self._inside(s) and s not in shapes][:_CONFIRMING]
        found = self._sheet([*shapes, *more])
        fit = _Fit([*self.lines], self._nodes, indices, more)
        fit.solve({*found.counts(), *found.others(), *found.moments()})
        peaks = {phase: fit.peak(found, phase) for phase in self.runs.phases}
        trace = _rebuilt(found, fit, held=found.aligned and None not in peaks.values())
        forms = {phase: dict(form) for phase, form in self.runs.totals_of(trace).items()}
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

    def _inside(self, shape: Mapping[str, int]) -> bool:
        return all(
            self.lines[name].holds(size) if name in self.lines else size == self.anchor[name]
            for name, size in shape.items()
        )

    def _sheet(self, shapes: Iterable[Mapping[str, int]]) -> Sheet:
        traces = []
        for shape in shapes:
            trace = self.runs.tried(shape)
            if trace is None:
                raise NoFormulaError(f"it cannot run at {dict(shape)}")
            traces.append(trace)
        return sheet(traces, self.runs.phases)

    def _indices(self) -> list[Index]:
        """Indices of all monomials that the degrees along the lines leave possible."""
        lengths = [range(1, len(xs)) for xs in self._nodes]
        zero = (0,) * len(lengths)
        on_axes = [
            [(*zero[:axis], place, *zero[axis + 1 :]) for place in places]
            for axis, places in enumerate(lengths)
        ]
        points = [zero, *(point for points in on_axes for point in points)]
        found = self._sheet(map(self._shape, points))
        columns = {*found.counts(), *found.moments()}
        indices = lower_set(self._box(points, column) for column in columns)
        if len(indices) > _MONOMIALS:
            raise NoFormulaError(f"{len(indices)} monomials are possible, too many to solve")
        return indices

    def _box(self, points: Sequence[Index], column: Column) -> Index:
        """The degree of a column in each size, by its values along the lines."""
        box = []
        for axis, xs in enumerate(self._nodes):
            pairs = zip(points, column, strict=True)
            found = degree(xs, [value for point, value in pairs if sum(point) == point[axis]])
            box.append(len(xs) - 1 if found is None else found)
        return tuple(box)


def _rebuilt(found: Sheet, fit: _Fit, *, held: bool) -> Trace:
    """One trace whose sizes are polynomials; how many operations a call is may be none."""
    calls = []
    for call in found.trace.calls:
        times = 1 if found.aligned else fit.known(call.times)
        new = replace(call.mapped(fit), times=times)
        calls.append(new if held else replace(new, takes=0, gives=0, workspace=0, born=(), died=()))
    return Trace(calls, fit(found.trace.parameters), found.trace.notes)


class _Fit:
    """From a column at the grid's shapes (and at ``more``) to its polynomial."""

    def __init__(
        self,
        names: Sequence[str],
        nodes: Sequence[Sequence[int]],
        indices: Sequence[Index],
        more: Sequence[Mapping[str, int]],
    ) -> None:
        self._names, self._nodes, self._indices, self._more = names, nodes, indices, more
        self._found: dict[Column, dict[Index, Fraction]] = {}

    def solve(self, columns: set[Column]) -> None:
        """All columns at once, from their first values: those on the grid."""
        order = sorted(columns)
        values = {
            index: [column[place] for column in order] for place, index in enumerate(self._indices)
        }
        table = coefficients(self._nodes, values)
        for place, column in enumerate(order):
            self._found[column] = {i: row[place] for i, row in table.items() if row[place]}

    def __call__(self, column: Column) -> Any:
        return expression(self._names, self._found[column])

    def known(self, column: Column) -> Any:
        """The polynomial if further values confirm it, else None."""
        return self(column) if self._more and self.follows(column) else None

    def follows(self, column: Column) -> bool:
        """Whether the polynomial gives the column's further values, at those shapes."""
        further = zip(self._more, column[len(self._indices) :], strict=True)
        return all(self._at(column, shape) == value for shape, value in further)

    def peak(self, found: Sheet, phase: str) -> Any | None:
        """A maximum over the moments that are polynomials, if the worst is always one of them."""
        kept = list(filter(self.follows, found.held[phase]))
        if not kept or tuple(map(max, zip(*kept, strict=True))) != found.most[phase]:
            return None
        return maximum_of(map(self, kept))

    def _at(self, column: Column, shape: Mapping[str, int]) -> Fraction:
        sizes = [shape[name] for name in self._names]
        terms = self._found[column].items()
        return sum((factor * prod(map(pow, sizes, index)) for index, factor in terms), Fraction(0))
