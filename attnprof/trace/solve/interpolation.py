"""Strategy "interpolated": exact polynomials through the counts of concrete runs.

Around an anchor shape each size is probed alone (:mod:`attnprof.trace.solve.search`): in which
class of sizes, over which range, with which degree. Runs on a grid of as many shapes as there can
be monomials then fix every coefficient, in rational arithmetic (:mod:`attnprof.trace.solve.grid`).
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log2
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace, totals_by_phase
from attnprof.trace.request.target import EVEN_ANCHOR, Sizes, Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.budget import NoFormulaError, OutOfBudgetError, Runs, differences
from attnprof.trace.solve.contradictions import Found
from attnprof.trace.solve.grid import ShapeGrid
from attnprof.trace.solve.search import Probe
from attnprof.trace.solve.shapes import Line, telling_sizes
from attnprof.trace.solve.small_runs import NotRunningError

#: Operations that all runs of one interpolation may take, and one run of them.
BUDGET, A_RUN = 50_000, 5_000
#: Operations of a run above which smaller sizes are tried.
_MANY = 250
#: Length from which a loop over tokens takes too many operations.
_TOO_LONG = 4096
#: How often ranges are halved until all corners are in one branch.
_HALVES = 5
NOWHERE = "the polynomials hold nowhere but where they were fitted"
#: Sizes of each line that held-out shapes are made of, and how many shapes there are.
_TRIED, _SHAPES = 20, 200


@dataclass(frozen=True)
class Interpolated(Found):
    """Formulas by phase, the lines they hold on, and one trace of formulas.

    ``forms`` lacks ``peak_bytes`` where that is no polynomial; the trace is then without storages.
    """

    forms: dict[str, dict[str, Any]]
    lines: Mapping[str, Line]
    fixed: Mapping[str, int]
    trace: Trace
    withheld: dict[str, dict[str, str]] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a shape lies in the class and range of every line."""
        fixed = all(sizes[name] == size for name, size in self.fixed.items())
        return fixed and all(sizes[name] in line.sizes for name, line in self.lines.items())

    @property
    def domain(self) -> tuple[str, ...]:
        """Classes, borders and verified ranges in words."""
        ones = [f"{name} = {size}" for name, size in self.fixed.items()]
        classes = [text for line in self.lines.values() for text in line.conditions]
        ranges = [f"{x.name} from {x.low} to {x.high}" for x in self.lines.values()]
        verified = [f"verified for {', '.join(ranges)}"] if ranges else []
        return (*ones, *classes, *verified)

    def without_peaks(self) -> None:
        """Remove the formulas of peaks."""
        for form in self.forms.values():
            form.pop("peak_bytes", None)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The first and the last number of each size."""
        return {name: (line.low, line.high) for name, line in self.lines.items()}

    def back_to(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Restore ranges that were cut or halved."""
        for name, (low, high) in ranges.items():
            self.lines[name].low, self.lines[name].high = low, high

    def held_out(self) -> Iterator[dict[str, int]]:
        """Yield shapes inside, at first with a size that is no node; the same in every call."""
        chance = random.Random(0)  # noqa: S311 - no secret
        lines = self.lines.items()
        sizes = {name: telling_sizes(x.sizes, x.nodes[0], _TRIED) for name, x in lines}
        for attempt in range(_SHAPES):
            shape = {name: chance.choice(known) for name, known in sizes.items()}
            nodes = all(shape[name] in line.nodes for name, line in lines)
            if not nodes or attempt > _SHAPES // 2:
                yield {**self.fixed, **shape}

    def cut(self, shape: Mapping[str, int]) -> bool:
        """End the range of the size that is farthest out before a shape; False if none is left."""
        away = {name: abs(log2(shape[name] / line.nodes[0])) for name, line in self.lines.items()}
        name = max(away, key=lambda name: away[name])
        line, size = self.lines[name], shape[name]
        if size == line.nodes[0]:
            return False
        above = size > line.nodes[0]
        line.end_at(size - line.stride if above else size + line.stride, above=above)
        return len(line.sizes) > len(line.nodes) + 1  # else only the nodes would be left


