"""The second way: exact polynomials through the counts of concrete runs.

Around an anchor shape each size is probed alone (:mod:`attnprof.trace.solve.search`): in which
class of sizes, over which range, with which degree. Runs on a grid of as many shapes as there can
be monomials then fix every coefficient, in rational arithmetic (:mod:`attnprof.trace.solve.grid`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2
from typing import Any

from attnprof.trace.events import Trace
from attnprof.trace.request.target import Target
from attnprof.trace.solve.budget import BudgetedRuns, NotInterpolatedError, anchored
from attnprof.trace.solve.grid import ShapeGrid
from attnprof.trace.solve.search import Probe
from attnprof.trace.solve.shapes import Line
from attnprof.trace.solve.verification import differences
from attnprof.trace.totals import totals

#: How often ranges are halved until all corners are in one branch.
_HALVES = 5
#: Sizes of each line that held-out shapes are made of, and how many shapes there are.
_TRIED, _SHAPES = 20, 200


@dataclass(frozen=True)
class Interpolated:
    """Formulas by phase, the lines they hold on, and one trace of formulas.

    ``forms`` lacks ``peak_bytes`` where that is no polynomial. ``aligned``: the trace is operation
    by operation; otherwise it has one call for all operations of one name at one line, and says
    nothing of what is held.
    """

    forms: dict[str, dict[str, Any]]
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

    def without_peaks(self) -> bool:
        """Take the peaks' formulas away; whether there were any."""
        taken = [form.pop("peak_bytes", None) for form in self.forms.values()]
        return any(peak is not None for peak in taken)

    def corners(self) -> Iterator[dict[str, int]]:
        """Shapes at the ends of all ranges."""
        ends = [dict.fromkeys((line.low, line.high)) for line in self.lines.values()]
        for corner in product(*ends):
            yield {**self.fixed, **dict(zip(self.lines, corner, strict=True))}

    def held_out(self) -> Iterator[dict[str, int]]:
        """Shapes inside: both ends together, then others than the nodes first. Repeatable."""
        chance = random.Random(0)  # noqa: S311 - no secret
        sizes = {name: line.telling(_TRIED) for name, line in self.lines.items()}
        for attempt in range(_SHAPES):
            shape = {name: chance.choice(told) for name, told in sizes.items()}
            nodes = all(shape[name] in line.nodes for name, line in self.lines.items())
            if not nodes or attempt > _SHAPES // 2:
                yield {**self.fixed, **shape}

    def cut(self, shape: Mapping[str, int]) -> bool:
        """End the range of the size that lies furthest out before a shape that does not fit.

        False where nothing is left that would be worth saying.
        """
        away = {name: abs(log2(shape[name] / line.nodes[0])) for name, line in self.lines.items()}
        name = max(away, key=lambda name: away[name])
        return self.lines[name].end_before(shape[name])


def interpolate(
    target: Target,
    runs: BudgetedRuns,
    hints: Mapping[str, int],
    asked: Mapping[str, int],
    phases: Sequence[str],
    known: Mapping[str, Line] | None = None,
) -> Interpolated:
    """Formulas in the branch of the hints; sizes of 1 there stay 1.

    ``known`` lines, of other phases of the same target, spare probing where they hold.

    Raises :class:`NotInterpolatedError` where the cost is no polynomial in a size,
    :class:`attnprof.trace.solve.budget.OutOfBudgetError` where finding it out would take too long.
    """
    anchor = anchored(runs, hints, asked)
    runs.settle(anchor)
    probe = Probe(runs, anchor, phases, known=known or {})
    # the length first: where its cost is no polynomial, the others need not be probed
    order = sorted((name for name in target.symbols if anchor[name] != 1), key=lambda x: x != "N")
    probed = {name: probe.line(name) for name in order}
    lines = {name: probed[name] for name in target.symbols if name in probed}
    for name, line in lines.items():
        if asked.get(name) == 1 and not probe.follows(line, 1):
            raise NotInterpolatedError(f"{name} = 1 is a case of its own")
    fixed = {name: size for name, size in anchor.items() if size == 1}
    forms, trace, aligned = ShapeGrid(runs, anchor, lines, phases).solved()
    found = Interpolated(forms, lines, fixed, trace, aligned)
    _keep_to_one_branch(found, runs)
    return found


def _keep_to_one_branch(found: Interpolated, runs: BudgetedRuns) -> None:
    """Narrow the ranges until all their corners fit: a border may move with another size.

    Where only peaks do not fit, those lose their formula instead.
    """
    ranges = {name: (line.low, line.high) for name, line in found.lines.items()}
    if _narrowed(found, runs):
        return
    found.without_peaks()
    for name, (low, high) in ranges.items():
        found.lines[name].low, found.lines[name].high = low, high
    if not _narrowed(found, runs):
        raise NotInterpolatedError("the polynomials hold nowhere but where they were fitted")


def _narrowed(found: Interpolated, runs: BudgetedRuns) -> bool:
    """Halve the ranges until all corners fit; False where hardly anything is left."""
    for times in range(_HALVES):
        if all(_fits(found, runs, corner) for corner in found.corners()):
            return True
        lines = [line for line in found.lines.values() if line.borders]
        for line in lines if lines and times < 2 else found.lines.values():
            line.halve()
            if line.high - line.low < line.stride:
                return False
    return False


def _fits(found: Interpolated, runs: BudgetedRuns, sizes: Mapping[str, int]) -> bool:
    """Whether a run at a shape, if it can be made, gives what the formulas give."""
    trace = runs.tried(sizes)
    if trace is None:
        return True
    counted = {phase: totals(trace, phase) for phase in found.forms}
    return not differences(found.forms, counted, sizes)
