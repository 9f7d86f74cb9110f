"""Run a whole check: count every case on both sides, then time them, and report all verdicts.

:func:`check_against` compares two trees, :func:`check_baseline` one with a file, which
:func:`record_baseline` makes. :func:`self_test_report` checks unchanged code, and code slower by a
known share, to measure false alarms and detection on this machine.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from attnprof.errors import RequestError
from attnprof.gate import rules
from attnprof.gate.baselines import Baseline, baseline_record, baseline_report
from attnprof.gate.changes import causes
from attnprof.gate.counts import Case, Counted
from attnprof.gate.exact import compare
from attnprof.gate.rules import CheckOptions, Rule
from attnprof.gate.times import Race, race, race_cases, stored_record, time_alone, time_record
from attnprof.gate.trees import RunningTree, TreeError, why_incomparable
from attnprof.measure.environment import (
    dated_environment,
    describe_environment,
    differs,
    fingerprint,
    noted,
)
from attnprof.measure.request import PointRequest
from attnprof.processes.folders import temporary_folder
from attnprof.processes.progress import tell
from attnprof.record import CheckRecord, Report, SelfTestRecord
from attnprof.trace.request.lookup import UNTRIED
from attnprof.units import plural


def check_against(
    cases: Sequence[Case], base: RunningTree, head: RunningTree, options: CheckOptions,
    stored: Baseline | None = None,
) -> Report:  # fmt: skip
    """Compare two trees in one job: count both (or read ``stored`` counts), then time both."""
    counted = _count(cases, [head] if stored else [base, head], options, stored)
    before, after, reasons = dict[str, Counted](), dict[str, Counted](), dict[str, str]()
    for name, (*older, new) in counted.items():
        old = older[0] if older else Counted(missing=True)
        if why := why_incomparable(new, old, head.path, base.path, base.checkout):
            old, reasons[name] = Counted(error=why), why
        before[name], after[name] = old, new
    timed = [case for case in cases if case.timed and options.timed]
    racing = [
        case for case in timed
        if case.name not in reasons and all(side.runs for side in counted[case.name])
    ]  # fmt: skip
    start = time.monotonic()  # the budget is for times
    times, powers = race_cases(base, head, racing, options)
    if stored:
        refused = [case for case in timed if case.name in reasons]
        times |= {case.name: time_record(case, rules.ERROR, reasons[case.name]) for case in refused}
    sides = stored.counted if stored else before, after
    return _report(
        cases, sides, times, options, start, mode="against", base=base.label, head=head.label,
        power=powers, notes=[],
    )  # fmt: skip


def check_baseline(
    cases: Sequence[Case], stored: Baseline, head: RunningTree, options: CheckOptions,
    name: str = "baseline",
) -> Report:  # fmt: skip
    """Compare with a stored baseline, ``name`` in messages: counts decide, times advise."""
    counted = {key: counts[0] for key, counts in _count(cases, [head], options, stored).items()}
    machine = fingerprint(cases[0].request.device)
    foreign = differs(machine, stored.fingerprint)
    times: dict[str, CheckRecord] = {}
    start = time.monotonic()
    for done, case in enumerate(cases):
        before = stored.times_s.get(case.name)
        if not (before and options.timed and case.timed and counted[case.name].runs):
            continue
        if not foreign:
            tell(f"timing {case.name}", done, len(cases))
        times[case.name] = stored_record(case, before, head, options, foreign)
    note = noted(machine, stored.fingerprint)
    return _report(
        cases, (stored.counted, counted), times, options, start, mode="baseline", base=name,
        head=head.label, power=[], notes=[note] if note else [], not_comparable=foreign,
    )  # fmt: skip


def record_baseline(cases: Sequence[Case], head: RunningTree, options: CheckOptions) -> Report:
    """Return this tree's counts and times, for a later comparison."""
    records = []
    counted = _count(cases, [head], options)
    for done, case in enumerate(cases):
        counts, times = counted[case.name][0], []
        if case.timed and options.timed and counts.runs:
            tell(f"timing {case.name}", done, len(cases))
            try:
                times = time_alone(head, case)
            except TreeError as error:
                counts = replace(counts, error=str(error))
        records.append(baseline_record(case, counts, times))
    failed = [record.case for record in records if record.error]
    as_guessed = [name for name, (counts,) in counted.items() if counts.as_guessed]
    device = cases[0].request.device
    return baseline_report(
        records, fingerprint(device), dated_environment(device), head=head.label, failed=failed,
        as_guessed=as_guessed,
    )  # fmt: skip


