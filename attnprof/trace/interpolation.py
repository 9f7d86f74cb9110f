"""The second way: exact polynomials through the counts of concrete runs.

Around an anchor shape each size is probed alone (:mod:`attnprof.trace.probing`): in which class
of sizes, over which range, with which degree. Runs on a grid of as many shapes as there can be
monomials then fix every coefficient, in rational arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from attnprof.peaks import maximum_of
from attnprof.trace.anchoring import anchored
from attnprof.trace.columns import Column, Sheet, sheet
from attnprof.trace.events import Trace
from attnprof.trace.fitting import Index, coefficients, degree, expression, lower_set
from attnprof.trace.probing import Line, NotPolynomialError, Probe
from attnprof.trace.shots import Shots
from attnprof.trace.target import Target
from attnprof.trace.totals import totals
from attnprof.trace.verification import differences

#: More monomials than this are not solved for.
_MONOMIALS = 160
#: How often ranges are halved until all corners are in one branch.
_HALVES = 6


@dataclass(frozen=True)
class Interpolated:
    """Formulas by phase, the lines they hold on, and one trace of formulas.

    ``forms`` lacks ``peak_bytes`` where that is no polynomial.
    """

    forms: Mapping[str, Mapping[str, Any]]
    lines: Mapping[str, Line]
    fixed: Mapping[str, int]
    trace: Trace
    aligned: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a shape lies in the class and range."""
        return all(self.lines[name].holds(sizes[name]) for name in self.lines) and all(
            sizes[name] == value for name, value in self.fixed.items()
        )

    @property
    def domain(self) -> tuple[str, ...]:
        """Classes, borders and verified ranges in words."""
        ones = [f"{name} = {size}" for name, size in self.fixed.items()]
        classes = [text for line in self.lines.values() for text in line.conditions]
        ranges = [f"{x.name} from {x.low} to {x.high}" for x in self.lines.values()]
        return (*ones, *classes, f"verified for {', '.join(ranges)}")

    def notes(self, phase: str) -> list[str]:
        """What the reader must know besides."""
        if "peak_bytes" in self.forms[phase]:
            return []
        return ["peak_bytes has no formula: what is held is no polynomial in the sizes"]

    def corners(self) -> Iterator[dict[str, int]]:
        """Shapes at the ends of all ranges."""
        ends = [dict.fromkeys((line.low, line.high)) for line in self.lines.values()]
        for corner in product(*ends):
            yield {**self.fixed, **dict(zip(self.lines, corner, strict=True))}

    def held_out(self, count: int) -> Iterator[dict[str, int]]:
        """Shapes inside, of sizes that are no nodes where there are others. Repeatable."""
        chance = random.Random(0)  # noqa: S311 - no secret
        seen = set[tuple[int, ...]]()
        for _ in range(20 * count):
            shape = {name: _picked(chance, line) for name, line in self.lines.items()}
            if tuple(shape.values()) not in seen:
                seen.add(tuple(shape.values()))
                yield {**self.fixed, **shape}
            if len(seen) == count:
                return


def _picked(chance: random.Random, line: Line) -> int:
    sizes = range(line.low, line.high + 1, line.stride)
    others = [size for size in sizes[:4096] if size not in line.nodes]
    return chance.choice(others or sizes)


def interpolate(
    target: Target,
    shots: Shots,
    hints: Mapping[str, int],
    asked: Mapping[str, int],
    phases: Sequence[str],
) -> Interpolated:
    """Formulas in the branch of the hints; sizes of 1 there stay 1.

    Raises :class:`NotPolynomialError` where the cost is no polynomial in a size,
    :class:`attnprof.trace.shots.OutOfBudgetError` where finding it out would take too long.
    """
    anchor = anchored(shots, hints, asked)
    shots.settle(anchor)
    probe = Probe(shots, anchor, phases)
    lines = {name: probe.line(name) for name in target.symbols if anchor[name] != 1}
    fixed = {name: size for name, size in anchor.items() if size == 1}
    found = _Grid(shots, anchor, lines, phases).solved(fixed)
    _keep_to_one_branch(found, shots)
    return found


