"""Crossovers by exact integers alone, for costs with floors, ceilings or refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from attnprof.errors import RequestError
from attnprof.symbolic.crossings import Crossings, Run
from attnprof.symbolic.lengths import EVERY, Lengths
from attnprof.symbolic.roots import exactly

#: Lengths looked at one by one around each crossing: rounding makes costs cross more than once.
AROUND = 32

Integers = Callable[[int], int]


def bisected(difference: Integers, known: Lengths = EVERY) -> Crossings:
    """Signs of an integer difference up to 2**40; a crossing is the first integer of the new sign.

    Only ``known`` lengths are looked at, and a pair of crossings between two neighbours of their
    grid can be missed. Those that a mechanism refuses are left out. Raises the refusal itself
    where all are.
    """
    signs: dict[int, int] = {}
    refusals: list[RequestError] = []
    for length in known.grid():
        try:
            signs[length] = _sign(difference(length))
        except RequestError as refusal:
            refusals.append(refusal)
    if not signs:
        raise refusals[0]
    for start, stop in _changes(signs):
        _narrow(difference, signs, known, start, stop)
    lengths = sorted(signs)
    runs = [Run(exactly(lengths[0]), signs[lengths[0]])]
    for length in lengths[1:]:
        if signs[length] != runs[-1].sign:
            runs.append(Run(exactly(length), signs[length]))
    runs = _without_ties(runs, lengths)
    first = runs[-1].start.floor if len(runs) > 1 else None
    return Crossings(tuple(runs), first, known.start)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _changes(signs: dict[int, int]) -> list[tuple[int, int]]:
    lengths = sorted(signs)
    return [(a, b) for a, b in pairwise(lengths) if signs[a] != signs[b]]


def _narrow(
    difference: Integers, signs: dict[int, int], known: Lengths, start: int, stop: int
) -> None:
    """Halve until neighbours differ, then look around them one by one within the bracket."""
    low, high = start, stop
    while high - low > known.step:
        middle = known.after(low + max(known.step, (high - low) // 2))
        if middle is None or not low < middle < high:
            break
        if _look(difference, signs, middle) == signs[low]:
            low = middle
        elif middle in signs:
            high = middle
        else:
            return
    around = AROUND * known.step
    for length in known.within(low - around, high + around - 1):
        _look(difference, signs, length)


def _look(difference: Integers, signs: dict[int, int], length: int) -> int | None:
    try:
        signs[length] = _sign(difference(length))
    except RequestError:
        return None
    return signs[length]


def _without_ties(runs: list[Run], lengths: list[int]) -> list[Run]:
    """A tie at a single length belongs to the run that follows: there it is not dearer."""
    places = {length: i for i, length in enumerate(lengths)}
    found: list[Run] = []
    pending = None
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        start = pending or run.start
        pending = None
        if run.sign == 0 and after and places[after.start.floor] - places[start.floor] == 1:
            pending = start
        elif not found or found[-1].sign != run.sign:
            found.append(Run(start, run.sign))
    return found