def _count(
    cases: Sequence[Case], sides: Sequence[RunningTree], options: CheckOptions,
    stored: Baseline | None = None,
) -> dict[str, list[Counted]]:  # fmt: skip
    """Return the counts of every side by case. RequestError for no case, or one listed twice.

    If a module fails with the first guess of its inputs, other guesses are tried. It is a failure
    if the first side, or the baseline ``stored`` by this version, ran with the first guess.
    """
    twice = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    if twice:
        raise RequestError(f"the suite has {', '.join(twice)} twice: leave one out")
    if not cases:
        raise RequestError("the suite has no cases; write a [[case]] table with attention and seq")
    same_version = stored is not None and not noted(fingerprint("cpu"), stored.fingerprint)
    before = stored.counted if stored is not None and same_version else {}
    counts: dict[str, list[Counted]] = {}
    for done, case in enumerate(cases):
        position = done, len(cases)
        counted = _counts_of_case(case, sides, options, position, alone=True)
        *_, last = counted
        failed = [side.error for side in counted if UNTRIED in (side.error or "")]
        runs = "the baseline" if before.get(case.name, Counted()).as_guessed else ""
        runs = sides[0].label if counted[0].runs else runs
        if failed and not runs:
            tell(f"trying other inputs for {case.name}: {failed[0]}", *position, at_once=True)
            counted = _counts_of_case(case, sides, options, position, alone=False)
        elif failed:
            why = f"{last.error}; {runs} runs with these inputs"
            counted = [*counted[:-1], replace(last, error=why)]
        else:
            counted = [replace(side, as_guessed=side.runs) for side in counted]
        counts[case.name] = counted
    return counts


def _counts_of_case(
    case: Case, sides: Sequence[RunningTree], options: CheckOptions, progress: tuple[int, int], *,
    alone: bool,
) -> list[Counted]:  # fmt: skip
    """Return one case's counts, a side each, with the first guess of inputs ``alone`` or any."""
    formulas = case.formulas and options.formulas
    answers = [side.ask_count(case.request, formulas=formulas, alone=alone) for side in sides]
    counts = []
    for side, answer in zip(sides, answers, strict=True):
        tell(f"counting {case.name} in {side.label}", *progress)
        counts.append(answer())
    return counts


def _report(
    cases: Sequence[Case], sides: tuple[Mapping[str, Counted], Mapping[str, Counted]],
    times: Mapping[str, CheckRecord], options: CheckOptions, start: float, **summary: Any,
) -> Report:  # fmt: skip
    """Return the report: each case's exact records of ``sides`` (before, after), then its time.

    ``start`` is when the first time was taken; ``summary`` has fields of this kind of check alone.
    """
    spent_s, (before, after) = time.monotonic() - start, sides
    records = []
    for name in dict.fromkeys([*after, *before]):
        records += compare(name, before.get(name), after.get(name))
        records += [times[name]] if name in times else []
    verdicts = [record.verdict for record in records]
    counts, undecided_fails = Counter(verdicts), options.inconclusive == rules.FAIL
    noises = [record.noise for record in times.values() if record.noise is not None]
    device = cases[0].request.device
    return Report(
        "check", records,
        {
            **summary, "spent_s": spent_s, "rule": options.rule or "each case's own",
            "inconclusive": options.inconclusive, "verdict": rules.worst(verdicts),
            "counts": {verdict: counts[verdict] for verdict in rules.VERDICTS if counts[verdict]},
            "causes": [*map(asdict, causes(records, *sides, summary.get("not_comparable")))],
            "exit_code": rules.exit_code(verdicts, inconclusive_fails=undecided_fails),
            "fingerprint": fingerprint(device), "not_comparable": summary.get("not_comparable"),
            "budget_s": options.budget_s, "noise": median(noises) if noises else None,
        },
        dated_environment(device),
    )  # fmt: skip


