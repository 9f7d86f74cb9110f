"""Run a whole check: count every case on both sides, then time them, and report all verdicts.

Differences are grouped by cause: a line of code, or else an operation or a metric.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from attnprof.errors import RequestError
from attnprof.gate import rules
from attnprof.gate.baselines import Baseline, baseline_record, baseline_report
from attnprof.gate.changes import Change, changes
from attnprof.gate.counts import Case, Counted
from attnprof.gate.exact import SEEN, compare
from attnprof.gate.rules import (
    ERROR,
    FAIL,
    FORMULA,
    TIME,
    TOGETHER,
    VERDICTS,
    WHOLE,
    Cause,
    CheckOptions,
    exit_code,
    worst,
)
from attnprof.gate.times import race_cases, stored_record, time_alone, time_record
from attnprof.gate.trees import RunningTree, TreeError, why_incomparable
from attnprof.measure.environment import dated_environment, differs, fingerprint, noted
from attnprof.processes.progress import tell
from attnprof.record import CheckRecord, Report
from attnprof.trace.request.lookup import UNTRIED

#: Metrics that are sums over operations: what each line adds is known.
_SUMS = {*SEEN, "flops"} - {"peak_bytes", "parameters"}
Lines = dict[str, list[Change]]


def causes(
    records: Sequence[CheckRecord], before: Mapping[str, Counted], after: Mapping[str, Counted],
    common: str | None = None,
) -> list[Cause]:  # fmt: skip
    """Return the causes of all differences in ``records``, worst first.

    ``before`` and ``after`` map each case to what the two sides counted. Times with the reason
    ``common`` to the whole run are no cause.
    """
    lines: dict[str, Lines] = {}
    groups: dict[tuple[str, ...], tuple[dict[str, None], list[CheckRecord]]] = {}
    for record in (record for record in records if rules.is_worth_showing(record, common)):
        case, changed_lines = record.case, Lines()
        if record.metric not in (TIME, WHOLE) and case in before and case in after:
            if case not in lines:
                lines[case] = _changes_by_line(changes(before[case], after[case]))
            changed_lines = lines[case]
        for line, part in _records_by_line(record, changed_lines):
            everything = [change for some in changed_lines.values() for change in some]
            names = _names(everything if line == TOGETHER else changed_lines.get(line, ()))
            operations, parts = groups.setdefault(_key(part, _path(line, case), names), ({}, []))
            operations |= dict.fromkeys(names)
            parts.append(part)
    if len({place for place, *_ in groups} - {""}) > 1 and (TOGETHER,) in groups:
        groups[TOGETHER,][0].clear()  # each line tells its own operations
    return sorted((_cause(place, *cause) for (place, *_), cause in groups.items()), key=_badness)


def _key(part: CheckRecord, place: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return what records of one cause share: a line, else operations, else verdict and reason."""
    if place or names:
        return (place,) if place else ("", *names)
    numbers = part.metric == TIME or part.verdict in (rules.REGRESSED, rules.IMPROVED)
    return ("", part.verdict, part.metric if numbers else part.why)


def _cause(place: str, operations: Mapping[str, None], parts: Sequence[CheckRecord]) -> Cause:
    metrics: dict[str, list[float | None]] = {}
    for part in parts:
        if part.metric != WHOLE and part.verdict != rules.OK:
            known = [x for x in (part.ratio, *metrics.get(part.metric, ())) if x is not None]
            metrics[part.metric] = [min(known, default=None), max(known, default=None)]
    named = operations or place == TOGETHER
    why = [part.why for part in parts if part.metric.startswith(FORMULA) or not named]
    if len(parts) == 1:
        why = [rules.time_text(parts[0]) if parts[0].metric == TIME else "", *why]
    return Cause(
        rules.worst(part.verdict for part in parts), place, [*operations], metrics,
        [*dict.fromkeys(filter(None, why))], [*dict.fromkeys(part.case for part in parts)],
    )  # fmt: skip


def _badness(cause: Cause) -> tuple[int, bool, float]:
    most = max((high for _, high in cause.metrics.values() if high is not None), default=0.0)
    return rules.WORST_FIRST.index(cause.verdict), cause.place == TOGETHER, -most


def _changes_by_line(changes: Sequence[Change]) -> Lines:
    """Return changes by line.

    A cast back, or an operation in another format, counts at the line of the upcast before it.
    """
    lines = Lines()
    wide: str | None = None
    for change in changes:
        opens = change.upcast and (wide is None or (change.casts and change.part == "forward"))
        wide = change.line if opens else wide
        follows = wide is not None and (change.casts or change.format)
        lines.setdefault(str(wide) if follows else change.line, []).append(change)
    # views that were written down without their lines accompany what is there
    if len(lines) > 1 and not any(change.is_work for change in lines.get("", ())):
        lines.pop("", None)
    return lines


def _records_by_line(record: CheckRecord, lines: Lines) -> Iterator[tuple[str, CheckRecord]]:
    """Yield a record with the line that caused it, or one record a line with that line's share."""
    if not lines:
        yield record.place, record
        return
    before, now = record.baseline, record.current
    amount = now - before if isinstance(before, int) and isinstance(now, int) else 0
    name = record.metric.removeprefix(FORMULA)
    see = SEEN.get(name, attrgetter("flops"))
    amounts = {line: n for line, some in lines.items() if (n := sum(map(see, some)))}
    if len(amounts) > 1 and amount and before and record.metric in _SUMS:
        for line, n in amounts.items():
            verdict = rules.REGRESSED if n > 0 else rules.IMPROVED
            yield line, replace(record, ratio=1 + n / float(before), verdict=verdict)
        return
    along = [line for line, n in amounts.items() if n * amount > 0] or [*amounts] or [*lines]
    if name not in SEEN and name != "flops":  # a kind of FLOPs: of the line that has most
        along = [max(along, key=lambda line: abs(amounts.get(line, 0)))]
    yield along[0] if len(along) == 1 else TOGETHER, record


