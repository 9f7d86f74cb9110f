"""Times of two revisions, taken in turns in random order: is the second one slower.

A pair is one short call of each, next to each other in time, so that whatever slows the machine
slows both. What is judged is the median of the logarithms of their ratios, by a one-sided
bootstrap bound; after every twenty pairs, with the error shared among the looks. Measured to
raise no alarm in 128 comparisons of unchanged code with 80 pairs, and to see a tenth more time
in 98 of 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from attnprof.errors import RequestError, closest
from attnprof.gate.verdicts import IMPROVED, INCONCLUSIVE, OK, REGRESSED

#: Pairs after which a comparison is looked at, and the resamples of a bound.
LOOKS = (20, 40, 60, 80)
RESAMPLES = 4000
#: Chance, in all looks together, of calling unchanged code slower.
ALPHA = 0.01


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
        Rule("sensitive", 0.0, 0.03),
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
    """``ratio`` current / baseline with its two one-sided bounds, after so many ``pairs``."""

    verdict: str
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def noise(self) -> float:
        """Half the distance of the bounds, as a share."""
        return (self.high - self.low) / 2


def bounds_of_median(
    log_ratios: Sequence[float], alpha: float, seed: int = 0, group: int | None = None
) -> tuple[float, float]:
    """Lower and upper one-sided bootstrap bounds of the median, each wrong with chance ``alpha``.

    Each ``group`` values in a row come from one process: processes are drawn first, then pairs
    inside them, because what differs from process to process does not average out within one.
    Repeatable: resamples are drawn from ``seed``. Raises ValueError for fewer than two values.
    """
    values = np.asarray(log_ratios, dtype=float)
    if values.size < 2:
        raise ValueError("a bound needs two pairs at least")
    chance = np.random.default_rng(seed)
    size = values.size if group is None or values.size % group else group
    processes = values.size // size
    firsts = size * chance.integers(0, processes, (RESAMPLES, processes, 1))
    draws = firsts + chance.integers(0, size, (RESAMPLES, processes, size))
    medians = np.median(values[draws.reshape(RESAMPLES, -1)], axis=1)
    low, high = np.quantile(medians, [alpha, 1 - alpha])
    return float(low), float(high)


def judge(
    log_ratios: Sequence[float], rule: Rule, *, last: bool = False, group: int | None = None
) -> Judgement:
    """What the pairs so far say; ``inconclusive`` asks for more, at the ``last`` look it is final.

    ``group`` as in :func:`bounds_of_median`. Raises ValueError for fewer than two pairs.
    """
    low, high = bounds_of_median(log_ratios, ALPHA / len(LOOKS), group=group)
    middle = float(np.median(log_ratios))
    ratio, below, above = (math.exp(x) for x in (middle, low, high))
    verdict = INCONCLUSIVE
    if below > 1 + rule.bound and ratio > 1 + rule.point:
        verdict = REGRESSED
    elif above < 1 / (1 + rule.point):
        verdict = IMPROVED
    elif above < 1 + max(rule.equal, rule.point):
        verdict = OK
    elif last and ratio <= 1 + rule.bound:
        verdict = OK  # nothing speaks for a slowdown; the bound is wide because the machine is
    return Judgement(verdict, ratio, below, above, len(log_ratios))


#: Normal quantiles: of a look's share of the error, and of 99 in 100.
_Z_LOOK = NormalDist().inv_cdf(1 - ALPHA / len(LOOKS))
_Z_SURE = NormalDist().inv_cdf(0.99)


def power(found: Judgement, rule: Rule, slowdown: float) -> float:
    """Chance that so many pairs at this noise would have called a ``slowdown`` (0.1) regressed."""
    return NormalDist().cdf(_margin(rule, slowdown) / _error(found) - _Z_LOOK)


def pairs_for(found: Judgement, rule: Rule, slowdown: float) -> int | None:
    """Pairs after which that chance is 99 in 100; None where the rule never sees it."""
    if _margin(rule, slowdown) <= 0:
        return None
    wanted = _margin(rule, slowdown) / (_Z_LOOK + _Z_SURE)
    return max(found.pairs, math.ceil(found.pairs * (_error(found) / wanted) ** 2))


def _margin(rule: Rule, slowdown: float) -> float:
    return math.log1p(slowdown) - math.log1p(rule.bound)


def _error(found: Judgement) -> float:
    """Standard error of the median log-ratio: its bounds are so many errors apart."""
    return max(1e-6, (math.log(found.high) - math.log(found.low)) / (2 * _Z_LOOK))