#: Equal pieces of work in a call: a slowdown of 5 % adds 2 to the 40.
PIECES = 40
FILE = "rehearsed.py"
_SOURCE = '''"""The same piece of work {count} times: nothing else takes time worth telling."""

import torch
from torch import nn

COUNT = {count}


class Repeated(nn.Module):
    def forward(self, q, k, v):
        total = torch.zeros_like(q)
        for _ in range(COUNT):
            total = total + self.piece(q, k, v)
        return total


class Softmax(Repeated):
    def piece(self, q, k, v):
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v


class Features(Repeated):
    def piece(self, q, k, v):
        return (nn.functional.elu(q) + 1) @ (k.softmax(-2).transpose(-1, -2) @ v)


class Projected(Repeated):
    def __init__(self, head_dim):
        super().__init__()
        self.down = nn.Linear(head_dim, 2 * head_dim, bias=False)
        self.up = nn.Linear(2 * head_dim, head_dim, bias=False)

    def piece(self, q, k, v):
        return self.up(torch.relu(self.down(q * k))) * v
'''


#: Requests for the file's modules; a call takes about six milliseconds.
REHEARSED = tuple(
    PointRequest(
        f"{FILE}:{module}", n, h, d, phase=phase, threads=1, params={
            "args": ["head_dim=d"] if module == "Projected" else [],
            "inputs": [f"{name}: B, h, N, d" for name in "qkv"],
        },
    )
    for module, n, h, d, phase in (
        ("Softmax", 64, 4, 64, "forward"), ("Softmax", 128, 1, 64, "forward"),
        ("Softmax", 48, 2, 32, "train"), ("Features", 64, 4, 64, "forward"),
        ("Projected", 64, 4, 64, "forward"),
    )
)  # fmt: skip


def write_revision(folder: Path, slowdown: float) -> None:
    """Write the modules into a folder, slower by this share (a multiple of 1/40)."""
    text = _SOURCE.format(count=round((1 + slowdown) * PIECES))
    (folder / FILE).write_text(text, encoding="utf-8")


#: Slowdowns that are tried, as shares of a call's time.
SLOWDOWNS = (0.0, 0.05, 0.10, 0.20)


def self_test_report(rule: Rule, budget_s: float) -> Report:
    """Race unchanged and slowed code until the budget is spent; a record a slowdown."""
    by_slowdown: dict[float, list[Race]] = {slowdown: [] for slowdown in SLOWDOWNS}
    seeds, end = count(), time.monotonic() + budget_s
    while time.monotonic() <= end or not by_slowdown[0.0]:
        with ExitStack() as stack:
            sides = []
            for slowdown in (0.0, *SLOWDOWNS):
                folder = stack.enter_context(temporary_folder())
                write_revision(folder, slowdown)
                side = RunningTree(folder, f"{slowdown:.0%} slower")
                sides.append(stack.enter_context(side))
            for request in REHEARSED:
                for races, head in zip(by_slowdown.values(), sides[1:], strict=True):
                    races.append(race(sides[0], head, request, rule, seed=next(seeds)))
                rounds = plural(len(by_slowdown[0.0]), "round")
                tell(f"racing unchanged and slowed code, {rounds}", left_s=end - time.monotonic())
                if time.monotonic() > end:
                    break
    records = []
    for slowdown, races in by_slowdown.items():
        judged = [race.judgement for race in races if race.judgement]
        records.append(SelfTestRecord(
            slowdown=slowdown, rule=rule.name, trials=len(judged),
            regressed=sum(item.verdict == rules.REGRESSED for item in judged),
            inconclusive=sum(item.verdict == rules.INCONCLUSIVE for item in judged),
            ratio=median(item.ratio for item in judged),
            noise=median(item.noise for item in judged),
            case_s=median(race.spent_s for race in races),
        ))  # fmt: skip
    summary = {"rule": rule.name, "budget_s": budget_s, "fingerprint": fingerprint("cpu")}
    return Report("check --self-test", records, summary, describe_environment("cpu"))
