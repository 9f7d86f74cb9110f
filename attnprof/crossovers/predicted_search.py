"""Crossings of two predicted times: tried at powers of two, then brackets are halved.

Before a jump of one time, which results outgrowing the allocator's blocks cause, further lengths
are tried: the jump may undo a crossing.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import exp, log, sqrt

from attnprof.crossovers.order_search import OrderSearch
from attnprof.crossovers.time_search import SHORTEST
from attnprof.device.prediction import REACH
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.statistics import TimeCrossing

#: Seconds of a call, and of listing its operations, after which no longer length is predicted.
LONGEST_CALL_S, SLOW_S = 60.0, 2.0
#: Listing operations grows with the length if twice as many tokens take so many times as long.
GROWN = 1.5
LONGEST = 2**20
#: A ratio whose logarithm is smaller tells no order, unless there would be no crossing.
TIE = 0.03
#: A predicted crossing is bisected until its bracket is this narrow.
FINE = 1.02


@dataclass(kw_only=True)
class PredictedSearch(OrderSearch):
    """Both predicted times at powers of two, and the crossings between them.

    Values from ``shortest`` to ``longest`` are tried, each moved by ``usual`` to one that is in
    use. ``text`` is a value with its unit, for messages, ``spread`` the standard deviation of a
    predicted ratio's logarithm.
    """

    refusals: tuple[type[AttnprofError], ...] = (AttnprofError,)
    runnable: Callable[[int], int | None]
    spread: float
    shortest: int = SHORTEST
    longest: int = LONGEST
    usual: Callable[[int], int | None] = lambda length: length
    text: Callable[[int], str] = "{:,} tokens".format
    time_crossings: list[TimeCrossing] = field(default_factory=list)
    #: the sign below the first crossing, and the one above the last
    outer: tuple[int, int] = (0, 0)

    def order(self, a: float, b: float) -> int:
        """Return 1 where B is faster, else -1."""
        return 1 if log(a / b) > 0 else -1

    def run(self) -> None:
        """Look at all lengths and find the crossings; raise the first refusal if none runs."""
        self.try_all(self._grid())
        if not self.costs:
            raise self.first_refusal or CannotRunError("both run nowhere")
        for before, low, high in zip(*(sorted(self.costs)[n:] for n in range(3)), strict=False):
            self._look_before_jump(before, low, high)
        decided = [length for length in self.costs if abs(self.ratio(length)) > TIE]
        brackets = self.brackets(decided)
        ordered = sorted(decided if brackets else self.costs)
        self.outer = self.signs[ordered[0]], self.signs[ordered[-1]]
        brackets = brackets or self.brackets()
        self.time_crossings = [self._crossing(low, high) for low, high in brackets]

    def _grid(self) -> Iterator[int]:
        """Yield lengths, each twice the one before, until calls or predictions take too long."""
        place, before = self.shortest, 0.0
        while place <= self.longest and (length := self.usual(place)) is not None:
            start = time.process_time()
            yield length
            spent = time.process_time() - start
            if length in self.costs:
                slow = spent > SLOW_S and spent > GROWN * before > 0
                if slow or max(self.costs[length]) > LONGEST_CALL_S:
                    self.end = f"at {self.text(length)} that took too long already"
                    return
                before = spent
            elif self.costs:
                self.end = str(self.refused[length])
                return
            place = 2 * max(length, place)

    def _look_before_jump(self, before: int, low: int, high: int) -> None:
        """Look for a change of order that a jump of one time, before a third length, undoes.

        A result that grows beyond what the allocator keeps costs new memory at each call. Where the
        ratio, as it changed up to ``low``, should have another sign at ``high``, lengths closer and
        closer below the jump are tried until one has it.
        """
        growth = self.ratio(low) - self.ratio(before)
        expected = self.ratio(low) + growth * log(high / low) / log(low / before)
        above = self.signs[high]
        if self.ratio(low) * above < -TIE or expected * above > 0:
            return
        while (middle := next(filter(self.try_place, self._between(low, high)), None)) is not None:
            if self.ratio(middle) * above < -TIE:
                return
            onwards = (self.ratio(middle) - self.ratio(low)) * growth > 0
            low, high = (middle, high) if onwards else (low, middle)

    def ratio(self, length: int) -> float:
        """Return the logarithm of A's time over B's."""
        a, b = self.costs[length]
        return log(a / b)

    def _between(self, low: int, high: int) -> Iterator[int]:
        middle = self.runnable(round(sqrt(low * high))) if high / low > FINE else None
        if middle is not None and low < middle < high:
            yield middle

    def _crossing(self, low: int, high: int) -> TimeCrossing:
        low, high = self.halve(low, high, self._between)
        at = _zero((low, self.ratio(low)), (high, self.ratio(high)))
        return TimeCrossing(at, self._certain_from(at, -1), self._certain_from(at, 1))

    def _certain_from(self, at: float, side: int) -> float | None:
        """Return the length from which on the order is certain on one side of a crossing, or None.

        From there on the ratio differs from one by more than the prediction's usual error.
        """
        reach = REACH * self.spread
        before = (at, 0.0)
        lengths = sorted(self.costs, reverse=side < 0)
        for length in (n for n in lengths if side * (n - at) > 0):
            value = abs(self.ratio(length))
            if value >= reach:
                return _zero((before[0], before[1] - reach), (length, value - reach))
            before = (length, value)
        return None


def _zero(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the length at which a line through two points is zero, over logarithms."""
    (x, y), (u, v) = one, other
    return exp(log(x) + (log(u) - log(x)) * (y / (y - v) if y != v else 0.5))
