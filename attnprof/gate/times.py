"""Time two revisions in turns, and make records of the times of cases (:func:`race_cases`).

Blocks of calls of both sides are timed in random order until a rule decides whether the second
one is slower. Without a second side, times are compared with a baseline's (:func:`stored_record`).
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import Any

from attnprof.gate import rules
from attnprof.gate.counts import Case
from attnprof.gate.rules import IMPROVED, INCONCLUSIVE, OK, REGRESSED, TIME, CheckOptions, Rule
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.measure.request import PointRequest
from attnprof.measure.statistics import order_rank
from attnprof.processes.progress import tell
from attnprof.record import CheckRecord
from attnprof.units import plural

#: Pairs in one process of each side; numbers of processes after which the race is judged, the
#: later ones only if the verdict is still open and there is time.
PAIRS = 5
LOOKS, MORE_LOOKS = (8, 12, 16), (24, 32, 48, 64)
#: How many times as long as the race that raised an alarm the one that confirms it may take, and
#: how many of its processes come from one server: forks share where their server's code lies,
#: which makes servers of the same code 1.5 % slower or faster (standard deviation) while they live.
CONFIRMING, SAME_SERVER = 4, 8
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


def power(judgement: Judgement, rule: Rule, slowdown: float) -> float:
    """Return the chance that as many processes at this noise show a ``slowdown`` (0.1)."""
    bounded = NormalDist().cdf(_margin(rule.bound, slowdown) / judgement.error - _Z)
    pointed = NormalDist().cdf(_margin(rule.point, slowdown) / judgement.error)
    return min(bounded, pointed)


def processes_for(judgement: Judgement, rule: Rule, slowdown: float) -> int | None:
    """Return how many processes make that chance 99 %; None if the rule never fails it."""
    needed = (
        (_margin(rule.bound, slowdown), _Z + _Z_SURE), (_margin(rule.point, slowdown), _Z_SURE)
    )  # fmt: skip
    if any(margin <= 0 for margin, _ in needed):
        return None
    most = max((judgement.error * errors / margin) ** 2 for margin, errors in needed)
    return max(judgement.processes, math.ceil(judgement.processes * most))


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
    judgement: Judgement | None = None
    #: The slowdown that a first race saw, and that this second one was to confirm.
    alarm: Judgement | None = None


def race(
    baseline: RunningTree, current: RunningTree, request: PointRequest, rule: Rule, *,
    limit_s: float = 30.0, more: bool = True, seed: int = 0, title: str = "",
) -> Race:  # fmt: skip
    """Time both sides until the rule decides, the looks are used up, or ``limit_s`` is spent.

    A slowdown counts only if a second race, of processes from other servers and up to CONFIRMING
    times as long, shows it by itself: pairs that raised an alarm were picked for it. ``title`` is
    what progress calls the case.
    """
    title = title or request.title
    first = _race_once(baseline, current, request, rule, limit_s, more, seed, title, anew=False)
    if first.judgement is None or first.judgement.verdict != REGRESSED:
        return first
    left_s = max(CONFIRMING * first.spent_s, limit_s - first.spent_s)
    second = _race_once(baseline, current, request, rule, left_s, True, seed + 1, title, anew=True)
    second.alarm, second.spent_s = first.judgement, first.spent_s + second.spent_s
    return second


def _race_once(
    baseline: RunningTree, current: RunningTree, request: PointRequest, rule: Rule, limit_s: float,
    more: bool, seed: int, title: str, *, anew: bool,
) -> Race:  # fmt: skip
    """Time both sides until the rule decides or the time is up; with ``more``, at all looks.

    Servers that are started ``anew``, for every SAME_SERVER processes, do not use up the time.
    """
    chance, start = random.Random(seed), time.monotonic()  # noqa: S311 - an order, no secret
    looks = LOOKS + MORE_LOOKS if more else LOOKS
    running, calls = Race(rule), 0
    while True:
        pairs = len(running.log_ratios)
        look = next((one for one in looks if one * PAIRS > pairs), looks[-1])
        tell(f"timing pairs of calls of {title}", pairs, look * PAIRS)
        if anew and pairs % (SAME_SERVER * PAIRS) == 0:
            start += _servers_started((baseline, current))
        calls = _one_process(baseline, current, request, running, calls, chance)
        running.spent_s = time.monotonic() - start
        processes = len(running.log_ratios) // PAIRS
        last = running.spent_s * (1 + 1 / processes) > limit_s or processes >= looks[-1]
        if processes in looks or last:
            running.judgement = judge(running.log_ratios, rule, last=last)
            if last or running.judgement.verdict != INCONCLUSIVE:
                return running


def _servers_started(sides: Sequence[RunningTree]) -> float:
    """Replace the servers of both sides at the same time; return how many seconds that took."""
    start = time.monotonic()
    for side in sides:
        side.restart()
    for side in sides:
        side.ready()
    return time.monotonic() - start


def block_calls(call_s: float) -> int:
    """Return how many calls of ``call_s`` seconds make a block."""
    return max(1, round(BLOCK_S / max(call_s, 1e-7)))


def _one_process(
    baseline: RunningTree, current: RunningTree, request: PointRequest, running: Race, calls: int,
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
            running.log_ratios.append(math.log(new / old))
            running.wall_log_ratios.append(math.log(new_wall / old_wall))
            running.baseline_s.append(old / calls)
            running.current_s.append(new / calls)
    finally:
        for side in sides:
            side.close()
    return calls


#: A slowdown whose chance to be noticed is reported, and the chance that is good enough.
SLOWDOWN, GOOD = 0.10, 0.95
#: Wall-clock time is mentioned if it differs from processor time by this share.
APART = 0.10
#: Processes whose times a baseline stores, and blocks of calls in each.
STORED_PROCESSES, STORED_BLOCKS = 8, 5
#: Least seconds for timing a case, also in a second attempt.
LEAST_S = 2.0


def race_cases(
    baseline: RunningTree, current: RunningTree, cases: Sequence[Case], options: CheckOptions
) -> tuple[dict[str, CheckRecord], list[str]]:
    """Return a record of each case's time, and sentences on which slowdowns would be noticed."""
    end = time.monotonic() + options.budget_s
    races: dict[str, Race] = {}
    records: dict[str, CheckRecord] = {}

    def attempt(case: Case, waiting: int) -> None:
        tell(f"timing {case.name}")
        try:
            raced = race(
                baseline, current, case.request, rules.rule_named(options.rule or case.rule),
                limit_s=max(LEAST_S, (end - time.monotonic()) / waiting),
                more=options.inconclusive != rules.PASS,
                title=f"{case.name}, {plural(waiting, 'case')} to go",
            )  # fmt: skip
        except TreeError as error:
            new = error.missing and error.side is baseline
            records[case.name] = time_record(case, rules.NEW if new else rules.ERROR, str(error))
            return
        races[case.name] = raced
        records[case.name] = raced_record(case, raced)

    for position, case in enumerate(cases):
        attempt(case, len(cases) - position)
    undecided = [case for case in cases if records[case.name].verdict == rules.INCONCLUSIVE]
    for position, case in enumerate(undecided if options.inconclusive == rules.RETRY else []):
        if end - time.monotonic() > LEAST_S:
            attempt(case, len(undecided) - position)
    return records, powers([(case, races[case.name]) for case in cases if case.name in races])


