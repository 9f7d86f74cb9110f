"""Show a report of ``check``: words by cause, JUnit XML, GitHub annotations, a badge, a chart."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attnprof.gate import rules
from attnprof.record import CheckRecord, Report
from attnprof.record.escapes import visible
from attnprof.units import format_value, grouped, joined, plural, quantity_text

MOST_NAMED = 6  # cases that an annotation names
MOST_ANNOTATIONS = 10  # of a step: GitHub drops more


class Fate(NamedTuple):
    """The wording and look of a verdict in each output.

    ``style``: on the terminal. ``level``: of a GitHub annotation. ``ending``: element of a JUnit
    test. ``color``: of the badge, for the worst case. A verdict without level and ending passes.
    ``word``: in a comment; "" for the verdict's own name.
    """

    words: str
    style: str
    level: str = ""
    ending: str = ""
    color: str = "brightgreen"
    word: str = ""


_UNCHECKED = Fate("could not be checked", "bold magenta", "error", "Error", "orange")
OUTCOMES = {
    rules.REGRESSED: Fate("got worse", "bold red", "error", "Failure", "red", "slower"),
    rules.ERROR: _UNCHECKED, rules.MISSING: _UNCHECKED,
    rules.INCONCLUSIVE: Fate(
        "could not be judged", "yellow", "warning", "Skipped", "yellow", "uncertain"
    ),
    rules.NOT_COMPARABLE: Fate("could be compared in part only", "dim", ending="Skipped"),
    rules.NEW: Fate("had nothing to be compared with", "cyan"),
    rules.IMPROVED: Fate("got better", "green", word="faster"),
    rules.OK: Fate("stayed the same", "green", word="same"),
}  # fmt: skip
#: Causes named in the first sentence.
MOST_PHRASES = 3
#: Characters that XML 1.0 cannot hold, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
PROPERTIES = ("mode", "base", "head", "rule", "verdict", "exit_code", "not_comparable")


def verdict_word(verdict: str) -> str:
    """Return a comment's word for a verdict: same, faster, slower, uncertain, or the verdict."""
    return OUTCOMES[verdict].word or verdict


def by_case(report: Report) -> dict[str, list[CheckRecord]]:
    """Return the report's cases with their records, worst first, else in the order checked."""

    def badness(record: CheckRecord) -> tuple[int, float]:
        ratio = record.ratio if record.verdict == rules.REGRESSED else None
        return rules.WORST_FIRST.index(record.verdict), -(ratio or 0.0)

    return grouped(sorted(report.of(CheckRecord), key=badness), lambda record: record.case)


def shown(records: Sequence[CheckRecord], report: Report) -> list[CheckRecord]:
    """Return the records that are not ok, or whose reason is not that of all records."""
    common = report.summary.get("not_comparable")
    return [record for record in records if rules.is_worth_showing(record, common)]


def causes_of(report: Report) -> list[rules.Cause]:
    """Return the report's causes, worst first."""
    return [rules.Cause(**row) for row in report.summary.get("causes", ())]


def outcomes(report: Report) -> dict[Fate, list[str]]:
    """Return the names of the cases by their fate, the worst first."""
    cases = by_case(report).items()
    worst = {name: rules.worst(row.verdict for row in shown(rows, report)) for name, rows in cases}
    names = sorted(worst, key=lambda name: rules.WORST_FIRST.index(worst[name]))
    return grouped(names, lambda name: OUTCOMES[worst[name]])


def headline(report: Report) -> str:
    """Return ``2 of 6 cases got worse: my.py:15 added clone; FLOPs are unchanged``."""
    if not (by_fate := outcomes(report)):
        return "Nothing was checked."
    (first, worst), *others = by_fate.items()
    every = causes_of(report)
    of_worst = (_phrase(cause) for cause in every if OUTCOMES[cause.verdict] == first)
    phrases = [*filter(None, of_worst)]
    if (left := len(phrases) - MOST_PHRASES) > 0:
        phrases[MOST_PHRASES:] = [f"and {plural(left, 'more cause')}"]
    changed = {name.removeprefix(rules.FORMULA) for cause in every for name in cause.metrics}
    same = "flops" in {record.metric for record in report.of(CheckRecord)} - changed
    same = same and first is OUTCOMES[rules.REGRESSED]
    total = sum(map(len, by_fate.values()))
    subject = cases_text(worst, total) if others else f"All {total} cases"
    subject = worst[0] if total == 1 else subject
    counts = [f"{len(cases)} {fate.words}" for fate, cases in others]
    rest = f" {joined(counts)}." if others else ""
    why = f": {', '.join(phrases)}" if phrases else ""
    return f"{subject} {first.words}{why}{'; FLOPs are unchanged' if same else ''}.{rest}"


