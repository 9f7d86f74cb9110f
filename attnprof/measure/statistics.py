"""What a list of times says: the median, and how well it is known whatever the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, fsum, log, sqrt

#: Half width of the interval, as a share of the median, above which a result is called noisy.
NOISY_SHARE = 0.10
CONFIDENCE = 0.95


@dataclass(frozen=True)
class MedianEstimate:
    """Median and interval in seconds; ``coverage`` is the interval's probability."""

    median_s: float
    low_s: float
    high_s: float
    coverage: float
    count: int

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the median."""
        return (self.high_s - self.low_s) / 2 / self.median_s if self.median_s else 0.0

    @property
    def noisy(self) -> str | None:
        """A sentence when the median is not well known, else None."""
        half = self.half_width
        advice = "raise --samples and --max-time, or quieten the machine"
        if self.coverage < CONFIDENCE:
            return (
                f"only {self.count} samples: they span ±{half:.0%}, which holds the median with "
                f"{self.coverage:.0%} confidence, not {CONFIDENCE:.0%}; raise --max-time"
            )
        if half > NOISY_SHARE:
            return f"noisy: ±{half:.0%} around the median of {self.count} samples; {advice}"
        return None


def estimate_median(times_s: Sequence[float], confidence: float = CONFIDENCE) -> MedianEstimate:
    """Median with the interval between two order statistics.

    The i-th smallest and i-th largest of n values hold the true median with probability
    1 - 2·P(Binomial(n, 1/2) < i), whatever the distribution (sign test); i is the largest that
    keeps ``confidence``, or 1 where even the extremes do not. Raises ValueError for no times.
    """
    ordered = sorted(times_s)
    n = len(ordered)
    if n == 0:
        raise ValueError("no times to estimate a median from")
    rank, below = 1, 1
    while rank < (n + 1) // 2 and 1 - 2 * (below + comb(n, rank)) / 2**n >= confidence:
        below += comb(n, rank)
        rank += 1
    coverage = max(0.0, 1 - 2 * below / 2**n)
    middle = n // 2
    median = ordered[middle] if n % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return MedianEstimate(median, ordered[rank - 1], ordered[n - rank], coverage, n)


#: The quantiles a record keeps beside its samples.
QUANTILES = (0.05, 0.25, 0.75, 0.95)


def quantiles_of(times_s: Sequence[float]) -> dict[str, float]:
    """``{"p05": …, "p25": …, "p75": …, "p95": …}``, between samples by straight lines."""
    ordered = sorted(times_s)
    found = {}
    for share in QUANTILES:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        value = ordered[low] + (place - low) * (ordered[high] - ordered[low])
        found[f"p{round(100 * share):02d}"] = value
    return found


#: Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, the normal's.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_NORMAL95 = 1.960


@dataclass(frozen=True)
class ProcessEstimate:
    """The centre of several processes' medians and its 95 % interval, in seconds."""

    median_s: float
    low_s: float
    high_s: float
    processes: int

    @property
    def noisy(self) -> str | None:
        """A sentence when the centre is not well known, else None."""
        half = (self.high_s - self.low_s) / 2 / self.median_s if self.median_s else 0.0
        if half <= NOISY_SHARE:
            return None
        return (
            f"noisy: ±{half:.0%} around the median of {self.processes} processes; raise "
            "--processes, or quieten the machine"
        )


def estimate_over_processes(times_s: Sequence[Sequence[float]]) -> ProcessEstimate:
    """The typical time when a process is drawn too: memory layout and its neighbours differ.

    Student's t over the logarithms of the processes' medians; one process alone falls back to
    the interval of its own samples. Raises ValueError for no times.
    """
    medians = [estimate_median(times) for times in times_s]
    if len(medians) == 1:
        one = medians[0]
        return ProcessEstimate(one.median_s, one.low_s, one.high_s, 1)
    logs = [log(max(m.median_s, 1e-12)) for m in medians]
    count = len(logs)
    centre = fsum(logs) / count
    spread = sqrt(fsum((x - centre) ** 2 for x in logs) / (count - 1))
    quantile = _T95[count - 2] if count - 2 < len(_T95) else _NORMAL95
    half = quantile * spread / sqrt(count)
    return ProcessEstimate(exp(centre), exp(centre - half), exp(centre + half), count)
