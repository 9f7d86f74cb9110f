"""Find crossings of two predicted times: predict at 16, 32, 64, … tokens, then halve brackets.

A time jumps where a result outgrows what the allocator keeps: from there on each call takes new
memory. A may become faster at 1,500 tokens and slower again at 1,900, by a jump of its time; at
1,024 and 2,048 tokens B is faster. So lengths just below a jump are tried as well.
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

#: Seconds of a predicted call beyond which longer lengths are not tried.
LONGEST_CALL_S = 60.0
#: Seconds to predict at a length, and growth since half the length: beyond both it ends, too.
SLOW_S, SLOWER = 2.0, 1.5
LONGEST = 2**20
#: Times that differ by less than 3 % tell no order, unless there would be no crossing.
TIE = 0.03
#: Ratio of a bracket's ends at which it is not halved further.
NARROW = 1.02


@dataclass(kw_only=True)
class PredictedSearch(OrderSearch):
    """Both predicted times at powers of two, and the crossings between them.

    The values are lengths, or those of another axis, such as widths. ``usual`` moves a power of
    two, ``runnable`` the middle of a bracket, to the next value that both sides take, or None.
    ``text`` gives a value its unit, for messages. ``spread`` is the standard deviation of the
    logarithm of a predicted ratio.
    """

    refusals: tuple[type[AttnprofError], ...] = (AttnprofError,)
    runnable: Callable[[int], int | None]
    spread: float
    shortest: int = SHORTEST
    longest: int = LONGEST
    usual: Callable[[int], int | None] = lambda length: length
    text: Callable[[int], str] = "{:,} tokens".format
    time_crossings: list[TimeCrossing] = field(default_factory=list)
    #: the order below the first crossing, and the one above the last
    outer: tuple[int, int] = (0, 0)

    def order(self, a: float, b: float) -> int:
        """Return 1 where B is faster, else -1."""
        return 1 if log(a / b) > 0 else -1

    def run(self) -> None:
        """Set ``time_crossings`` and ``outer``; raise the first refusal if both run nowhere."""
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
        power, spent_before = self.shortest, 0.0
        while power <= self.longest and (length := self.usual(power)) is not None:
            start = time.process_time()
            yield length
            spent = time.process_time() - start
            if length in self.costs:
                slow = spent > SLOW_S and spent > SLOWER * spent_before > 0
                if slow or max(self.costs[length]) > LONGEST_CALL_S:
                    self.end = f"at {self.text(length)} that took too long already"
                    return
                spent_before = spent
            elif self.costs:
                self.end = str(self.refused[length])
                return
            power = 2 * max(length, power)

    def _look_before_jump(self, before: int, low: int, high: int) -> None:
        """Try lengths between two for a change of order that a jump of one time undoes.

        The change of the ratio from ``before`` to ``low`` is continued to ``high``. If that gives
        another order than ``high`` has, lengths closer and closer below the jump are tried until
        one has the expected order.
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
        middle = self.runnable(round(sqrt(low * high))) if high / low > NARROW else None
        if middle is not None and low < middle < high:
            yield middle

    def _crossing(self, low: int, high: int) -> TimeCrossing:
        low, high = self.halve(low, high, self._between)
        at = _zero((low, self.ratio(low)), (high, self.ratio(high)))
        return TimeCrossing(at, self._interval_end(at, -1), self._interval_end(at, 1))

    def _interval_end(self, at: float, side: int) -> float | None:
        """Return an end of the 95 % interval of a crossing: the upper one for ``side`` 1, else -1.

        There the ratio differs from one by 1.96 standard deviations. None if it does so nowhere.
        """
        reach = REACH * self.spread
        before = (at, -reach)
        lengths = sorted(self.costs, reverse=side < 0)
        for length in (n for n in lengths if side * (n - at) > 0):
            point = (length, abs(self.ratio(length)) - reach)
            if point[1] >= 0:
                return _zero(before, point)
            before = point
        return None


def _zero(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the zero of the line through two points (length, value), over log(length)."""
    (x, y), (u, v) = one, other
    return exp(log(x) + (log(u) - log(x)) * (y / (y - v) if y != v else 0.5))
