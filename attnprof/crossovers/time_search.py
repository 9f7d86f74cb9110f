"""Crossings of two measured times, from few lengths, with calls of both sides in turns.

Lengths a factor of 4 apart tell between which of them the order changes; then some are timed
closely around each crossing, and a line through them gives it with an interval. The seconds that a
search should still take follow from the longest lengths timed so far: those of a call are a power
of the length.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import log, sqrt

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.request import Budget
from attnprof.measure.statistics import (
    DISTURBED,
    LEAST_PAIRS,
    PairedTimes,
    TimeCrossing,
    root_of_line,
)
from attnprof.processes.progress import tell
from attnprof.units import joined

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


def search_s(
    longest_s: Sequence[tuple[int, float]], lengths: Sequence[int], crossings: Sequence[float],
    most_s: float, close_ones: int = CLOSE_ONES,
) -> float:  # fmt: skip
    """Return seconds that a search should still take.

    ``lengths`` are lengths still to be tried, until a call takes more than ``most_s`` seconds;
    around each of ``crossings`` some are timed closely, around the first one ``close_ones``.
    """

    def look_s(call_s: float, budget: Budget) -> float:
        pair_s = 2 * call_s
        timed_s = min(budget.samples * pair_s, budget.max_time_s)
        return BUILD_S + pair_s + max(timed_s, budget.least * pair_s)

    seconds = 0.0
    for length in lengths:
        call_s = expected_s(length, longest_s)
        if call_s > most_s:
            break
        seconds += look_s(call_s, LOOK)
    for number, root in enumerate(crossings):
        call_s = min(expected_s(root, longest_s), most_s)
        many = CLOSE_ONES if number else close_ones
        seconds += LOOKS * look_s(call_s, LOOK) + many * look_s(call_s, CLOSE)
    return seconds


#: Both times at a length, call by call: the n-th calls of both follow each other.
Compare = Callable[[int, Budget], tuple[Sequence[float], Sequence[float]]]
#: The next length, from one on, at which both sides run; None if there is none.
Runnable = Callable[[int], int | None]

#: Calls to tell which side is faster; and, near a crossing, how much faster.
LOOK = Budget(samples=9, min_time_s=0.0, max_time_s=0.3, warmup_s=0.0, least=LEAST_PAIRS)
CLOSE = Budget(samples=16, min_time_s=0.0, max_time_s=1.5, warmup_s=0.05, least=7)
#: The factor between lengths that are tried first, and the shortest of them.
APART, SHORTEST = 4.0, 16
#: Factor from a guess to lengths that are tried around it.
AROUND_GUESS = 1.25
#: A bracket of a crossing is narrowed to this factor; then lengths are measured closely around it.
NARROW = 1.6
AROUND = (0.87, 0.93, 1.0, 1.07, 1.15)
#: Lengths timed from one end of a bracket to the other, if those near the crossing do not tell it.
ALONG = 7
#: Lengths timed closely count up to this factor away from a crossing.
REACH = 1.5
#: How often lengths to be timed closely are moved to a crossing outside of them.
MOVES = 4
#: Calls waited for other programs if they took so many times the seconds expected of them.
UNEXPECTED = 8.0
#: How often a length is timed again that has too few pairs without a disturbed call.
TIMED_AGAIN = 3
#: Share of disturbed pairs from which a search says that the machine was busy.
BUSY = 0.25


@dataclass
class TimeSearch:
    """A search for crossings of two times, and the lengths timed so far.

    ``guesses`` are where the times should cross. No length is tried of which a call should take
    longer than ``most_s`` seconds, and none beyond ``longest``. Messages call a length by ``text``
    and both sides by ``title``. After the search ``end`` says why no longer length was tried, and
    ``timed_calls`` how many calls of both sides it took, without warming up.
    """

    compare: Compare
    runnable: Runnable
    guesses: Sequence[float] = ()
    most_s: float = 2.0
    longest: int = 2**20
    shortest: int = SHORTEST
    text: Callable[[int], str] = "{:,} tokens".format
    title: str = "both"
    times: dict[int, PairedTimes] = field(default_factory=dict)
    crossings: list[TimeCrossing] = field(default_factory=list)
    end: str = ""
    timed_calls: int = 0
    _closely: set[int] = field(default_factory=set)
    #: where the crossing lies that is narrowed now
    _bracket: tuple[int, int] | None = None

    def run(self) -> None:
        """Try lengths of all magnitudes, then some closely around each change of sign.

        Raises what the shortest length raises if none runs.
        """
        self._outwards()
        self._look_around_guesses()
        for low, high in self._brackets():
            crossing = self._crossing(low, high)
            self.crossings += [crossing] if crossing else []
            self._bracket = None

    def _look(self, length: int, budget: Budget) -> PairedTimes:
        """Return the times at a length, measured once, or again closely after a quick look."""
        if length not in self.times or (budget is CLOSE and length not in self._closely):
            tell(
                f"timing {self.title} at {self.text(length)}{self._so_far()}", left_s=self._left_s()
            )
            self._time(length, budget)
        self._closely |= {length} if budget is CLOSE else set()
        return self.times[length]

    def _time(self, length: int, budget: Budget) -> None:
        """Time a length, again and again while other programs disturb too many of its calls."""
        pairs: tuple[list[float], list[float]] = [], []
        for _ in range(1 + TIMED_AGAIN):
            for times, more in zip(pairs, self.compare(length, budget), strict=True):
                times.extend(more)
            self.times[length] = PairedTimes(length, *pairs)
            if not self._is_disturbed(length, budget.least):
                break
        self.timed_calls += 2 * len(pairs[0])

    def _is_disturbed(self, length: int, least: int) -> bool:
        """Return whether a length has too few pairs that no other program disturbed."""
        times = self.times[length]
        shorter = max((n for n in self.times if n < length), default=None)
        if shorter is not None:
            growth = (length / shorter) ** GROWTHS[1]
            usual_s = max(TELLING_S, growth * self.times[shorter].longest_s)
            if times.longest_s > UNEXPECTED * usual_s:
                return True
        return len(times.undisturbed) < least

    @property
    def noise(self) -> str | None:
        """Return a sentence if other programs disturbed the calls, else None."""
        count = sum(len(times.a_s) for times in self.times.values())
        disturbed = count - sum(len(times.undisturbed) for times in self.times.values())
        lengths = [n for n in sorted(self.times) if self._is_disturbed(n, LEAST_PAIRS)]
        if not lengths and disturbed <= BUSY * count:
            return None
        where = f", nearly all at {joined([self.text(n) for n in lengths])}" if lengths else ""
        return (
            f"{disturbed} of {count} pairs of calls took more than {DISTURBED:g} times the fastest"
            f"{where}: other programs had the processors; repeat it on a quiet machine"
        )

    def _so_far(self) -> str:
        """Return the brackets of crossings seen so far, for a message."""
        brackets = [self._bracket] if self._bracket else self._brackets()
        texts = [f"between {low:,} and {self.text(high)}" for low, high in brackets]
        return f", they cross {joined(texts)}" if texts else ""

    def _left_s(self) -> float | None:
        """Return seconds that the search should still take; None before calls tell."""
        timed = self._longest_calls()
        begun = len(timed) > 1 and timed[-1][1] > TELLING_S
        if not begun and self._bracket is None:
            return None
        middles = [sqrt(low * high) for low, high in self._brackets()]
        if self._bracket is None:
            last = timed[-1][0]
            later = [place for place in self._spread_lengths() if place > last]
            roots = middles or [*self.guesses[:1]] or [float(last)]
            return search_s(timed, later, roots, self.most_s)
        low, high = self._bracket
        near = sum(low <= n <= high for n in self._closely)
        roots = [sqrt(low * high), *middles[len(self.crossings) + 1 :]]
        return search_s(timed, [], roots, self.most_s, max(1, CLOSE_ONES - near))

    # -- all magnitudes ----------------------------------------------------------------
    def _outwards(self) -> None:
        """Try lengths a factor apart around the guesses, until a call takes too long."""
        first: AttnprofError | None = None
        for place in self._spread_lengths():
            length = self.runnable(place)
            if length is None:
                self.end = f"none beyond {self.text(max(self.times))} runs" if self.times else ""
                break
            if length > self.longest:
                self.end = f"{self.text(self.longest)} are the most that is looked at"
                break
            if length in self.times:
                continue
            if self._is_slow(length):
                self.end = f"a call at {self.text(length)} should take more than {self.most_s:g} s"
                break
            try:
                times = self._look(length, LOOK)
            except AttnprofError as refusal:
                first = first or refusal
                if self.times:
                    self.end = str(refusal)
                    break
                continue
            if not times.sign:
                self._look(length, CLOSE)
        if not self.times:
            raise first or CannotRunError("both run at no length that can be timed")

    def _look_around_guesses(self) -> None:
        """Try lengths around guesses that lie in no bracket, and between guesses.

        Where times jump, as results outgrow what the allocator keeps, they may cross before and
        again after: lengths far apart then show one crossing of several.
        """
        brackets, guesses = self._brackets(), sorted(self.guesses)
        alone = [x for x in guesses if not any(low <= x <= high for low, high in brackets)]
        values = [x * factor for x in alone for factor in (1 / AROUND_GUESS, AROUND_GUESS)]
        for value in (*values, *(sqrt(a * b) for a, b in pairwise(guesses))):
            length = self.runnable(max(self.shortest, round(value)))
            if length is not None and length <= self.longest and not self._is_slow(length):
                with suppress(AttnprofError):  # it may not run there
                    self._look(length, LOOK)

    def _spread_lengths(self) -> Iterator[int]:
        """Yield lengths from the shortest on; every guess is in the middle of two of them."""
        guesses = sorted(g for g in self.guesses if self.shortest < g < self.longest)
        centre = guesses[0] if guesses else self.shortest * sqrt(APART)
        length = centre / sqrt(APART)
        while length > self.shortest:
            length /= APART
        lengths = [max(self.shortest, round(length))]
        while lengths[-1] < self.longest:
            length *= APART
            lengths.append(round(length))
        for guess in guesses[1:]:  # between lengths that are there, only far from them
            near = (guess / sqrt(APART), guess * sqrt(APART))
            lengths += [round(x) for x in near if all(abs(log(x / y)) > 0.5 for y in lengths)]
        yield from sorted(set(lengths))

    def _is_slow(self, length: int) -> bool:
        """Return whether a call should take too long, by the calls timed so far."""
        timed = self._longest_calls()
        if len(timed) < 2 or timed[-1][1] < TELLING_S:
            return bool(timed) and timed[-1][1] > self.most_s
        return expected_s(length, timed[-2:]) > self.most_s

    def _longest_calls(self) -> list[tuple[int, float]]:
        """Return all lengths timed so far, with seconds of the longer call."""
        return [(n, self.times[n].longest_s) for n in sorted(self.times)]

    def _brackets(self) -> list[tuple[int, int]]:
        """Return neighbours of different sign; lengths that do not tell lie between."""
        decided = [n for n in sorted(self.times) if self.times[n].sign]
        return [(a, b) for a, b in pairwise(decided) if self.times[a].sign != self.times[b].sign]

    # -- one crossing ------------------------------------------------------------------
    def _crossing(self, low: int, high: int) -> TimeCrossing | None:
        """Return the crossing between two lengths, or None if closer calls show none.

        The bracket is narrowed by interpolating its ends; then a line through lengths timed closely
        gives the crossing and its interval.
        """
        ends = low, high
        for _ in range(8):
            self._bracket = low, high
            if high / low <= NARROW:
                break
            a, b = self.times[low].log_ratio, self.times[high].log_ratio
            share = min(0.85, max(0.15, a / (a - b)))
            middle = self.runnable(round(low * (high / low) ** share))
            if middle is None or not low < middle < high:
                break
            one = self._look(middle, LOOK)
            if (one.log_ratio > 0) == (self.times[low].sign > 0):
                low = middle
            else:
                high = middle
            if one.sign == 0:
                break
        root = self._interpolated(low, high)
        for _ in range(MOVES):
            crossing = self._line_near(root, ends)
            if abs(log(crossing.at / root)) < log(AROUND[-1]):  # within the lengths timed closely
                break
            root = min(max(crossing.at, ends[0]), ends[1])
        if None in (crossing.low, crossing.high):  # the curves are flat there
            crossing = self._line_along(ends)
        return self._inside_ends(crossing, ends)

    def _line_along(self, ends: tuple[int, int]) -> TimeCrossing:
        """Return the zero of a line through lengths from one end to the other.

        The interval ends, at most, at the next lengths on either side whose calls tell the order.
        """
        low, high = ends
        points = (low * (high / low) ** (n / (ALONG - 1)) for n in range(ALONG))
        near = sorted({length for x in points if (length := self.runnable(round(x)))} | {*ends})
        crossing = self._line(near)
        signs = self.times[low].sign, self.times[high].sign
        before = [n for n in near if n <= crossing.at and self.times[n].sign == signs[0] != 0]
        after = [n for n in near if n >= crossing.at and self.times[n].sign == signs[1] != 0]
        first, last = max(before, default=low), min(after, default=high)
        return TimeCrossing(crossing.at, crossing.low or float(first), crossing.high or float(last))

    def _inside_ends(self, crossing: TimeCrossing, ends: tuple[int, int]) -> TimeCrossing | None:
        """Return the crossing if it is between the ends, else one where the order changes."""
        if ends[0] <= crossing.at <= ends[1]:
            return crossing
        inside = [(a, b) for a, b in self._brackets() if ends[0] <= a and b <= ends[1]]
        if not inside:  # measured closely, the order does not change
            return None
        low, high = inside[0]
        return TimeCrossing(self._interpolated(low, high), low, high)

    def _interpolated(self, low: int, high: int) -> float:
        """Return the zero of a line between two lengths, over their logarithms."""
        a, b = self.times[low].log_ratio, self.times[high].log_ratio
        return float(low * (high / low) ** (a / (a - b) if a != b else 0.5))

    def _line_near(self, root: float, ends: tuple[int, int]) -> TimeCrossing:
        """Return the zero of a line through lengths around a root, timed closely."""
        near = list[int]()
        for factor in AROUND:
            length = self.runnable(max(1, round(root * factor)))
            near += [length] if length is not None and length not in near else []
        if len(near) < 3:  # lengths that run lie far apart, or are few
            near = sorted({*near, *ends})
        # a length measured before counts whatever it shows
        before = {n for n in self._closely if abs(log(n / root)) < log(REACH)}
        return self._line(sorted({*near, *before}))

    def _line(self, lengths: Sequence[int]) -> TimeCrossing:
        """Return the zero of a line through lengths, timed closely."""
        ratios = [self._look(n, CLOSE).log_ratio for n in lengths]
        return root_of_line([log(n) for n in lengths], ratios)
