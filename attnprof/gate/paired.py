"""Time two revisions in turns, in random order, to decide whether the second one is slower.

A pair is one short block of calls of each, next to each other in time, so that whatever slows the
machine slows both. What differs between processes (where memory lies, who runs on the other core)
does not average out within one. So each fresh process of each side gives a few pairs, and their
median is one observation. The bounds are order statistics of observations, valid for any
distribution (sign test). The chance of error is shared among the looks at the data.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median

from attnprof.gate.rules import IMPROVED, INCONCLUSIVE, OK, REGRESSED, Rule
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.measure.request import PointRequest
from attnprof.measure.statistics import order_rank
from attnprof.processes.progress import tell

#: Pairs in one process of each side; numbers of processes after which the race is judged, the
#: later ones only if the verdict is still open and there is time.
PAIRS = 5
LOOKS, MORE_LOOKS = (8, 12, 16), (24, 32, 48, 64)
#: Chance, in all looks together, that a bound lies on the wrong side.
ALPHA = 0.03
_LOOK_ALPHA = ALPHA / len(LOOKS + MORE_LOOKS)
#: Distance of the bounds from the median in standard errors, for normal noise, at any look.
_Z = 3.1
_Z_SURE = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True)
class Judgement:
    """The verdict on ``ratio``, current / baseline, with one-sided bounds after ``processes``."""

    verdict: str
    ratio: float
    low: float
    high: float
    processes: int

    @property
    def noise(self) -> float:
        """Return half the distance of the bounds, as a share."""
        return (self.high - self.low) / 2

    @property
    def error(self) -> float:
        """Return the standard error of the logarithm of ``ratio``."""
        return max(1e-6, (math.log(self.high) - math.log(self.low)) / (2 * _Z))


def bounds_of_median(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return one-sided bounds of the median, each wrong with chance ``alpha`` at most.

    They are the k-th smallest and largest, with the largest k that keeps ``alpha``; None where even
    the extremes do not (fewer than eight values for 0.004).
    """
    ordered, (k, _) = sorted(values), order_rank(len(values), alpha)
    return (ordered[k - 1], ordered[-k]) if k else None


def judge(log_ratios: Sequence[float], rule: Rule, *, last: bool = False) -> Judgement:
    """Return the verdict on the pairs so far; ``inconclusive``, except at the ``last`` look."""
    starts = range(0, len(log_ratios), PAIRS)  # one observation a process: the median of its pairs
    values = [median(log_ratios[start : start + PAIRS]) for start in starts]
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
    """Return the chance that as many processes at this noise show a ``slowdown`` (0.1)."""
    bounded = NormalDist().cdf(_margin(rule.bound, slowdown) / found.error - _Z)
    pointed = NormalDist().cdf(_margin(rule.point, slowdown) / found.error)
    return min(bounded, pointed)


def processes_for(found: Judgement, rule: Rule, slowdown: float) -> int | None:
    """Return how many processes make that chance 99 %; None if the rule never fails it."""
    needed = (
        (_margin(rule.bound, slowdown), _Z + _Z_SURE), (_margin(rule.point, slowdown), _Z_SURE)
    )  # fmt: skip
    if any(margin <= 0 for margin, _ in needed):
        return None
    most = max((found.error * errors / margin) ** 2 for margin, errors in needed)
    return max(found.processes, math.ceil(found.processes * most))


def _margin(threshold: float, slowdown: float) -> float:
    return math.log1p(slowdown) - math.log1p(threshold)


#: Seconds of one block.
BLOCK_S = 0.006


@dataclass
class Race:
    """The pairs timed so far; seconds are of one call, by processor and by wall clock."""

    rule: Rule
    log_ratios: list[float] = field(default_factory=list)
    wall_log_ratios: list[float] = field(default_factory=list)
    baseline_s: list[float] = field(default_factory=list)
    current_s: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    found: Judgement | None = None
    #: The slowdown that a first race saw, and that this second one was to confirm.
    alarm: Judgement | None = None

    def look(self, *, last: bool) -> bool:
        """Judge the pairs so far; return whether the race is over."""
        self.found = judge(self.log_ratios, self.rule, last=last)
        return last or self.found.verdict != INCONCLUSIVE


def race(
    baseline: RunningTree, current: RunningTree, request: PointRequest, rule: Rule, *,
    limit_s: float = 30.0, more: bool = True, seed: int = 0, title: str = "",
) -> Race:  # fmt: skip
    """Time both sides until the rule decides, the looks are used up, or ``limit_s`` is spent.

    A slowdown counts only if a second race, of other processes, confirms it. If that one stays
    undecided, all pairs of both decide. ``title`` is what progress calls the case.
    """
    title = title or request.title
    first = _race_once(baseline, current, request, rule, limit_s, more, seed, title)
    if first.found is None or first.found.verdict != REGRESSED:
        return first
    left_s = max(first.spent_s, limit_s - first.spent_s)
    second = _race_once(baseline, current, request, rule, left_s, more, seed + 1, title)
    second.alarm, second.spent_s = first.found, first.spent_s + second.spent_s
    if second.found and second.found.verdict == INCONCLUSIVE:
        for name in ("log_ratios", "wall_log_ratios", "baseline_s", "current_s"):
            getattr(second, name).extend(getattr(first, name))
        second.look(last=True)
    return second


def _race_once(
    baseline: RunningTree, current: RunningTree, request: PointRequest, rule: Rule, limit_s: float,
    more: bool, seed: int, title: str,
) -> Race:  # fmt: skip
    chance, start = random.Random(seed), time.monotonic()  # noqa: S311 - an order, no secret
    looks = LOOKS + MORE_LOOKS if more else LOOKS
    running, calls = Race(rule), 0
    while True:
        pairs = len(running.log_ratios)
        look = next((one for one in looks if one * PAIRS > pairs), looks[-1])
        tell(f"timing pairs of calls of {title}", pairs, look * PAIRS)
        calls = _one_process(baseline, current, request, running, calls, chance)
        running.spent_s = time.monotonic() - start
        processes = len(running.log_ratios) // PAIRS
        last = running.spent_s * (1 + 1 / processes) > limit_s or processes >= looks[-1]
        if (processes in looks or last) and running.look(last=last):
            return running


def block_calls(call_s: float) -> int:
    """Return how many calls of ``call_s`` seconds make a block."""
    return max(1, round(BLOCK_S / max(call_s, 1e-7)))


def _one_process(
    baseline: RunningTree, current: RunningTree, request: PointRequest, found: Race, calls: int,
    chance: random.Random,
) -> int:  # fmt: skip
    """Add the pairs of a fresh process of each side; return the calls in a block."""
    sides = (baseline, current)
    try:
        for side in sides:
            side.ask_open(request)
        seconds = [side.opened() for side in sides]
        calls = calls or block_calls(max(seconds))
        for _ in range(PAIRS):
            times = {side: side.block(calls) for side in chance.sample(sides, 2)}
            (old, old_wall), (new, new_wall) = times[baseline], times[current]
            if min(old, new, old_wall, new_wall) <= 0:
                raise TreeError(
                    "a block of calls took no time at all: the clock cannot tell them apart"
                )
            found.log_ratios.append(math.log(new / old))
            found.wall_log_ratios.append(math.log(new_wall / old_wall))
            found.baseline_s.append(old / calls)
            found.current_s.append(new / calls)
    finally:
        for side in sides:
            side.close()
    return calls
