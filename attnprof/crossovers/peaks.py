"""Crossings of measured peaks of memory: the allocator counts bytes, so answers are exact integers.

Over the length, two mechanisms are searched around the crossing of their closed forms. User code,
whose cost is unknown, is tried at powers of two; values of another axis there and around a guess.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from attnprof.crossovers.order_search import OrderSearch, nearest_to_middle
from attnprof.crossovers.report import Finding
from attnprof.crossovers.sides import MEASURED, Contest, Meeting, contests, searched_curves
from attnprof.crossovers.solve import roots_of_formulas, solved
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.memory import measure_peak
from attnprof.measure.point import available_bytes
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject, refusing
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import CrossoverRecord
from attnprof.workload import Workload

LONGEST = 2**20  # tokens of the longest length tried
MOST_BYTES, MOST_S = 2**31, 3.0  # no longer length is tried after one that takes so much
GROWTH = 4  # times as many bytes that a length twice as long may take
#: The factor around the closed forms' crossing within which the measured one is searched.
FARTHEST = 16
#: Values tried on either side of a refused middle, and from a refused power of two on.
TRIES, FROM_A_PLACE = 64, 16

#: Measured peaks of both sides, in bytes, at a value of the axis.
Both = Callable[[int], tuple[int, int]]


def request_of(side: Any, workload: Workload, scope: str, **more: Any) -> PointRequest:
    """Return a mechanism or a module at a workload as a point to measure."""
    params = side.params if isinstance(side, Mechanism) else side.typed_texts
    return PointRequest.at(side.name, workload, scope=scope, params=params, **more)


def peak_of(side: Any, workload: Workload, scope: str) -> int:
    """Return measured peak bytes of a mechanism or a module, on the CPU's allocator.

    An exception of a module becomes a :class:`RequestError` with its line.
    """
    import torch

    request = request_of(side, workload, scope)
    tell(f"measuring the peak memory of {request.title}")
    with refusing(request):
        return measure_peak(build_subject(request), "cpu", torch).bytes


# -- searches --------------------------------------------------------------------------
def search_near(both: Both, guess: int) -> OrderSearch:
    """Return the search for the crossing near a guess, with as few lengths as it takes.

    Raises :class:`CannotRunError` if there is none within a factor of ``FARTHEST``.
    """
    search = OrderSearch(both, refusals=())

    def grid() -> Iterator[int]:
        low, high, step = max(1, guess - 1), guess, 1
        yield from (low, high)
        while search.signs[high] == search.signs[low] or not search.signs[low]:
            low, high, step = max(1, low - step), high + step, 2 * step
            yield low
            if high > FARTHEST * guess:
                raise CannotRunError(f"no sign change between {low} and {high} tokens")
            yield high

    search.try_all(grid())
    search.narrow(lambda low, high: nearest_to_middle(low, high, 1))
    return search


def search_lengths(both: Both) -> tuple[OrderSearch, int]:
    """Return the search over code of unknown cost, and the step between lengths that run.

    Raises :class:`CannotRunError` if both run at no length, with what one raised.
    """
    search = OrderSearch(both)
    search.try_all(_powers_of_two(search))
    if not search.signs:
        raise CannotRunError(f"both run at none of 2, 4, 8, … tokens: {search.first_refusal}")
    first = min(search.signs)  # lengths that run lie as far apart as the next one that does
    powers = [2**power for power in range(first.bit_length()) if 2**power < first] or [1]
    step = next((step for step in powers if search.try_place(first + step)), first)

    def between(low: int, high: int) -> Iterator[int]:
        middle = low + max(1, (high - low) // (2 * step)) * step
        yield from [middle] if middle < high else []

    search.narrow(between)
    return search, step


def search_values(both: Both, values: Sequence[int], guesses: Sequence[float] = ()) -> OrderSearch:
    """Return the search among ``values``, ascending; peaks should cross at ``guesses``.

    Raises :class:`CannotRunError` if both run at none.
    """
    search = OrderSearch(both, (RequestError, CannotRunError))
    search.try_all(_values_to_try(search, values, guesses))
    if not search.signs:
        why = search.first_refusal or "there is none"
        raise CannotRunError(f"both run at none of the values: {why}")
    search.narrow(lambda low, high: nearest_to_middle(low, high, TRIES))
    return search


def _too_much(costs: tuple[int, int], start: float) -> bool:
    """Return whether a place twice as large would take too much memory or time."""
    most = min(MOST_BYTES, available_bytes("cpu") // 2)
    return GROWTH * max(costs) > most or time.monotonic() - start > MOST_S


def _powers_of_two(search: OrderSearch) -> Iterator[int]:
    """Yield powers of two, until the next one would take too much, or none further runs."""
    length = 2
    while length <= LONGEST:
        start = time.monotonic()
        yield length
        if length in search.costs:
            if _too_much(search.costs[length], start):
                return
        elif search.signs and not _runs_beyond(search, length):
            return
        length *= 2


def _runs_beyond(search: OrderSearch, refused: int) -> bool:
    """Return whether longer lengths than a refused one run; try lengths up to it."""
    low, high = max(search.signs), refused
    while high - low > max(1, low // 8):
        middle = (low + high) // 2 // max(1, low // 8) * max(1, low // 8)
        if not low < middle < high:
            break
        low, high = (middle, high) if search.try_place(middle) else (low, middle)
    return search.try_place(2 * refused)


def _values_to_try(
    search: OrderSearch, values: Sequence[int], guesses: Sequence[float]
) -> Iterator[int]:
    """Yield the first value that runs from each power of two on, and next to every guess."""
    marks = [2**power for power in range(max(values).bit_length() + 1)]
    marks += [near for guess in guesses for near in (int(guess), int(guess) + 1)]
    for mark in sorted(set(marks)):
        start = time.monotonic()
        for value in islice((value for value in values if value >= mark), FROM_A_PLACE):
            yield value
            if value in search.costs:
                if _too_much(search.costs[value], start):
                    search.end = "a larger one would take too much memory or time"
                    return
                break


# -- rows ------------------------------------------------------------------------------
@dataclass
class PeakFinder:
    """Finds crossings of measured peaks: near that of closed forms, if both have one."""

    meeting: Meeting
    contests: Sequence[Contest] = (Contest("memory", MEASURED),)
    _searches: dict[int, OrderSearch] = field(default_factory=dict)

    def find(self, contest: Contest, fixed_size: int) -> Finding:
        """Return the crossings at a head width, or over another axis at a length."""
        meeting, axis = self.meeting, self.meeting.axis

        def both(value: int) -> tuple[int, int]:
            sides, sizes = meeting.at(value, fixed_size)
            first, second = (peak_of(side, sizes, meeting.scope) for side in sides)
            return first, second

        fields: dict[str, Any] = {}
        if axis.name != "seq":
            values = axis.values(meeting.workload, fixed_size)
            guesses = roots_of_formulas(meeting, "memory", fixed_size)
            search, step = search_values(both, values, guesses), 1
            fields = {"bound": search.end or None}
        elif meeting.own_modules:
            search, step = search_lengths(both)
        else:  # no more lengths are measured than it takes
            search, step = search_near(both, self._guess(fixed_size)), 0
        self._searches[fixed_size] = search
        low, high = search.ends
        if step:
            fields |= {"searched": [[low, high]], "searched_step": step}
        crossings, outer = search.crossings, (search.signs[low], search.signs[high])
        return Finding([float(n) for n in crossings], outer, [low, *crossings][-1], fields)

    def curves(self, records: Sequence[CrossoverRecord]) -> Iterator[dict[str, Any]]:
        """Yield the peaks that were measured."""
        fields = {"metric": "memory", "unit": "bytes", "kind": MEASURED}
        for fixed_size, search in self._searches.items():
            yield from searched_curves(self.meeting, fixed_size, search.costs, **fields)

    def _guess(self, head_dim: int) -> int:
        """Return the first length from the closed forms' crossing on."""
        (contest,) = contests(self.meeting, ("formula",), ("memory",))
        guess = solved(self.meeting, contest, head_dim)[0]
        if guess.first is None or guess.verdict != "crosses":
            raise CannotRunError("no crossover to look for: the closed forms do not cross")
        return guess.first