def time_record(case: Case, verdict: str, why: str = "", **values: Any) -> CheckRecord:
    """Return the record of a case's time, or of why it could not be measured."""
    return CheckRecord(case=case.name, metric=TIME, unit="s", verdict=verdict, why=why, **values)


def raced_record(case: Case, raced: Race) -> CheckRecord:
    """Return a race as a record; ``why`` says what else speaks for or against the verdict.

    Processor time is judged. Code that waits shows by the wall clock alone, which is noisier: there
    a slowdown by the lenient rule counts, and only where processor time does not explain it.
    """
    judgement = raced.judgement
    assert judgement is not None
    by_wall = judge(raced.wall_log_ratios, rules.RULES["lenient"], last=True)
    verdict, remarks = judgement.verdict, []
    if verdict == rules.INCONCLUSIVE:
        count = judgement.processes
        remarks.append(f"undecided after {count} processes of each side: too much noise")
    if raced.alarm and verdict != rules.REGRESSED:
        saw = f"{raced.alarm.ratio:.3f}×"
        remarks.append(f"a first race saw {saw}, a second one did not confirm it")
    if by_wall.ratio / judgement.ratio > 1 + APART:
        waits = by_wall.verdict == rules.REGRESSED and verdict != rules.REGRESSED
        verdict = rules.REGRESSED if waits else verdict
        remarks.append(
            f"by the wall clock {by_wall.ratio:.2f}× ({by_wall.low:.2f} to {by_wall.high:.2f}): "
            + ("it waits more than before (sleep, input, locks, other threads)"
               if waits else "it was interrupted, or waits; processor time is judged")
        )  # fmt: skip
    return time_record(
        case, verdict, "; ".join(remarks), baseline=median(raced.baseline_s),
        current=median(raced.current_s), ratio=judgement.ratio, ci_low=judgement.low,
        ci_high=judgement.high, pairs=len(raced.log_ratios), noise=judgement.noise,
        wall_ratio=by_wall.ratio, log_ratios=[round(x, 5) for x in raced.log_ratios],
    )  # fmt: skip


