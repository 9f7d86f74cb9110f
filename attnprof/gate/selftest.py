"""``check --self-test``: what this machine's noise does to the gate, as a report."""

from __future__ import annotations

from statistics import median

from attnprof.gate.fingerprint import fingerprint
from attnprof.gate.paired import Rule
from attnprof.gate.rehearsal import Trials, rehearse
from attnprof.gate.timing import Tell
from attnprof.gate.verdicts import INCONCLUSIVE, REGRESSED
from attnprof.measure.environment import describe_environment
from attnprof.record import Report, SelfTestRecord


def self_test_report(rule: Rule, budget_s: float, tell: Tell) -> Report:
    """Races of unchanged and of slowed code until the budget is spent; a record a slowdown."""
    found = rehearse(rule, budget_s, tell=tell)
    return Report(
        "check --self-test", [_record(rule, trials) for trials in found],
        {"rule": rule.name, "budget_s": budget_s, "fingerprint": fingerprint("cpu")},
        describe_environment("cpu"),
    )  # fmt: skip


def _record(rule: Rule, trials: Trials) -> SelfTestRecord:
    judged = [race.found for race in trials.races if race.found]
    return SelfTestRecord(
        slowdown=trials.slowdown,
        rule=rule.name,
        trials=len(judged),
        regressed=sum(item.verdict == REGRESSED for item in judged),
        inconclusive=sum(item.verdict == INCONCLUSIVE for item in judged),
        ratio=median(item.ratio for item in judged),
        noise=median(item.noise for item in judged),
        case_s=median(race.spent_s for race in trials.races),
    )
