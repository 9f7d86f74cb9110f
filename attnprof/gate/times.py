"""Turn times of cases into records: raced against another revision, or against stored times."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from attnprof.gate import paired, rules
from attnprof.gate.counts import Case
from attnprof.gate.paired import Race
from attnprof.gate.rules import TIME, CheckOptions
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.processes import progress
from attnprof.record import CheckRecord
from attnprof.units import plural

Tell = Callable[[str], None]
#: A slowdown whose chance to be noticed is reported, and the chance that is good enough.
SLOWDOWN, GOOD = 0.10, 0.95
#: Wall-clock time is mentioned if it differs from processor time by this share.
APART = 0.10
#: Processes whose times a baseline stores, and blocks of calls in each.
STORED_PROCESSES, STORED_BLOCKS = 8, 5
#: Least seconds for timing a case, also in a second attempt.
LEAST_S = 2.0


def race_cases(
    baseline: RunningTree, current: RunningTree, cases: Sequence[Case], options: CheckOptions,
    tell: Tell = progress.tell,
) -> tuple[dict[str, CheckRecord], list[str]]:  # fmt: skip
    """Return a record of each case's time, and sentences on which slowdowns would be noticed."""
    end = time.monotonic() + options.budget_s
    races: dict[str, Race] = {}
    records: dict[str, CheckRecord] = {}

    def attempt(case: Case, waiting: int) -> None:
        limit = max(LEAST_S, (end - time.monotonic()) / waiting)
        title = f"{case.name}, {plural(waiting, 'case')} to go"
        tell(f"timing {case.name}")
        try:
            raced = paired.race(
                baseline, current, case.request, rules.rule_named(options.rule or case.rule),
                limit_s=limit, more=options.inconclusive != rules.PASS,
                title=title,
            )  # fmt: skip
        except TreeError as error:
            new = error.missing and error.side is baseline
            records[case.name] = time_record(case, rules.NEW if new else rules.ERROR, str(error))
            return
        races[case.name] = raced
        records[case.name] = raced_record(case, raced)

    for position, case in enumerate(cases):
        attempt(case, len(cases) - position)
    again = [case for case in cases if records[case.name].verdict == rules.INCONCLUSIVE]
    for position, case in enumerate(again if options.inconclusive == rules.RETRY else []):
        if end - time.monotonic() > LEAST_S:
            attempt(case, len(again) - position)
    return records, powers([(case, races[case.name]) for case in cases if case.name in races])


def time_record(case: Case, verdict: str, why: str = "", **values: Any) -> CheckRecord:
    """Return the record of a case's time, or of why it could not be measured."""
    return CheckRecord(case=case.name, metric=TIME, unit="s", verdict=verdict, why=why, **values)


def raced_record(case: Case, raced: Race) -> CheckRecord:
    """Return a race as a record; ``why`` says what the numbers do not.

    Processor time is judged. Code that waits shows by the wall clock alone, which is noisier: there
    a slowdown by the lenient rule counts, and only where processor time does not explain it.
    """
    judgement = raced.found
    assert judgement is not None
    by_wall = paired.judge(raced.wall_log_ratios, rules.RULES["lenient"], last=True)
    verdict, said = judgement.verdict, []
    if verdict == rules.INCONCLUSIVE:
        said.append(f"undecided after {judgement.processes} processes of each side: too much noise")
    if raced.alarm and verdict != rules.REGRESSED:
        said.append(f"a first race saw {raced.alarm.ratio:.3f}×, a second one did not confirm it")
    if by_wall.ratio / judgement.ratio > 1 + APART:
        waits = by_wall.verdict == rules.REGRESSED and verdict != rules.REGRESSED
        verdict = rules.REGRESSED if waits else verdict
        said.append(
            f"by the wall clock {by_wall.ratio:.2f}× ({by_wall.low:.2f} to {by_wall.high:.2f}): "
            + ("it waits more than before (sleep, input, locks, other threads)"
               if waits else "it was interrupted, or waits; processor time is judged")
        )  # fmt: skip
    return time_record(
        case, verdict, "; ".join(said), baseline=median(raced.baseline_s),
        current=median(raced.current_s), ratio=judgement.ratio, ci_low=judgement.low,
        ci_high=judgement.high, pairs=len(raced.log_ratios), noise=judgement.noise,
        wall_ratio=by_wall.ratio, log_ratios=[round(x, 5) for x in raced.log_ratios],
    )  # fmt: skip


def powers(raced: Sequence[tuple[Case, Race]]) -> list[str]:
    """Return the chance to notice a slowdown in all cases, then the cases where it is low."""
    if not raced:
        return []
    least = min(paired.power(one.found, one.rule, SLOWDOWN) for _, one in raced if one.found)
    slower = f"a slowdown of {_percent(SLOWDOWN)}"
    if low := [text for case, one in raced for text in power_text(case, one)]:
        timed = f"{len(low)} of {plural(len(raced), 'timed case')}"
        return [f"in {timed} the noise may hide {slower}: give more --budget", *low]
    return [f"{slower} would have been seen with a probability of at least {_percent(least)}"]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def power_text(case: Case, raced: Race) -> list[str]:
    """Return the chance to notice a slowdown at a case's noise, and the time 99 % would take."""
    judgement, rule = raced.found, raced.rule
    assert judgement is not None
    chance = paired.power(judgement, rule, SLOWDOWN)
    if chance >= GOOD:
        return []
    seen = f"a slowdown of {_percent(SLOWDOWN)} is seen with a probability of {_percent(chance)}"
    start = f"{case.name}: at this noise {seen}"
    needed = paired.processes_for(judgement, rule, SLOWDOWN)
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
            calls = calls or paired.block_calls(call_s)
            blocks.append([side.block(calls)[0] / calls for _ in range(STORED_BLOCKS)])
        finally:
            side.close()
    return blocks


def stored_record(
    case: Case, stored: Sequence[Sequence[float]], side: RunningTree, options: CheckOptions,
    foreign: str | None = None,
) -> CheckRecord:  # fmt: skip
    """Return the record of times now against stored times.

    They drift, so they fail a check only with that option. If ``foreign`` names a difference of
    machines, nothing is timed.
    """
    before = [median(process) for process in stored]
    if foreign:
        return time_record(case, rules.NOT_COMPARABLE, foreign, baseline=median(before))
    try:
        after = [median(process) for process in time_alone(side, case)]
    except TreeError as error:
        return time_record(case, rules.ERROR, str(error))
    (low_0, high_0), (low_1, high_1) = (
        paired.bounds_of_median(times, paired.ALPHA) or (min(times), max(times))
        for times in (before, after)
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
