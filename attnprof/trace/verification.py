"""Every formula against runs at other shapes, before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attnprof.trace.derivation import told
from attnprof.trace.evaluating import evaluate
from attnprof.trace.runs import record
from attnprof.trace.shots import TooLongError, limit
from attnprof.trace.target import Target
from attnprof.trace.totals import totals

#: Shapes at which a formula must give what a run gives, at least.
HELD_OUT = 3
#: Operations of one run outside of a search: at an asked shape, where a formula does not hold.
A_LONG_RUN = 25_000
#: Shapes that are run where that is quick, and operations of all those runs.
_MOST, _OPERATIONS = 12, 600

Counts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Runner = Callable[[Mapping[str, int]], Counts]
Tried = Callable[[Mapping[str, int]], Counts | None]


def runner(
    target: Target, phases: Sequence[str], longest: int, *, swift: bool = False
) -> Runner:
    """Counts of the phases at a shape, by a run of at most so many operations; remembered."""
    seen: dict[tuple[tuple[str, int], ...], Counts] = {}

    def run(sizes: Mapping[str, int]) -> Counts:
        key = tuple(sorted(sizes.items()))
        if key not in seen:
            training = "forward" not in phases
            count = limit(longest)
            trace = record(target, sizes, training=training, before_each=count, swift=swift)
            seen[key] = {phase: totals(trace, phase) for phase in phases}
        return seen[key]

    return run


def differences(forms: Counts, counted: Counts, sizes: Mapping[str, int]) -> list[str]:
    """Quantities whose formula does not give what the run gave."""
    return [
        f"{phase} {quantity}: {evaluate(expression, sizes)} by formula, "
        f"{counted[phase][quantity]} in the run"
        for phase, quantities in forms.items()
        for quantity, expression in quantities.items()
        if evaluate(expression, sizes) != counted[phase][quantity]
    ]


class ContradictedError(Exception):
    """A run at ``shape`` gave other numbers; ``only_peaks`` in what is held alone."""

    def __init__(self, shape: Mapping[str, int], wrong: Sequence[str]) -> None:
        super().__init__(f"at {told(shape)}: {wrong[0]}")
        self.shape = dict(shape)
        self.only_peaks = all("peak_bytes" in text for text in wrong)


def agreeing(
    forms: Counts, run: Tried, shapes: Iterable[Mapping[str, int]], wanted: int
) -> list[dict[str, int]]:
    """The first so many shapes at which a run can be made: all give what the formulas give.

    Raises :class:`ContradictedError` at one that does not.
    """
    found: list[dict[str, int]] = []
    for shape in shapes:
        counted = run(shape)
        if counted is None:
            continue
        wrong = differences(forms, counted, shape)
        if wrong:
            raise ContradictedError(shape, wrong)
        found.append(dict(shape))
        if len(found) == wanted:
            break
    return found


def quick_runner(target: Target, phases: Sequence[str], longest: int) -> Tried:
    """Counts at a shape, None where the code does not run there: on meta tensors if those do.

    They do where they count what fake tensors count, at the first shape that both can run. What
    runs longer raises :class:`attnprof.trace.shots.TooLongError`.
    """
    slow = _where_it_runs(runner(target, phases, longest))
    fast = _where_it_runs(runner(target, phases, longest, swift=True))
    chosen: list[Tried] = []

    def run(sizes: Mapping[str, int]) -> Counts | None:
        if chosen:
            return chosen[0](sizes)
        found = slow(sizes)
        if found is not None:
            chosen.append(fast if fast(sizes) == found else slow)
        return found

    return run


def _where_it_runs(run: Runner) -> Tried:
    def tried(sizes: Mapping[str, int]) -> Counts | None:
        try:
            return run(sizes)
        except TooLongError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    return tried


def enough(calls: int, *, kept: bool = False) -> int:
    """How many shapes are run: fewer where a run is long, more where a formula rounds floats."""
    most = 2 * _MOST if kept else _MOST
    return max(HELD_OUT, min(most, _OPERATIONS // max(calls, 1)))