def _names(some: Sequence[Change]) -> list[str]:
    """Return names of operations: without views and backward ones unless there is nothing else."""
    work = [change for change in some if change.is_work] or some
    ahead = [change for change in work if change.part != "backward"]
    return [change.name for change in ahead] or [f"{change.name} (backward)" for change in work]


def _path(line: str, case: str) -> str:
    """Return a line as ``src/my.py:15``: its file with the folders that the case's name has."""
    file, _, number = line.rpartition(":")
    named, there, _ = case.partition(".py:")
    path = Path(f"{named}.py")
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}:{number}" if there and file == path.name else line


def check_against(
    cases: Sequence[Case], base: RunningTree, head: RunningTree, options: CheckOptions,
    stored: Baseline | None = None,
) -> Report:  # fmt: skip
    """Compare two trees in one job: count both (or read ``stored`` counts), then time both."""
    counted = _count(cases, [head] if stored else [base, head], options, stored)
    apart = {
        name: why
        for name, (*old, new) in counted.items()
        if (why := why_incomparable(
            new, old[0] if old else Counted(missing=True), head.path, base.path, base.checkout
        ))
    }  # fmt: skip
    old = {
        name: Counted(error=apart[name]) if name in apart else pair[0]
        for name, pair in counted.items()
    }
    sides = stored.counted if stored else old, {name: pair[-1] for name, pair in counted.items()}
    timed = [case for case in cases if case.timed and options.timed]
    racing = [
        case for case in timed
        if case.name not in apart and all(pair.runs for pair in counted[case.name])
    ]  # fmt: skip
    start = time.monotonic()  # the budget is for times
    times, powers = race_cases(base, head, racing, options)
    if stored:
        refused = [case for case in timed if case.name in apart]
        times |= {case.name: time_record(case, ERROR, apart[case.name]) for case in refused}
    return _report(
        cases, sides, times, options, start, mode="against", base=base.label, head=head.label,
        power=powers, notes=[],
    )  # fmt: skip


def check_baseline(
    cases: Sequence[Case], stored: Baseline, head: RunningTree, options: CheckOptions,
    name: str = "baseline",
) -> Report:  # fmt: skip
    """Compare this tree with a stored baseline: counts decide, times advise.

    ``name`` is what messages call the baseline.
    """
    counted = {key: counts[0] for key, counts in _count(cases, [head], options, stored).items()}
    here = fingerprint(cases[0].request.device)
    foreign = differs(here, stored.fingerprint)
    times: dict[str, CheckRecord] = {}
    start = time.monotonic()
    for done, case in enumerate(cases):
        before = stored.times_s.get(case.name)
        if not (before and options.timed and case.timed and counted[case.name].runs):
            continue
        if not foreign:
            tell(f"timing {case.name}", done, len(cases))
        times[case.name] = stored_record(case, before, head, options, foreign)
    note = noted(here, stored.fingerprint)
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

    If a module fails with the inputs that are guessed first, other guesses are tried, unless the
    first side or the baseline ``stored`` by this version ran with the first ones: then it is a
    failure.
    """
    twice = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    if twice:
        raise RequestError(f"the suite has {', '.join(twice)} twice: leave one out")
    if not cases:
        raise RequestError("the suite has no cases; write a [[case]] table with attention and seq")
    same = stored is not None and not noted(fingerprint("cpu"), stored.fingerprint)
    before = stored.counted if stored is not None and same else {}
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
            said = f"{last.error}; {runs} runs with these inputs"
            counted = [*counted[:-1], replace(last, error=said)]
        else:
            counted = [replace(side, as_guessed=side.runs) for side in counted]
        counts[case.name] = counted
    return counts


def _counts_of_case(
    case: Case, sides: Sequence[RunningTree], options: CheckOptions, progress: tuple[int, int], *,
    alone: bool,
) -> list[Counted]:  # fmt: skip
    """Return one case's counts, a side each, with the first guess of inputs ``alone`` or any."""
    answers: list[Callable[[], Counted]] = []
    formulas = case.formulas and options.formulas
    for side in sides:
        try:
            side.ask_count(case.request, formulas=formulas, alone=alone)
            answers.append(side.counted)
        except TreeError as error:
            answers.append(partial(Counted, error=str(error)))
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
    counts = Counter(verdicts)
    noises = [record.noise for record in times.values() if record.noise is not None]
    device = cases[0].request.device
    return Report(
        "check", records,
        {
            **summary, "spent_s": spent_s, "rule": options.rule or "each case's own",
            "inconclusive": options.inconclusive, "verdict": worst(verdicts),
            "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
            "causes": [*map(asdict, causes(records, *sides, summary.get("not_comparable")))],
            "exit_code": exit_code(verdicts, inconclusive_fails=options.inconclusive == FAIL),
            "fingerprint": fingerprint(device), "not_comparable": summary.get("not_comparable"),
            "budget_s": options.budget_s, "noise": median(noises) if noises else None,
        },
        dated_environment(device),
    )  # fmt: skip
