"""How many seconds a search for crossings of times should still take.

A search tries lengths of all magnitudes, then times some closely around each crossing. The seconds
of a call at a length follow from the longest lengths timed so far, as a power of the length.
"""

from collections.abc import Sequence
from math import log, sqrt

from attnprof.measure.request import Budget

#: Bounds of the exponent with which a call's time grows over the length.
GROWTHS = (1.0, 2.5)
#: Seconds; a shorter call is mostly overhead, which tells nothing of longer lengths.
TELLING_S = 1e-3
#: Seconds to build both sides at a length.
BUILD_S = 0.1
#: Lengths timed quickly, and closely, for a crossing.
LOOKS, CLOSE_ONES = 2, 6


def expected_s(length: float, longest_s: Sequence[tuple[int, float]]) -> float:
    """Return seconds of the longer call at a length, from lengths timed so far, ascending."""
    beyond = [seconds for timed, seconds in longest_s if timed >= length]
    if beyond:
        return beyond[0]
    at, last_s = longest_s[-1]
    growth = GROWTHS[1]
    if len(longest_s) > 1:
        before, before_s = longest_s[-2]
        growth = min(max(log(last_s / before_s) / log(at / before), GROWTHS[0]), GROWTHS[1])
    return float(last_s * (length / at) ** growth)


def look_s(call_s: float, budget: Budget) -> float:
    """Return seconds to try a length at which the longer call takes ``call_s``."""
    pair_s = 2 * call_s
    timed_s = min(budget.samples * pair_s, budget.max_time_s)
    return BUILD_S + pair_s + max(timed_s, budget.least * pair_s)


def search_s(
    longest_s: Sequence[tuple[int, float]], places: Sequence[int], crossings: Sequence[float],
    most_s: float, look: Budget, close: Budget, close_ones: int = CLOSE_ONES,
) -> float:  # fmt: skip
    """Return seconds that a search should still take.

    ``places`` are lengths still to be tried, until a call takes more than ``most_s`` seconds;
    around each of ``crossings`` some are timed closely, around the first one ``close_ones``.
    """
    seconds = 0.0
    for place in places:
        call_s = expected_s(place, longest_s)
        if call_s > most_s:
            break
        seconds += look_s(call_s, look)
    for number, root in enumerate(crossings):
        call_s = min(expected_s(root, longest_s), most_s)
        many = CLOSE_ONES if number else close_ones
        seconds += LOOKS * look_s(call_s, look) + many * look_s(call_s, close)
    return seconds


def middle(low: float, high: float) -> float:
    """Return the length in the middle of two, by factors."""
    return sqrt(low * high)