def interpolate(
    target: Target, hints: Sizes, asked: Sizes, phases: Sequence[str], known: Mapping[str, Line]
) -> Interpolated:
    """Return formulas for phases in the branch of the hints; hints of 1 stay 1.

    ``known`` lines, of other phases of the same target, spare probing where they hold. Raises
    :class:`NoFormulaError` if the cost is no polynomial in a size, or if runs would take too long.
    """
    runs = Runs(target, phases, A_RUN, BUDGET)
    anchor = _anchor_shape(runs, hints, asked)
    runs.settle(anchor)
    probe = Probe(runs, anchor, known)
    # the length first: where its cost is no polynomial, the others need not be probed
    order = sorted((name for name in target.symbols if anchor[name] != 1), key=lambda x: x != "N")
    probed = {name: probe.line(name) for name in order}
    lines = {name: probed[name] for name in target.symbols if name in probed}
    for name, line in lines.items():
        if asked.get(name) == 1 and not probe.fits(line, [1]):
            raise NoFormulaError(f"{name} = 1 is a case of its own")
    fixed = {name: size for name, size in anchor.items() if size == 1}
    forms, trace = ShapeGrid(runs, anchor, lines).solved()
    formulas = Interpolated(forms, lines, fixed, trace)
    _keep_to_one_branch(formulas, runs)
    return formulas


def _keep_to_one_branch(formulas: Interpolated, runs: Runs) -> None:
    """Narrow ranges until all corners fit, as borders move with sizes; if need be without peaks."""
    ranges = formulas.ranges
    if _fits_all_corners(formulas, runs):
        return
    formulas.without_peaks()
    formulas.back_to(ranges)
    if not _fits_all_corners(formulas, runs):
        raise NoFormulaError(NOWHERE)


def _fits_all_corners(formulas: Interpolated, runs: Runs) -> bool:
    """Halve ranges until formulas fit at all corners that run; False if hardly any size is left."""
    lines = formulas.lines.values()
    for times in range(_HALVES):
        ends = product(*(dict.fromkeys((line.low, line.high)) for line in lines))
        corners = [
            {**formulas.fixed, **dict(zip(formulas.lines, end, strict=True))} for end in ends
        ]
        traces = ((corner, runs.tried(corner)) for corner in corners)
        if not any(
            trace and differences(formulas.forms, totals_by_phase(trace, runs.phases), corner)
            for corner, trace in traces
        ):
            return True
        bordered = [line for line in lines if line.borders]
        for line in bordered if bordered and times < 2 else lines:
            line.halve()
            if line.high - line.low < line.stride:
                return False
    return False


def _anchor_shape(runs: Runs, hints: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """Return the anchor: hints or even sizes at which the code runs, made smaller if that helps.

    Sizes of 1 stay. Raises :class:`NotRunningError` if the code runs at none of these shapes,
    :class:`NoFormulaError` if runs are too long.
    """
    failure: Exception | None = None
    few = {name: min(size, 2) if name not in ("N", "d") else size for name, size in hints.items()}
    starts = [
        dict(hints),
        {name: asked.get(name) or EVEN_ANCHOR.get(name, 16) for name in hints},
        few,
        *({**few, "N": length} for length in _smaller_sizes(few.get("N", 2))),
    ]
    for sizes in starts:
        if isinstance(failure, TooLongError) and sizes.get("N", 0) >= _TOO_LONG:
            continue  # a loop over tokens: fewer heads would not help
        try:
            calls = runs.length(sizes)
        except (AttnprofError, OutOfBudgetError):
            raise
        except TooLongError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            failure = failure or error
        else:
            return _with_short_runs(runs, sizes, calls)
    if failure is None or isinstance(failure, TooLongError):
        raise NoFormulaError(str(failure)) from failure
    raise NotRunningError(failure) from failure


def _smaller_sizes(size: int) -> Iterator[int]:
    """Yield smaller sizes to try; of long ones, in their class modulo 256, at last modulo 64."""
    if size < 64:
        yield 2
        return
    rest = size % 256
    while size >= 512 + rest:
        size = rest + 256 * max(1, size // 1024)
        yield size
    yield size % 64 + 64 * int(size % 64 < 32)


def _with_short_runs(runs: Runs, sizes: dict[str, int], calls: int) -> dict[str, int]:
    """Return sizes made smaller one after the other while that shortens a long run."""
    best = sizes
    for name in sorted(sizes, key=lambda name: sizes[name]):
        for least in _smaller_sizes(best[name]):
            # below 256 tokens code in blocks is often another branch: only where it must be
            if calls <= (_MANY if least >= 256 or least == 2 else 2 * _MANY) or least >= best[name]:
                continue
            try:
                fewer = runs.length({**best, name: least})
            except OutOfBudgetError:
                raise
            except Exception:  # noqa: BLE001 - the user's code may raise anything
                break
            if fewer > 0.8 * calls:
                break
            best, calls = {**best, name: least}, fewer
    return best