def powers(raced: Sequence[tuple[Case, Race]]) -> list[str]:
    """Return the chance to notice a slowdown in all cases, then the cases where it is low."""
    if not raced:
        return []
    least = min(power(one.judgement, one.rule, SLOWDOWN) for _, one in raced if one.judgement)
    slower = f"a slowdown of {_percent(SLOWDOWN)}"
    if low := [text for case, one in raced for text in power_text(case, one)]:
        timed = f"{len(low)} of {plural(len(raced), 'timed case')}"
        return [f"in {timed} the noise may hide {slower}: give more --budget", *low]
    return [f"{slower} would have been seen with a probability of at least {_percent(least)}"]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def power_text(case: Case, raced: Race) -> list[str]:
    """Return the chance to notice a slowdown at a case's noise, and the time 99 % would take."""
    judgement, rule = raced.judgement, raced.rule
    assert judgement is not None
    chance = power(judgement, rule, SLOWDOWN)
    if chance >= GOOD:
        return []
    start = (
        f"{case.name}: at this noise a slowdown of {_percent(SLOWDOWN)} is seen with a probability "
        f"of {_percent(chance)}"
    )
    needed = processes_for(judgement, rule, SLOWDOWN)
    if needed is None:
        return [f"{start}: rule {rule.name} does not look for it"]
    more = raced.spent_s * (needed / judgement.processes - 1)
    return [f"{start}; give {more:.0f} s more for 99 %"]


def time_alone(side: RunningTree, case: Case) -> list[list[float]]:
    """Return processor seconds of a call on one side, a list a process; or raise TreeError."""
    blocks: list[list[float]] = []
    calls = 0
    for _ in range(STORED_PROCESSES):
        try:
            side.ask_open(case.request)
            call_s = side.opened()
            calls = calls or block_calls(call_s)
            blocks.append([side.block(calls)[0] / calls for _ in range(STORED_BLOCKS)])
        finally:
            side.close()
    return blocks


def stored_record(
    case: Case, stored: Sequence[Sequence[float]], side: RunningTree, options: CheckOptions,
    foreign: str | None = None,
) -> CheckRecord:  # fmt: skip
    """Return the record of a case's times now against stored ones.

    A machine's speed drifts, so stored times fail a check only with ``--stored-times fail``. If
    ``foreign`` names a difference of machines, nothing is timed.
    """
    before = [median(process) for process in stored]
    if foreign:
        return time_record(case, rules.NOT_COMPARABLE, foreign, baseline=median(before))
    try:
        after = [median(process) for process in time_alone(side, case)]
    except TreeError as error:
        return time_record(case, rules.ERROR, str(error))
    (low_0, high_0), (low_1, high_1) = (
        bounds_of_median(times, ALPHA) or (min(times), max(times)) for times in (before, after)
    )
    ratio, low, high = median(after) / median(before), low_1 / high_0, high_1 / low_0
    rule = rules.rule_named(options.rule or case.rule)
    fails = options.stored_times == rules.FAIL
    verdict, why = rules.OK, ""
    if low > 1 + rule.bound and ratio > 1 + rule.point:
        verdict = rules.INCONCLUSIVE
        why = (
            "slower than what is stored, but the speed of a machine drifts from job to job: "
            "check --against a revision to be sure, or --stored-times fail"
        )
        if fails:
            verdict, why = rules.REGRESSED, "slower than what is stored"
    elif fails and high < 1 / (1 + rule.point):
        verdict = rules.IMPROVED
    return time_record(
        case, verdict, why, baseline=median(before), current=median(after), ratio=ratio,
        ci_low=low, ci_high=high, noise=(high - low) / 2,
    )  # fmt: skip
