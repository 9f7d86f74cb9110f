"""Estimate a median from times, and how well it is known, whatever their distribution."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb, exp, log, sqrt
from operator import mul
from statistics import fmean, median, quantiles, stdev

#: Half width of the interval, as a share of the median, above which a result is called noisy.
NOISY_SHARE = 0.10
CONFIDENCE = 0.95


@dataclass(frozen=True)
class MedianEstimate:
    """A median and its interval in seconds, of ``count`` samples or processes (``sample_kind``).

    ``coverage`` is the probability that the interval holds the true median. ``independent`` is how
    many samples tell as much, if neighbours are alike (None: all of them).
    """

    median_s: float
    low_s: float
    high_s: float
    coverage: float
    count: int
    sample_kind: str = "samples"
    independent: int | None = None

    @property
    def half_width(self) -> float:
        """Return half the interval, as a share of the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s if self.median_s else 0.0

    @property
    def noisy(self) -> str | None:
        """Return a sentence if the median is not well known, else None."""
        half = self.half_width
        if self.coverage < CONFIDENCE:
            return (
                f"only {self.count} sample{'s' * (self.count > 1)}: their range, ±{half:.0%}, has "
                f"the median with {self.coverage:.0%} confidence, not {CONFIDENCE:.0%}; "
                "raise --max-time"
            )
        if half <= NOISY_SHARE:
            return None
        flags = "--samples and --max-time" if self.sample_kind == "samples" else "--processes"
        alike = (
            f", which count as {self.independent} since the machine changes its speed in between,"
            if self.independent is not None else ""
        )  # fmt: skip
        return (
            f"noisy: the median of {self.count} {self.sample_kind}{alike} is known to ±{half:.0%} "
            f"only; raise {flags}, or use a quieter machine"
        )


def estimate_median(times_s: Sequence[float]) -> MedianEstimate:
    """Return the median of times in the order they were taken, with an interval.

    The i-th smallest and i-th largest of n independent values hold the true median with probability
    1 - 2·P(Binomial(n, 1/2) < i), whatever the distribution (sign test); i is the largest that
    keeps ``CONFIDENCE``, or 1 where even the extremes do not. Where a machine changes its speed for
    stretches of calls, n is the number of :func:`independent_count`, and the values those at the
    same share of all. Raises ValueError for no times.
    """
    ordered, n = sorted(times_s), len(times_s)
    if n == 0:
        raise ValueError("no times to estimate a median from")
    independent = independent_count(times_s)
    rank, tail = order_rank(independent, (1 - CONFIDENCE) / 2)
    if rank == 0:
        rank, tail = 1, 1 / 2**n
    coverage, rank = max(0.0, 1 - 2 * tail), 1 + (rank - 1) * n // independent
    return MedianEstimate(
        median(ordered), ordered[rank - 1], ordered[n - rank], coverage, n,
        independent=None if independent == n else independent,
    )  # fmt: skip


#: Least number of independent values that correlated ones count as: the range of so many is an
#: interval of 95 %, and there is no wider one.
LEAST_INDEPENDENT = 6


