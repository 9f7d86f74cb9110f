"""Tables of ``check`` (the answer, then a line a cause), ``baseline`` and ``history``.

The page of ``check`` is Markdown: the body of a pull request's comment, and the step summary.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from attnprof.gate import rules
from attnprof.record import BaselineRecord, HistoryRecord, Report, SelfTestRecord
from attnprof.record.escapes import markdown_code, markdown_text
from attnprof.render import gate
from attnprof.render.formats import markdown_table, render_markdown
from attnprof.render.terminal import FittedTable, Hanging, quantity_value, record_table, shown_value
from attnprof.units import grouped, plural

#: Columns of ``--verbose``; of a self-test; of the page's changes by metric.
FULL = (
    "metric", "verdict", "unit", "baseline", "current", "ratio", "ci_low", "ci_high", "pairs",
    "noise", "wall_ratio", "why", "place",
)  # fmt: skip
SELF_TEST = ("slowdown", "trials", "regressed", "inconclusive", "ratio", "noise", "case_s")
DETAILS = ("case", "metric", "baseline", "current", "ratio", "verdict", "why", "place")
#: A hidden mark, by which the next run finds the comment that it replaces.
MARKER = "<!-- attnprof-check -->"
#: Characters GitHub takes in a comment, and the rows of a table above which a page would pass them.
LIMIT, MOST_ROWS = 65_536, 100
#: Causes on the terminal; letters of a reason. The JSON has the rest.
MOST_CAUSES, MOST_LETTERS = 8, 300
MEANING = """A series is one metric of one case, for times on one machine. Any other count is a \
change point; of times, another level that three runs or more stay at.
"""


def check_tables(report: Report, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Yield the answer, a line a cause, worst first, and notes; with ``verbose`` all records."""
    if report.command == "check --self-test":
        yield from _self_test(report)
        return
    for name, records in gate.by_case(report).items() if verbose else ():
        for formulas in (False, True):
            shown = rules.without_repeats(records)
            rows = [r for r in shown if r.metric.startswith(rules.FORMULA) == formulas]
            if rows:
                names, title = (FULL[:5], "") if formulas else (FULL, name)
                yield record_table(rows, names, title=title, keys=2)
    yield Text(gate.headline(report), "bold")
    causes, cases = gate.causes_of(report), gate.outcomes(report)
    if any(rules.TIME in cause.metrics for cause in causes if cause.verdict == rules.REGRESSED):
        causes = [cause for cause in causes if cause.verdict != rules.INCONCLUSIVE]
    first, total = next(iter(cases.values()), []), sum(map(len, cases.values()))
    wide = max((len(cause.verdict) for cause in causes[:MOST_CAUSES]), default=0) + 1
    for cause in causes[:MOST_CAUSES]:
        where = gate.cases_text(cause.cases, total) if {*cause.cases} != {*first} else ""
        verdict = (f"{cause.verdict:{wide}}", gate.OUTCOMES[cause.verdict].style)
        text = f"{rules.cause_text(cause)}{f', in {where}' * bool(where)}"
        yield Hanging(Text.assemble(verdict, text), wide)
    if (left := len(causes) - MOST_CAUSES) > 0:
        yield Text(f"{'':{wide}}and {plural(left, 'more cause')}, in the JSON")
    yield Text("\n".join(gate.notes_of(report, 6 if verbose else 1)), "dim")


def _self_test(report: Report) -> Iterator[RenderableType]:
    """Yield a line a slowdown, and how to read the rates."""
    rows, rule = report.of(SelfTestRecord), report.summary["rule"]
    yield record_table(rows, SELF_TEST, title=f"self-test of rule {rule} on this machine")
    alarms = sum(row.regressed for row in rows if not row.slowdown)
    trials = sum(row.trials for row in rows if not row.slowdown)
    # the rule of three, one event more for each seen
    likely = min(1.0, (3 + 1.5 * alarms) / trials) if trials else 1.0
    yield (
        f"False alarms: {alarms} of {trials}. Few trials say little: up to "
        f"{likely:.1%} are still likely; give more --budget."
    )