def _keep_to_one_branch(found: Interpolated, shots: Shots) -> None:
    """Narrow the ranges until all their corners fit: a border may move with another size."""
    for _ in range(_HALVES):
        if all(_fits(found, shots, corner) for corner in found.corners()):
            return
        bordered = [line for line in found.lines.values() if line.borders]
        for line in bordered or found.lines.values():
            line.halve()
    raise NotPolynomialError("the polynomials hold nowhere but where they were fitted")


def _fits(found: Interpolated, shots: Shots, sizes: Mapping[str, int]) -> bool:
    """Whether a run at a shape, if it can be made, gives what the formulas give."""
    trace = shots.tried(sizes)
    if trace is None:
        return True
    counted = {phase: totals(trace, phase) for phase in found.forms}
    return not differences(found.forms, counted, sizes)


class _Grid:
    """Runs at the shapes of a lower set of indices into every line's nodes."""

    def __init__(
        self,
        shots: Shots,
        anchor: Mapping[str, int],
        lines: Mapping[str, Line],
        phases: Sequence[str],
    ) -> None:
        self._shots, self._anchor, self._lines, self._phases = shots, anchor, lines, phases
        self._names = list(lines)
        self._nodes = [lines[name].nodes for name in self._names]

    def solved(self, fixed: Mapping[str, int]) -> Interpolated:
        indices = self._indices()
        traces = [self._run(index) for index in indices]
        found = sheet(traces, self._phases)
        fit = _Fit(self._names, self._nodes, indices)
        fit.solve({*found.columns(), *found.peaks()})
        trace = found.rebuilt(fit)
        forms = {phase: totals(trace, phase) for phase in self._phases}
        if not found.aligned:
            for phase in self._phases:
                forms[phase].pop("peak_bytes")
                if all(line.smooth for line in self._lines.values()):
                    forms[phase]["peak_bytes"] = _peak(found, phase, fit)
        return Interpolated(forms, self._lines, fixed, trace, found.aligned)

    def _run(self, index: Index) -> Trace:
        sizes = {
            name: xs[place] for name, xs, place in zip(self._names, self._nodes, index, strict=True)
        }
        trace = self._shots.tried({**self._anchor, **sizes})
        if trace is None:
            raise NotPolynomialError(f"it cannot run at {sizes}")
        return trace

    def _indices(self) -> list[Index]:
        """Indices of all monomials that the degrees along the lines leave possible."""
        axes = range(len(self._names))
        points: list[Index] = [tuple(0 for _ in axes)]
        for axis in axes:
            points += [
                tuple(place if other == axis else 0 for other in axes)
                for place in range(1, len(self._nodes[axis]))
            ]
        found = sheet([self._run(point) for point in points], self._phases)
        boxes = {self._box(points, c) for c in {*found.columns(), *found.peaks()}}
        indices = lower_set(boxes)
        if len(indices) > _MONOMIALS:
            raise NotPolynomialError(f"{len(indices)} monomials are possible, too many to solve")
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
            box.append(_degree(xs, on))
        return tuple(box)


def _degree(xs: Sequence[int], ys: Sequence[int]) -> int:
    """The degree of the polynomial through points, none of them to confirm it."""
    found = degree(xs, ys)
    return len(xs) - 1 if found is None else found


class _Fit:
    """From a column at the grid's shapes to its polynomial."""

    def __init__(
        self, names: Sequence[str], nodes: Sequence[Sequence[int]], indices: Sequence[Index]
    ) -> None:
        self._names, self._nodes, self._indices = names, nodes, indices
        self._known: dict[Column, Any] = {}

    def solve(self, columns: set[Column]) -> None:
        """All columns at once."""
        order = sorted(columns)
        values = {
            index: [column[place] for column in order] for place, index in enumerate(self._indices)
        }
        table = coefficients(self._nodes, values)
        for place, column in enumerate(order):
            factors = {index: row[place] for index, row in table.items()}
            self._known[column] = expression(self._names, factors)

    def __call__(self, column: Column) -> Any:
        return self._known[column]


def _peak(found: Sheet, phase: str, fit: _Fit) -> Any:
    return maximum_of(fit(column) for column in found.held[phase].values())