def independent_count(times_s: Sequence[float]) -> int:
    """Return how many independent values tell as much about the median as these in their order.

    It is n / (1 + 2·Σ r), where r is the correlation of the values' ranks with those of the next
    value, of the one after it, and so on, while it is more than chance: 2/√n. Of 40 times, 20 by a
    fast processor and then 20 by a slow one, it is 6; of the same shuffled, 40.
    """
    n, ordered = len(times_s), sorted(times_s)
    ranks = [bisect_left(ordered, x) + bisect_right(ordered, x) - n for x in times_s]  # mean 0
    squares, inflation = sum(map(mul, ranks, ranks)), 1.0
    for lag in range(1, n // 2 if squares else 0):
        correlation = sum(map(mul, ranks, ranks[lag:])) / squares
        if correlation <= 2 / sqrt(n):
            break
        inflation += 2 * correlation
    return min(n, max(LEAST_INDEPENDENT, round(n / inflation)))


def order_rank(n: int, alpha: float) -> tuple[int, float]:
    """Return the largest k with P(Binomial(n, 1/2) < k) <= ``alpha``, and that probability.

    It is the chance that the k-th smallest of n values lies above their distribution's median.
    """
    rank, tail = 0, 0.0
    while rank < (n + 1) // 2 and tail + comb(n, rank) / 2**n <= alpha:
        tail += comb(n, rank) / 2**n
        rank += 1
    return rank, tail


def quantiles_of(times_s: Sequence[float]) -> dict[str, float]:
    """Return ``{"p05": …, "p25": …, "p75": …, "p95": …}``, interpolated linearly."""
    one = [times_s[0]] * 20
    twentieths = quantiles(times_s, n=20, method="inclusive") if len(times_s) > 1 else one
    return {f"p{percent:02d}": twentieths[percent // 5 - 1] for percent in (5, 25, 75, 95)}


#: Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, the normal's.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_NORMAL95 = 1.960


def student_quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for ``freedom`` degrees."""
    return _T95[freedom - 1] if freedom <= len(_T95) else _NORMAL95


def estimate_over_processes(times_s: Sequence[Sequence[float]]) -> MedianEstimate:
    """Return the typical time over processes, which differ in memory layout.

    Its interval is Student's t over the logarithms of the processes' medians, at 95 %; one process
    alone has the interval of its own samples. Raises ValueError for no times.
    """
    medians = [estimate_median(times) for times in times_s]
    count = len(medians)
    if count == 1:
        return replace(medians[0], coverage=CONFIDENCE, count=1, sample_kind="processes")
    logs = [log(max(m.median_s, 1e-12)) for m in medians]
    centre = fmean(logs)
    half = student_quantile(count - 1) * stdev(logs) / sqrt(count)
    low, high = exp(centre - half), exp(centre + half)
    return MedianEstimate(exp(centre), low, high, CONFIDENCE, count, "processes")


#: A call that takes so many times the fastest of its side waited for another program; fewer pairs
#: without one tell no order.
DISTURBED, LEAST_PAIRS = 2.0, 5


@dataclass(frozen=True)
class PairedTimes:
    """Both times at a length, from pairs of calls, and the logarithm of A's over B's."""

    seq_len: int
    a_s: Sequence[float]
    b_s: Sequence[float]

    @cached_property
    def undisturbed(self) -> list[tuple[float, float]]:
        """The pairs whose calls took at most ``DISTURBED`` times the fastest of their side."""
        most_a, most_b = (DISTURBED * min(times) for times in (self.a_s, self.b_s))
        pairs = zip(self.a_s, self.b_s, strict=True)
        return [(a, b) for a, b in pairs if a <= most_a and b <= most_b]

    @cached_property
    def estimate(self) -> MedianEstimate:
        """The median of the undisturbed pairs' logarithms, with its interval."""
        pairs = self.undisturbed or list(zip(self.a_s, self.b_s, strict=True))
        return estimate_median([log(a / b) for a, b in pairs])

    @property
    def log_ratio(self) -> float:
        """The median logarithm: above 0 where B is faster."""
        return self.estimate.median_s

    @property
    def sign(self) -> int:
        """1 where B is faster, -1 where A is, 0 where the calls do not tell."""
        if len(self.undisturbed) < LEAST_PAIRS:
            return 0
        return (self.estimate.low_s > 0) - (self.estimate.high_s < 0)

    @property
    def longest_s(self) -> float:
        """Seconds of the longer call of both."""
        return max(min(self.a_s), min(self.b_s))


#: Least standard deviation of a ratio's logarithm: a single process hides how others differ.
LEAST_SCATTER = 0.01
#: Widest reported interval, as a factor on either side; a wider end is unknown.
WIDEST = 8.0
#: Largest factor from lengths to a zero of the line through them that they could tell.
FARTHEST = 1e6


@dataclass(frozen=True)
class TimeCrossing:
    """A length at which two mechanisms take equally long; an unknown end is None."""

    at: float
    low: float | None
    high: float | None


def root_of_line(x: Sequence[float], y: Sequence[float]) -> TimeCrossing:
    """Return the zero of the least-squares line through (logarithms of lengths, y).

    The interval is Fieller's at 95 %: all lengths at which a line that the scatter of the points
    allows may be zero; an end is None where there is no such length within a factor ``WIDEST``.
    """
    count, x0, y0 = len(x), fmean(x), fmean(y)
    spread = sum((a - x0) ** 2 for a in x)
    slope = sum((a - x0) * (b - y0) for a, b in zip(x, y, strict=True)) / spread
    if abs(y0) > log(FARTHEST) * abs(slope):  # the line is flat
        return TimeCrossing(exp(x0), None, None)
    at = x0 - y0 / slope if y0 else x0
    if count < 3:
        return TimeCrossing(exp(at), None, None)
    rest = sum((b - y0 - slope * (a - x0)) ** 2 for a, b in zip(x, y, strict=True))
    reach = student_quantile(count - 2) ** 2 * max(rest / (count - 2), LEAST_SCATTER**2)
    # zero of (y0 + slope u)² = reach (1/count + u²/spread), u = x - x0
    square = slope**2 - reach / spread
    linear, constant = slope * y0, y0**2 - reach / count
    root = linear**2 - square * constant
    if square <= 0 or root < 0:
        return TimeCrossing(exp(at), None, None)
    low, high = (x0 + (-linear + side * sqrt(root)) / square for side in (-1, 1))
    ends = (end if abs(end - at) < log(WIDEST) else None for end in (low, high))
    low_s, high_s = (None if end is None else exp(end) for end in ends)
    return TimeCrossing(exp(at), low_s, high_s)
