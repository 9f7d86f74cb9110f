"""Where two predicted times cross: powers of two, and halves between two that differ."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log

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


@dataclass
class PredictedSearch:
    """Both predicted times at powers of two, and where they cross in between.

    From ``shortest`` on to ``longest``, each where ``at`` says that a usual one is; ``said`` names
    one. ``spread`` is the standard deviation, in logarithms, of a predicted ratio of two times.
    """

    both: Callable[[int], tuple[float, float]]
    runnable: Callable[[int], int | None]
    spread: float
    shortest: int = SHORTEST
    longest: int = LONGEST
    at: Callable[[int], int | None] = lambda length: length
    said: Callable[[int], str] = "{:,} tokens".format
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)
    crossings: list[TimeCrossing] = field(default_factory=list)
    #: the lengths that tell the order below the first crossing and above the last
    ends: tuple[int, int] = (0, 0)
    end: str = ""

    def run(self) -> None:
        """Look at all lengths; raises what the first length raises where none runs."""
        first: AttnprofError | None = None
        place, before = self.shortest, 0.0
        while place <= self.longest and (length := self.at(place)) is not None:
            start = time.process_time()
            try:
                self.seen[length] = self.both(length)
            except AttnprofError as refusal:
                first = first or refusal
                if self.seen:
                    self.end = str(refusal)
                    break
            else:
                spent = time.process_time() - start
                slow = spent > SLOW_S and spent > GROWN * before > 0
                before = spent
                if slow or max(self.seen[length]) > LONGEST_CALL_S:
                    self.end = f"at {self.said(length)} that took too long already"
                    break
            place = 2 * max(length, place)
        if not self.seen:
            raise first or CannotRunError("both run nowhere")
        lengths = sorted(self.seen)
        told = [length for length in lengths if abs(self.ratio(length)) > TIE]
        brackets = self._changes(told)
        self.ends = (told[0], told[-1]) if brackets else (lengths[0], lengths[-1])
        brackets = brackets or self._changes(lengths)
        self.crossings = [self._between(low, high) for low, high in brackets]

    def _changes(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Neighbours whose order differs."""
        return [(x, y) for x, y in pairwise(lengths) if self.sign(x) != self.sign(y)]

    def ratio(self, length: int) -> float:
        """Logarithm of A's time over B's."""
        if length not in self.seen:
            self.seen[length] = self.both(length)
        a, b = self.seen[length]
        return log(a / b)

    def sign(self, length: int) -> int:
        """1 where B is faster, else -1."""
        return 1 if self.ratio(length) > 0 else -1

    def _between(self, low: int, high: int) -> TimeCrossing:
        below = self.sign(low)
        while high / low > FINE:
            middle = self.runnable(round((low * high) ** 0.5))
            if middle is None or not low < middle < high:
                break
            low, high = (middle, high) if self.sign(middle) == below else (low, middle)
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
