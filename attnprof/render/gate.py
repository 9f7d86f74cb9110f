"""A report of ``check`` by case, worst first; as JUnit XML and as annotations of GitHub Actions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.gate import rules
from attnprof.gate.rules import TIME, sentence
from attnprof.record import CheckRecord, Report
from attnprof.record.escapes import visible
from attnprof.units import format_value

#: Sentences of a kind that are told; a suite may have one for every case.
MOST = 6
#: GitHub shows ten annotations of a level in a step; more are lost.
MOST_ANNOTATIONS = 10
LEVELS = {
    **dict.fromkeys((rules.REGRESSED, rules.ERROR, rules.MISSING), "error"),
    rules.INCONCLUSIVE: "warning",
}
#: What XML 1.0 cannot hold, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
PROPERTIES = ("mode", "base", "head", "rule", "verdict", "exit_code", "not_comparable")


@dataclass(frozen=True)
class CaseRows:
    """One case: its records, worst first."""

    name: str
    records: Sequence[CheckRecord]

    @property
    def verdict(self) -> str:
        """The worst of its records'."""
        return rules.worst(record.verdict for record in self.records)

    @property
    def time(self) -> CheckRecord | None:
        """The record of its time, where it was timed."""
        return next((record for record in self.records if record.metric == TIME), None)


def by_case(report: Report) -> list[CaseRows]:
    """The report's cases, worst first, else in the order they were checked."""
    groups: dict[str, list[CheckRecord]] = {}
    for record in report.of(CheckRecord):
        groups.setdefault(record.case, []).append(record)
    cases = [CaseRows(name, sorted(rows, key=_badness)) for name, rows in groups.items()]
    return sorted(cases, key=lambda case: _badness(case.records[0]))


def _badness(record: CheckRecord) -> tuple[int, float]:
    ratio = record.ratio if record.verdict == rules.REGRESSED else None
    return rules.WORST_FIRST.index(record.verdict), -(ratio or 0.0)


def named(case: CaseRows, report: Report) -> list[CheckRecord]:
    """The records of a case that have something to tell.

    Times that are not comparable for the reason the whole report has are told once, above.
    """
    common = report.summary.get("not_comparable")
    return [
        record
        for record in case.records
        if (record.verdict != rules.OK or (record.why and record.metric != TIME))
        and not (record.verdict == rules.NOT_COMPARABLE and common and record.why in ("", common))
    ]


def counts_text(report: Report) -> str:
    """``metrics of 3 cases: 2 regressed, 1 inconclusive, 30 ok``, the report's own numbers."""
    counts: Mapping[str, int] = report.summary.get("counts") or {}
    found = [f"{counts[verdict]} {verdict}" for verdict in rules.WORST_FIRST if counts.get(verdict)]
    cases = len({getattr(record, "case", None) for record in report.records})
    said = f"metrics of {cases} case{'s' if cases != 1 else ''}"
    return f"{said}: {', '.join(found)}" if found else "nothing was checked"


def verdict_of(report: Report) -> str:
    """The report's verdict, as its summary says it."""
    told = str(report.summary.get("verdict"))
    return told if told in rules.VERDICTS else rules.worst(case.verdict for case in by_case(report))


def sides_text(report: Report) -> str:
    """``current against origin/main``: what was compared with what."""
    head = report.summary.get("head") or "this code"
    return f"{head} against {report.summary.get('base') or 'the baseline'}"


