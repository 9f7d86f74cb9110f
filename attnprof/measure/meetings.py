"""Crossovers that need running code: derived from it, or measured by the allocator.

A measured memory crossover is an exact integer: the allocator counts bytes, so the first length
from which one module holds no more than the other is found by bisection around a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.allocations import measure_peak
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject
from attnprof.mechanism import Mechanism
from attnprof.record import CrossoverRecord, Report
from attnprof.symbolic.meeting import (
    ALL_KINDS,
    DERIVED,
    MEASURED,
    METRICS,
    KnownCost,
    Meeting,
    Side,
    report,
)
from attnprof.trace.mechanisms import mechanism_target
from attnprof.trace.sides import DerivedCost, DerivedSide
from attnprof.trace.target import Target
from attnprof.workload import Workload

#: How far from the predicted crossover the measured one is looked for.
FARTHEST = 16


def meet(
    a: Mechanism | Target,
    b: Mechanism | Target,
    workload: Workload,
    scope: str,
    head_dims: Sequence[int],
    kinds: Sequence[str] = (DERIVED,),
    metrics: Sequence[str] = METRICS,
    *,
    with_curves: bool = False,
    environment: Mapping[str, Any],
) -> Report:
    """The report of ``crossover`` with derived rows, and with measured ones for memory.

    Raises :class:`RequestError` where nothing can be compared: user modules have no published
    and no ``formula`` costs, and only memory can be measured to an integer.
    """
    targets = [_target(side, workload, scope) for side in (a, b)]

    found_sides = [DerivedSide(target, workload) for target in targets]

    def derived(metric: str, head_dim: int) -> tuple[KnownCost, KnownCost]:
        first, second = (side.at_width(metric, head_dim) for side in found_sides)
        return _known(first), _known(second)

    sides = [Side(x.name) if isinstance(x, Target) else x for x in (a, b)]
    meeting = Meeting(sides[0], sides[1], workload, scope, cache(derived))
    solved = [kind for kind in kinds if kind != MEASURED]
    needs = [*solved, DERIVED] if MEASURED in kinds and DERIVED not in solved else solved
    found = report(
        meeting, head_dims, needs, metrics, with_curves=with_curves, environment=environment
    )
    if MEASURED not in kinds:
        return found
    guesses = [r for r in found.records if isinstance(r, CrossoverRecord) and r.kind == DERIVED]
    kept = [r for r in found.records if getattr(r, "kind", "") in solved]
    measured = [_measured(a, b, workload, scope, guess) for guess in guesses]
    return replace(found, records=_ordered([*kept, *(r for r in measured if r is not None)]))


def _known(cost: DerivedCost) -> KnownCost:
    return KnownCost(cost, cost.holds, cost.general, cost.said, cost.doubt)


def _ordered(records: Sequence[Any]) -> list[Any]:
    """By head width, then metric: the kinds of one question beside each other."""
    places = [(r.head_dim, METRICS.index(r.metric), ALL_KINDS.index(r.kind)) for r in records]
    return [r for _, r in sorted(zip(places, records, strict=True), key=lambda pair: pair[0])]


def _target(side: Mechanism | Target, workload: Workload, scope: str) -> Target:
    if isinstance(side, Target):
        return side
    return mechanism_target(side, scope, causal=workload.causal, dtype=workload.dtype)


def _measured(
    a: Mechanism | Target, b: Mechanism | Target, workload: Workload, scope: str,
    guess: CrossoverRecord,
) -> CrossoverRecord | None:  # fmt: skip
    """The measured row beside a derived one; None for FLOPs, which nothing measures."""
    if guess.metric != "memory":
        return None
    blank = replace(
        guess, kind=MEASURED, closed_form=None, method="measured", crossover_seq_len=None,
        first_seq_len=None, all_crossings=[], skipped=None,
    )  # fmt: skip
    if isinstance(a, Target) or isinstance(b, Target):
        return replace(blank, skipped="only registered mechanisms are measured here")
    if guess.first_seq_len is None or guess.verdict != "crosses":
        return replace(blank, skipped="no crossover to look for: the derived costs do not cross")
    sizes = workload.with_(head_dim=guess.head_dim)
    first, second = (peaks_of(side, sizes, scope) for side in (a, b))
    try:
        found = first_crossing(lambda n: first(n) - second(n), guess.first_seq_len)
    except (CannotRunError, RequestError) as error:
        return replace(blank, skipped=str(error))
    return replace(
        blank,
        crossover_seq_len=float(found.first),
        first_seq_len=found.first,
        all_crossings=[float(found.first)],
        cheaper_below=(b if found.sign_below > 0 else a).name,
        cheaper_above=(b if found.sign_below < 0 else a).name if found.sign_below else None,
    )


def peaks_of(mechanism: Mechanism, workload: Workload, scope: str) -> Callable[[int], int]:
    """Measured peak bytes of a mechanism by length, on the CPU's allocator."""
    import torch

    @cache
    def peak(seq_len: int) -> int:
        request = PointRequest(
            mechanism.name, seq_len, workload.num_heads, workload.head_dim, workload.batch_size,
            workload.causal, workload.phase, workload.dtype, scope, params=mechanism.params,
        )  # fmt: skip
        return measure_peak(build_subject(request), "cpu", torch).bytes

    return peak


@dataclass(frozen=True)
class Crossing:
    """``first`` is the first length at which the sign is no longer ``sign_below``."""

    first: int
    sign_below: int


def first_crossing(difference: Callable[[int], int], guess: int) -> Crossing:
    """The length near a guess where an integer difference changes its sign.

    Raises :class:`CannotRunError` where it does not within a factor of ``FARTHEST``.
    """
    low, high, step = max(1, guess - 1), guess, 1
    below = _sign(difference(low))
    while _sign(difference(high)) == below or not below:
        low, high, step = max(1, low - step), high + step, 2 * step
        below = _sign(difference(low))
        if high > FARTHEST * guess:
            raise CannotRunError(f"no sign change between {low} and {high} tokens")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _sign(difference(middle)) == below else (low, middle)
    return Crossing(high, below)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