def _phrase(cause: rules.Cause) -> str:
    """Return ``my.py:15 added clone and removed mul``; without operations, the effect."""
    clauses: list[str] = []
    for sign, verb in (("+", "added"), ("−", "removed"), ("", "runs")):
        names = [name.lstrip("+−") for name in cause.operations if name.startswith(sign)]
        if names and (sign or not clauses):
            left = [f"{len(names) - 3} more"] if len(names) > 3 else []
            clauses.append(f"{verb} {joined([*names[:3], *left])}")
    clauses = clauses or ([] if cause.place == rules.TOGETHER else rules.effects(cause)[:1])
    return f"{cause.place} {joined(clauses)}".strip() if clauses else ""


def cases_text(names: Sequence[str], total: int) -> str:
    """Return ``4 of 6 cases (my.py:Mine)``, with the name of one case or the code of several."""
    code = {name.partition("[")[0] for name in names}
    which = names[0] if len(names) == 1 else ", ".join(sorted(code)) if len(code) <= 2 else ""
    return f"{len(names)} of {total} cases" + f" ({which})" * bool(which)


def notes_of(report: Report, most: int = 6) -> list[str]:
    """Return notes on both sides, the verdicts, the times, and why some were not comparable.

    At most ``most`` similar sentences are kept: a suite may have one for every case.
    """
    summary, records = report.summary, report.of(CheckRecord)
    counts: Mapping[str, int] = summary.get("counts") or {}
    totals = [
        f"{counts[verdict]} {verdict}" for verdict in rules.WORST_FIRST if counts.get(verdict)
    ]
    cases = plural(len({record.case for record in records}), "case")
    rule, noise, spent, budget, code = map(
        summary.get, ("rule", "noise", "spent_s", "budget_s", "exit_code")
    )
    of_budget = "" if budget is None else f" of {budget:.0f} s"
    ratios = [r.ratio for r in records if r.metric == rules.TIME and r.ratio is not None]
    facts = (
        f"{summary.get('head') or 'this code'} against {summary.get('base') or 'the baseline'}",
        f"metrics of {cases}: {', '.join(totals)}" if totals else "nothing was checked",
        f"times {rules.span_text(min(ratios), max(ratios))}" if ratios else "",
        f"rule {rule}" if ratios and rule in rules.RULES else "",
        "" if noise is None else f"noise {format_value(noise, 'percent')}",
        "" if spent is None or not ratios else f"{spent:.0f} s{of_budget} spent",
        "" if code is None else f"exit code {code}",
    )
    notes = ["; ".join(filter(None, facts))]
    if summary.get("not_comparable"):
        notes.append(f"times are not comparable: {summary['not_comparable']}")
    for name in ("notes",) if code == 1 else ("notes", "power"):
        texts = [str(text) for text in summary.get(name) or ()]
        more = [f"… and {len(texts) - most} more, in the JSON"] if len(texts) > most else []
        notes += [*texts[:most], *more]
    return [text for text in notes if text]


def render_junit(report: Report) -> str:
    """Return JUnit XML: ``failure`` for a case that got worse, ``error`` if not measured.

    ``skipped`` is for times too noisy or from another machine. Where inconclusive
    times are asked to fail they are errors, as the exit code is 3.
    """
    import junitparser

    suites = junitparser.JUnitXml("attnprof check")
    strict = report.summary.get("inconclusive") == "fail"
    for name, records in by_case(report).items():
        suite = junitparser.TestSuite(_clean(name))
        for key in PROPERTIES:
            if report.summary.get(key) is not None:
                suite.add_property(key, _clean(str(report.summary[key])))
        for record in records:
            test = junitparser.TestCase(_clean(record.metric), classname=_clean(name))
            text, ending = _clean(rules.sentence(record)), OUTCOMES[record.verdict].ending
            if ending:
                ending = "Error" if strict and record.verdict == rules.INCONCLUSIVE else ending
                result = getattr(junitparser, ending)(text, record.verdict)
                result.text = "\n".join(filter(None, (text, _clean(record.place))))
                test.result = [result]
            elif record.why:
                test.system_out = text
            suite.add_testcase(test)
        suites.add_testsuite(suite)
    suites.update_statistics()
    return str(suites.tostring().decode()) + "\n"


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", visible(text, lines=True))


def render_annotations(report: Report) -> str:
    """Return GitHub's workflow commands, a line a cause, worst first, ten at most.

    Empty if no case got worse or failed.
    """
    causes = [
        cause for cause in causes_of(report)
        if OUTCOMES[cause.verdict].level and (cause.operations or cause.place != rules.TOGETHER)
    ]  # fmt: skip
    most = len(causes) if len(causes) <= MOST_ANNOTATIONS else MOST_ANNOTATIONS - 1
    lines = [_annotation(cause) for cause in causes[:most]]
    if left := causes[most:]:
        rest = f"{len(left)} more causes are in the summary and in the JSON"
        lines.append(f"::{OUTCOMES[left[0].verdict].level}::{rest}")
    return "".join(f"{line}\n" for line in lines)