def check_page(report: Report, **_how: object) -> str:
    """Return the answer, a row a cause, a chart; a folded part has every metric before and now."""
    if report.command == "check --self-test":
        return render_markdown(report)
    cases = gate.by_case(report)
    shown = {name: rules.without_repeats(gate.shown(rows, report)) for name, rows in cases.items()}
    changed = [record for rows in shown.values() for record in rows]
    quiet = [
        [markdown_code(name), "".join(rules.time_text(r) for r in rows if r.metric == rules.TIME)]
        for name, rows in cases.items() if not shown[name]
    ]  # fmt: skip
    causes = [_cells(cause, len(cases)) for cause in gate.causes_of(report)][:MOST_ROWS]
    more = f"the first {MOST_ROWS} of " * (len(changed) > MOST_ROWS)
    worst = rules.worst(record.verdict for record in changed)
    parts = [
        MARKER,
        f"### attnprof check: {gate.verdict_word(worst)}",
        f"**{markdown_text(gate.headline(report))}**",
    ]
    if causes:
        heads = ("verdict", "where", "operations", "effect", "cases")
        parts.append(markdown_table(heads, causes))
    parts.append(gate.render_chart(report))
    if changed:
        details = render_markdown(replace(report, records=changed[:MOST_ROWS]), DETAILS)
        parts.append(_folded(f"{more}{len(changed)} changes by metric", details))
    if quiet:
        times = markdown_table(("case", "time, current / baseline"), quiet)
        parts.append(_folded(f"{len(quiet)} unchanged", times))
    parts.append("\n".join(f"- {markdown_text(note)}" for note in gate.notes_of(report)))
    return _fitting("\n\n".join(part.strip("\n") for part in parts if part) + "\n")


def _folded(title: str, table: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{table}\n</details>"


def _cells(cause: rules.Cause, total: int) -> list[str]:
    cut = "…" if len(text := rules.effect_text(cause)) > MOST_LETTERS else ""
    where = cause.place if cause.place in ("", rules.TOGETHER) else markdown_code(cause.place)
    return [
        f"**{gate.verdict_word(cause.verdict)}**", where,
        " ".join(map(markdown_code, cause.operations)), markdown_text(text[:MOST_LETTERS]) + cut,
        markdown_text(gate.cases_text(cause.cases, total)),
    ]  # fmt: skip


def _fitting(text: str) -> str:
    """Return as much text as a comment may have, cut between lines."""
    if len(text) <= LIMIT:
        return text
    kept = text[: LIMIT - 100].rsplit("\n", 1)[0]
    fold = "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}{fold}\n\n… cut here; everything is in the JSON.\n"


def baseline_tables(report: Report) -> Iterator[RenderableType]:
    """Yield each case's counts and time, or the reason why it does not run."""
    numbers = ("FLOPs", "peak", "operations", "formulas", "time")
    for code, records in grouped(report.of(BaselineRecord), _code_of).items():
        # words that all cases of a module share stand once, above them; the phase is in every row
        names = [r.case.removeprefix(f"{code}[").removesuffix("]").split() for r in records]
        several = code and len(names) > 1
        same = [word for word in names[0][1:] if several and all(word in x for x in names[1:])]
        rows = (
            _row(record, " ".join(word for word in words if word not in same) if code else "")
            for record, words in zip(records, names, strict=True) if not record.error
        )  # fmt: skip
        title = f"{code}[… {' '.join(same)}]" if same else code or "built-in mechanisms"
        yield FittedTable("case", *numbers, rows=rows, title=title, right=numbers)
        yield from (Hanging(f"{r.case}: {r.error}") for r in records if r.error)
    yield Text("Times are processor time of a call, the median of several processes.", "dim")


def _code_of(record: BaselineRecord) -> str:
    """Return the code of a case, ``my.py:Mine``; "" for a mechanism of ours."""
    code = record.case.partition("[")[0]
    return code if ":" in code else ""


def _row(record: BaselineRecord, name: str) -> list[str]:
    counted = ("flops", "peak_bytes", "dispatched_operations")
    values = (quantity_value(record.metrics[metric], metric) for metric in counted)
    times = [median(process) for process in record.times_s]
    return [name or record.case, *values, str(len(record.formulas)),
            shown_value(median(times) if times else None, "time")]  # fmt: skip


def history_tables(report: Report) -> Iterator[RenderableType]:
    """Yield how many levels begin where; then a table a case, a row a level."""
    summary, rows = report.summary, [r for r in report.of(HistoryRecord) if r.change_point]
    changes, runs = plural(summary["change_points"], "change point"), plural(summary["runs"], "run")
    sentence = f"{changes} in {summary['series']:,} series of {runs}."
    yield Text(sentence if rows else f"Nothing changed: {sentence}", "bold")
    yield Text(MEANING, "dim")
    several = len({r.machine for r in report.of(HistoryRecord) if r.machine}) > 1
    since = " or ".join(sorted({"commit" if row.commit else "file" for row in rows}))
    names, formats = ("metric", "since", since, "level", "ratio"), {"s": "time", "B": "bytes"}
    for case in dict.fromkeys(row.case for row in rows):
        cells = (
            [f"{r.metric}, {r.machine}" if several and r.machine else r.metric,
             r.at[:16].replace("T", " "), r.commit or r.file,
             shown_value(r.level, formats.get(r.unit, "count")), shown_value(r.ratio, "ratio")]
            for r in rows if r.case == case
        )  # fmt: skip
        yield FittedTable(*names, rows=cells, title=case, right=("level", "ratio"))


def history_page(report: Report, **_how: object) -> str:
    """Return the change points only: a row for every run is in the JSON."""
    changes = [record for record in report.of(HistoryRecord) if record.change_point]
    return render_markdown(replace(report, records=changes))
