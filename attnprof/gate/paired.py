"""Times of two revisions, taken in turns in random order: is the second one slower.

A pair is one short block of calls of each, next to each other in time, so that whatever slows the
machine slows both. What differs from process to process (where memory lies, who runs on the other
core) does not average out within one: so each fresh process of each side gives a few pairs, their
median counts as one observation, and the bounds are order statistics of these, which hold whatever
their distribution (sign test). The error is shared among the looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from attnprof.errors import RequestError, closest
from attnprof.gate.verdicts import IMPROVED, INCONCLUSIVE, OK, REGRESSED

#: Pairs of one process of each side, and processes after which a comparison is looked at; the
#: later ones only where a result is still open and there is time.
PAIRS = 5
LOOKS, MORE_LOOKS = (8, 12, 16), (24, 32, 48, 64)
#: Chance, in all looks together, that a bound lies on the wrong side.
ALPHA = 0.03
_LOOK_ALPHA = ALPHA / len(LOOKS + MORE_LOOKS)
#: The bounds are so many standard errors from the median, for normal noise and any of the looks.
_Z = 3.1
_Z_SURE = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True)
class Rule:
    """When a slowdown fails: the bound of the ratio above ``bound`` and its median above ``point``.

    Shares of the baseline's time. Below ``equal`` from above, the two are the same.
    """

    name: str
    bound: float
    point: float
    equal: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= self.point < 10 or self.equal <= 0:
            raise RequestError(
                f"rule {self.name}: needs 0 <= bound <= point and equal > 0; it has "
                f"{self.bound}, {self.point}, {self.equal}"
            )


RULES = {
    rule.name: rule
    for rule in (
        Rule("sensitive", 0.0, 0.03, 0.04),
        Rule("default", 0.02, 0.02),
        Rule("lenient", 0.1, 0.1),
    )
}


def rule_named(name: str) -> Rule:
    """A preset; :class:`RequestError` lists them."""
    if name not in RULES:
        raise RequestError(f"rule '{name}': {closest(name, list(RULES))}")
    return RULES[name]


@dataclass(frozen=True)
class Judgement:
    """``ratio`` current / baseline with its two one-sided bounds, after so many ``processes``."""

    verdict: str
    ratio: float
    low: float
    high: float
    processes: int

    @property
    def noise(self) -> float:
        """Half the distance of the bounds, as a share."""
        return (self.high - self.low) / 2

    @property
    def error(self) -> float:
        """Standard error of the logarithm of ``ratio``."""
        return max(1e-6, (math.log(self.high) - math.log(self.low)) / (2 * _Z))


def medians(log_ratios: Sequence[float]) -> list[float]:
    """One observation a process: the median of its pairs."""
    starts = range(0, len(log_ratios), PAIRS)
    return [median(log_ratios[start : start + PAIRS]) for start in starts]


def bounds_of_median(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Lower and upper one-sided bounds of the median, each wrong with chance ``alpha`` at most.

    The k-th smallest and largest, with the largest k that keeps ``alpha``; None where even the
    extremes do not (fewer than eight values for 0.004).
    """
    ordered, n, tail, k = sorted(values), len(values), 0.0, 0
    while tail + math.comb(n, k) / 2**n <= alpha:
        tail += math.comb(n, k) / 2**n
        k += 1
    return (ordered[k - 1], ordered[-k]) if k else None


def judge(log_ratios: Sequence[float], rule: Rule, *, last: bool = False) -> Judgement:
    """What the pairs so far say; ``inconclusive`` asks for more, at the ``last`` look it is final.

    Raises ValueError for no pairs.
    """
    values = medians(log_ratios)
    sure = bounds_of_median(values, _LOOK_ALPHA)
    low, high = sure or (min(values), max(values))
    ratio, below, above = (math.exp(x) for x in (median(values), low, high))
    verdict = INCONCLUSIVE
    if sure and below > 1 + rule.bound and ratio > 1 + rule.point:
        verdict = REGRESSED
    elif sure and above < 1 / (1 + rule.point):
        verdict = IMPROVED
    elif sure and above < 1 + max(rule.equal, rule.point):
        verdict = OK
    elif sure and last and ratio <= 1 + rule.bound:
        verdict = OK  # nothing speaks for a slowdown; the bound is wide because the machine is
    return Judgement(verdict, ratio, below, above, len(values))


def power(found: Judgement, rule: Rule, slowdown: float) -> float:
    """Chance that as many processes at this noise call a ``slowdown`` (0.1) regressed."""
    bounded = NormalDist().cdf(_margin(rule.bound, slowdown) / found.error - _Z)
    pointed = NormalDist().cdf(_margin(rule.point, slowdown) / found.error)
    return min(bounded, pointed)


def processes_for(found: Judgement, rule: Rule, slowdown: float) -> int | None:
    """Processes after which that chance is 99 in 100; None where the rule never sees it."""
    needed = (
        (_margin(rule.bound, slowdown), _Z + _Z_SURE), (_margin(rule.point, slowdown), _Z_SURE)
    )  # fmt: skip
    if any(margin <= 0 for margin, _ in needed):
        return None
    most = max((found.error * errors / margin) ** 2 for margin, errors in needed)
    return max(found.processes, math.ceil(found.processes * most))


def _margin(threshold: float, slowdown: float) -> float:
    return math.log1p(slowdown) - math.log1p(threshold)
