"""Where two predicted times cross: powers of two, and halves between two that differ."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import exp, log, sqrt

from attnprof.crossovers.search import OrderSearch
from attnprof.crossovers.time_search import SHORTEST
from attnprof.device.prediction import REACH
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.statistics import TimeCrossing

#: Predictions end where a call takes longer, in seconds, or where seeing its operations does.
LONGEST_CALL_S, SLOW_S = 60.0, 2.0
#: That grows with the length if twice as many tokens take so much more.
GROWN = 1.5
LONGEST = 2**20
#: Logarithms of ratios as near to one tell no order, unless there is no crossing otherwise.
TIE = 0.03
#: A predicted crossing is bisected until its bracket is this narrow.
FINE = 1.02


@dataclass(kw_only=True)
class PredictedSearch(OrderSearch):
    """Both predicted times at powers of two, and where they cross in between.

    From ``shortest`` on to ``longest``, each where ``at`` says that a usual one is; ``said`` names
    one. ``spread`` is the standard deviation, in logarithms, of a predicted ratio of two times.
    """

    refusals: tuple[type[AttnprofError], ...] = (AttnprofError,)
    runnable: Callable[[int], int | None]
    spread: float
    shortest: int = SHORTEST
    longest: int = LONGEST
    at: Callable[[int], int | None] = lambda length: length
    said: Callable[[int], str] = "{:,} tokens".format
    found: list[TimeCrossing] = field(default_factory=list)
    #: the sign below the first crossing, and the one above the last
    outer: tuple[int, int] = (0, 0)

    def order(self, a: float, b: float) -> int:
        """1 where B is faster, else -1."""
        return 1 if log(a / b) > 0 else -1

    def run(self) -> None:
        """Look at all lengths; raises what the first length raises where none runs."""
        self.outwards(self._grid())
        if not self.seen:
            raise self.first_refusal or CannotRunError("both run nowhere")
        told = [length for length in self.seen if abs(self.ratio(length)) > TIE]
        brackets = self.brackets(told)
        ordered = sorted(told if brackets else self.seen)
        self.outer = self.signs[ordered[0]], self.signs[ordered[-1]]
        brackets = brackets or self.brackets()
        self.found = [self._crossing(low, high) for low, high in brackets]

    def _grid(self) -> Iterator[int]:
        place, before = self.shortest, 0.0
        while place <= self.longest and (length := self.at(place)) is not None:
            start = time.process_time()
            yield length
            spent = time.process_time() - start
            if length in self.seen:
                slow = spent > SLOW_S and spent > GROWN * before > 0
                if slow or max(self.seen[length]) > LONGEST_CALL_S:
                    self.end = f"at {self.said(length)} that took too long already"
                    return
                before = spent
            elif self.seen:
                self.end = str(self.refused[length])
                return
            place = 2 * max(length, place)

    def ratio(self, length: int) -> float:
        """Logarithm of A's time over B's."""
        a, b = self.seen[length]
        return log(a / b)

    def _between(self, low: int, high: int) -> Iterator[int]:
        middle = self.runnable(round(sqrt(low * high))) if high / low > FINE else None
        if middle is not None and low < middle < high:
            yield middle

    def _crossing(self, low: int, high: int) -> TimeCrossing:
        low, high = self.halve(low, high, self._between)
        at = _zero((low, self.ratio(low)), (high, self.ratio(high)))
        return TimeCrossing(at, self._reached(at, -1), self._reached(at, 1))

    def _reached(self, at: float, side: int) -> float | None:
        """Where the ratio is told from one on a side of a crossing; None where it never is."""
        reach = REACH * self.spread
        before = (at, 0.0)
        lengths = sorted(self.seen, reverse=side < 0)
        for length in (n for n in lengths if side * (n - at) > 0):
            value = abs(self.ratio(length))
            if value >= reach:
                return _zero((before[0], before[1] - reach), (length, value - reach))
            before = (length, value)
        return None


def _zero(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Where a line through two points, lengths by their logarithms, is zero."""
    (x, y), (u, v) = one, other
    return exp(log(x) + (log(u) - log(x)) * (y / (y - v) if y != v else 0.5))