def notes_of(report: Report) -> list[str]:
    """What holds for the whole run: how it was judged, why not, and how well it could see."""
    summary = report.summary
    rule, policy, noise, spent, budget, code = map(
        summary.get, ("rule", "inconclusive", "noise", "spent_s", "budget_s", "exit_code")
    )
    of = "" if budget is None else f" of {budget:.0f} s"
    judged = (
        f"rule {rule}" if rule else "",
        f"inconclusive: {policy}" if policy else "",
        "" if noise is None else f"noise {format_value(noise, 'percent')}",
        "" if spent is None else f"{spent:.0f} s{of} spent",
        "" if code is None else f"exit code {code}",
    )
    notes = [", ".join(filter(None, judged))]
    if summary.get("not_comparable"):
        notes.append(f"times are not comparable: {summary['not_comparable']}")
    for name in ("notes", "power"):
        texts = [str(text) for text in summary.get(name) or ()]
        more = [f"… and {len(texts) - MOST} more, in the JSON"] if len(texts) > MOST else []
        notes += [*texts[:MOST], *more]
    return [text for text in notes if text]


def render_junit(report: Report) -> str:
    """JUnit XML: ``failure`` for what got worse, ``error`` for what could not be measured.

    ``skipped`` is what cannot be said: times too noisy or from another machine. Where inconclusive
    times are asked to fail they are errors, as the exit code is 3.
    """
    from junitparser import JUnitXml, TestCase, TestSuite

    suites = JUnitXml("attnprof check")
    strict = report.summary.get("inconclusive") == "fail"
    for case in by_case(report):
        suite = TestSuite(_clean(case.name))
        for name in PROPERTIES:
            if report.summary.get(name) is not None:
                suite.add_property(name, _clean(str(report.summary[name])))
        for record in case.records:
            test = TestCase(_clean(record.metric), classname=_clean(case.name))
            if ending := _ending(record, strict=strict):
                test.result = [ending]
            elif record.why:
                test.system_out = _clean(sentence(record))
            suite.add_testcase(test)
        suites.add_testsuite(suite)
    suites.update_statistics()
    return str(suites.tostring().decode()) + "\n"


def _ending(record: CheckRecord, *, strict: bool) -> Any:
    """How the test of a record ended; None where it passed."""
    from junitparser import Error, Failure, Skipped

    kinds: Mapping[str, Any] = {
        rules.REGRESSED: Failure, rules.ERROR: Error, rules.MISSING: Error,
        rules.INCONCLUSIVE: Error if strict else Skipped, rules.NOT_COMPARABLE: Skipped,
    }  # fmt: skip
    kind = kinds.get(record.verdict)
    if kind is None:
        return None
    ending = kind(_clean(sentence(record)), record.verdict)
    ending.text = _clean("\n".join(part for part in (sentence(record), record.place) if part))
    return ending


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", visible(text, lines=True))


def render_annotations(report: Report) -> str:
    """A command a line, one a case, worst first, ten at most; empty where nothing is amiss."""
    cases = [case for case in by_case(report) if case.verdict in LEVELS]
    shown = cases if len(cases) <= MOST_ANNOTATIONS else cases[: MOST_ANNOTATIONS - 1]
    lines = [_annotation(case, report) for case in shown]
    if left := cases[len(shown) :]:
        rest = f"{len(left)} more cases are in the summary and in the JSON"
        lines.append(f"::{LEVELS[left[0].verdict]}::{rest}")
    return "".join(f"{line}\n" for line in lines)


def _annotation(case: CaseRows, report: Report) -> str:
    # the line of code of its worst record that knows one
    place = next((record.place for record in case.records if record.place), "")
    file, _, line = place.rpartition(":")
    properties = {"title": f"attnprof {case.verdict}: {case.name}"}
    if file and line.isdigit():
        # as the case names it, where a line of code is known by its file's name only
        path = case.name.partition(".py:")[0] + ".py"
        file = path if path.rpartition("/")[2] == file else file
        properties = {"file": file, "line": line, **properties}
    named_by = ",".join(
        f"{name}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    told = "\n".join(sentence(r) for r in named(case, report) if r.verdict in LEVELS)
    return f"::{LEVELS[case.verdict]} {named_by}::{_escaped(told)}"


def _escaped(text: str) -> str:
    """A message's text: GitHub undoes these three; what is left are signs to be seen."""
    return visible(text.translate({37: "%25", 13: "%0D", 10: "%0A"}))
