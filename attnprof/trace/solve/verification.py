"""Every formula against runs at other shapes, before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attnprof.trace.evaluation import evaluate
from attnprof.trace.request.expressions import sizes_text
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import TooLongError, limit
from attnprof.trace.run.runs import record
from attnprof.trace.totals import totals

#: Shapes at which a formula must give what a run gives, at least.
HELD_OUT = 3
#: Operations of one run outside of a search: at an asked shape, where a formula does not hold.
A_LONG_RUN = 25_000
#: Shapes that are run where that is quick, and operations after which no more are.
MOST, _OPERATIONS = 12, 800

Counts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Runner = Callable[[Mapping[str, int]], Counts]
Tried = Callable[[Mapping[str, int]], Counts | None]


def runner(
    target: Target,
    phases: Sequence[str],
    longest: int,
    *,
    swift: bool = False,
    spent: list[int] | None = None,
) -> Runner:
    """Counts of the phases at a shape, by a run of at most so many operations; remembered.

    ``swift`` runs on meta tensors; operations of all runs are added to ``spent[0]``, those on fake
    tensors threefold: they take three times as long.
    """
    seen: dict[tuple[tuple[str, int], ...], Counts] = {}

    def run(sizes: Mapping[str, int]) -> Counts:
        key = tuple(sorted(sizes.items()))
        if key not in seen:
            training = "forward" not in phases
            count = limit(longest)
            trace = record(target, sizes, training=training, before_each=count, swift=swift)
            if spent:
                spent[0] += len(trace.calls) * (1 if swift else 3)
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
        super().__init__(f"at {sizes_text(shape)}: {wrong[0]}")
        self.shape = dict(shape)
        self.only_peaks = all("peak_bytes" in text for text in wrong)


class Checks:
    """Runs to hold a formula against: on meta tensors where they count what fake ones count.

    That is decided at the first shape at which both run. What runs longer than ``longest``
    operations raises :class:`attnprof.trace.solve.budget.TooLongError`.
    """

    def __init__(self, target: Target, phases: Sequence[str], longest: int) -> None:
        self._spent = [0]
        self._slow = _where_it_runs(runner(target, phases, longest, spent=self._spent))
        fast = runner(target, phases, longest, swift=True, spent=self._spent)
        self._fast = _where_it_runs(fast)
        self._chosen: Tried | None = None

    def at(self, sizes: Mapping[str, int]) -> Counts | None:
        """Counts at a shape; None where the code does not run there."""
        if self._chosen:
            return self._chosen(sizes)
        found = self._slow(sizes)
        if found is not None:
            self._chosen = self._fast if self._fast(sizes) == found else self._slow
        return found

    def agreeing(
        self, forms: Counts, shapes: Iterable[Mapping[str, int]], most: int = MOST
    ) -> list[dict[str, int]]:
        """Shapes at which runs give what the formulas give: so many, fewer where runs are long.

        Raises :class:`ContradictedError` at the first one that does not.
        """
        found: list[dict[str, int]] = []
        for shape in shapes:
            counted = self.at(shape)
            if counted is None:
                continue
            if differences(forms, counted, shape):  # tensors of another kind may live longer
                self._chosen = self._slow
                counted = self._slow(shape) or counted
            refuse_contradiction(forms, counted, shape)
            found.append(dict(shape))
            long = self._spent[0] > _OPERATIONS and len(found) >= HELD_OUT
            if long or len(found) == most:
                break
        return found


def refuse_contradiction(forms: Counts, counted: Counts, shape: Mapping[str, int]) -> None:
    """Raises :class:`ContradictedError` where a run gave other numbers than the formulas."""
    wrong = differences(forms, counted, shape)
    if wrong:
        raise ContradictedError(shape, wrong)


def _where_it_runs(run: Runner) -> Tried:
    def tried(sizes: Mapping[str, int]) -> Counts | None:
        try:
            return run(sizes)
        except TooLongError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    return tried