def _annotation(cause: rules.Cause) -> str:
    """Return a workflow command that shows a cause at its line."""
    title = f"attnprof {cause.verdict}: {_phrase(cause) or plural(len(cause.cases), 'case')}"
    file, _, line = cause.place.rpartition(":")
    properties = {"file": file, "line": line} if file and line.isdigit() else {}
    texts = ",".join(
        f"{name}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in {**properties, "title": title}.items()
    )
    left = len(cause.cases) - MOST_NAMED
    more = [f"and {plural(left, 'more case')}"] if left > 0 else []
    message = "\n".join([rules.effect_text(cause), *cause.cases[:MOST_NAMED], *more])
    return f"::{OUTCOMES[cause.verdict].level} {texts}::{_escaped(message)}"


def _escaped(text: str) -> str:
    """Return a message's text with the three signs escaped that GitHub decodes."""
    return visible(text.translate({37: "%25", 13: "%0D", 10: "%0A"}))


def render_badge(report: Report) -> str:
    """Return the JSON of a shields.io badge: how many cases are fine, or are not."""
    by_fate = outcomes(report)
    worst, cases = next(iter(by_fate.items()), (OUTCOMES[rules.OK], []))
    total = plural(sum(map(len, by_fate.values())), "case")
    message = f"{len(cases)} of {total} {worst.words}" if worst.level else f"{total} ok"
    if worst is OUTCOMES[rules.REGRESSED]:
        message = plural(len(cases), "regression")
    badge = {"schemaVersion": 1, "label": "attnprof", "message": message, "color": worst.color}
    return json.dumps(badge) + "\n"


# -- a chart in the words of Mermaid -------------------------------------------------------
# A comment of GitHub shows neither SVG nor an image's data, and a workflow's token has no place to
# put images. A block of Mermaid needs none. Of its charts only Gantt's has bars between any two
# numbers, so a ratio of 1.19 is told as 1,190 ms, and the axis shows seconds.
#: Metrics that are drawn: each is a total of its own.
CHARTED = (rules.TIME, "flops", "bytes_moved", "peak_bytes", "dispatched_operations")
#: Cases that are drawn, letters of their names, ratios at which bars end, and a bar's least width.
MOST_CASES, MOST_LETTERS, LEAST_RATIO, MOST_RATIO, THIN = 8, 40, 0.25, 4.0, 0.005
#: The look of a bar by its verdict's word.
LOOKS = {"slower": "crit, ", "faster": "active, ", "same": "done, "}
#: Characters with a meaning in a chart's text.
_SIGNS = re.compile(r"[^\w .,=×*+/()\[\]-]")
_CHART = """%%{{init: {{"gantt": {{"leftPadding": {left}}}}}}}%%
gantt
  accTitle: What it costs now, as a multiple of before
  accDescr: {described}
  title What it costs now, as a multiple of before
  dateFormat x
  axisFormat %s.%L
  todayMarker off
  section before
  1.000 :milestone, done, 1000, 0ms
"""


def render_chart(report: Report) -> str:
    """Return the chart's block, a bar a metric by case, worst first; "" if no ratio is known."""
    drawn = []
    for case, records in by_case(report).items():
        changed = (r for r in records if r.metric == rules.TIME or r.verdict != rules.OK)
        if bars := [_bar(r) for r in changed if r.metric in CHARTED and r.ratio]:
            name = _plain(case)
            cut = len(name) > MOST_LETTERS
            drawn.append((f"{name[:MOST_LETTERS]}…" if cut else name, bars))
    if not drawn:
        return ""
    first, more = drawn[:MOST_CASES], len(drawn[MOST_CASES:])
    left = 30 + 6 * max(len(case) for case, _ in first)
    head = _CHART.format(left=left, described=_plain(headline(report)))
    chart = "".join(f"  section {case}\n{''.join(bars)}" for case, bars in first)
    rest = f" {plural(more, 'more case')} below." if more else ""
    caption = f"Bars reach from 1 to the ratio; those of time are its interval.{rest}"
    return f"```mermaid\n{head}{chart}```\n\n{caption}"


def _bar(record: CheckRecord) -> str:
    """Return ``peak memory 1.333×, slower :crit, 1000, 1333``."""
    ratio = record.ratio or 1.0
    ends = record.ci_low or min(ratio, 1.0), record.ci_high or max(ratio, 1.0)
    low, high = (min(max(end, LEAST_RATIO), MOST_RATIO) for end in ends)
    word = verdict_word(record.verdict)
    text = f"{quantity_text(record.metric)} {rules.time_text(record)}, {word}"
    start, end = round(1000 * low), round(1000 * max(high, low + THIN))
    return f"  {text} :{LOOKS.get(word, '')}{start}, {end}\n"


def _plain(text: str) -> str:
    return " ".join(_SIGNS.sub(" ", text).split())
