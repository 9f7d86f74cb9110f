"""Every formula against runs at other shapes, before it is shown."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnprof.trace.evaluating import evaluate
from attnprof.trace.runs import record
from attnprof.trace.shots import limit
from attnprof.trace.target import Target
from attnprof.trace.totals import totals

#: Shapes at which a formula must give what a run gives.
HELD_OUT = 3
#: Operations of one run outside of a search: at an asked shape, where a formula does not hold.
A_LONG_RUN = 25_000
_TRIES = 400

Counts = Mapping[str, Mapping[str, Any]]  # phase → quantity → number
Runner = Callable[[Mapping[str, int]], Counts]


def runner(target: Target, phases: Sequence[str], longest: int) -> Runner:
    """Counts of the phases at a shape, by a run of at most so many operations; remembered."""
    seen: dict[tuple[tuple[str, int], ...], Counts] = {}

    def run(sizes: Mapping[str, int]) -> Counts:
        key = tuple(sorted(sizes.items()))
        if key not in seen:
            training = "forward" not in phases
            trace = record(target, sizes, training=training, before_each=limit(longest))
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


def held_out(
    hints: Mapping[str, int], inside: Callable[[Mapping[str, int]], bool], count: int = HELD_OUT
) -> Iterator[dict[str, int]]:
    """Shapes inside a domain, none of them the hints; sizes of 1 stay 1. Repeatable."""
    chance = random.Random(0)  # noqa: S311 - no secret
    found: list[dict[str, int]] = []
    for attempt in range(_TRIES):
        spread = 1 + attempt // 40  # further and further away from the hints
        shape = {name: _near(chance, hint, spread) for name, hint in hints.items()}
        if shape != dict(hints) and shape not in found and inside(shape):
            found.append(shape)
            yield shape
        if len(found) == count:
            return


def _near(chance: random.Random, hint: int, spread: int) -> int:
    if hint == 1:
        return 1
    low = max(2, hint // (2 * spread))
    return chance.randint(low, hint + max(2, hint // 2) * spread)
