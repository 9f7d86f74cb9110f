"""What ``attnprof check`` shows: the answer, then a line a cause; the same as a page.

The page is Markdown: the body of a pull request's comment, and the step summary.
"""

from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from attnprof.gate import rules
from attnprof.record import Report, SelfTestRecord
from attnprof.record.escapes import markdown_code, markdown_text
from attnprof.render import gate
from attnprof.render.fitted import Hanging
from attnprof.render.formats import markdown_table, render_markdown
from attnprof.render.terminal import record_table
from attnprof.units import plural

#: All that a record says, for who wants every number.
FULL = (
    "metric", "verdict", "unit", "baseline", "current", "ratio", "ci_low", "ci_high", "pairs",
    "noise", "wall_ratio", "why", "place",
)  # fmt: skip
SELF_TEST = ("slowdown", "trials", "regressed", "inconclusive", "ratio", "noise", "case_s")
#: Unseen in the comment; by it the next run finds the comment to write anew.
MARKER = "<!-- attnprof-check -->"
#: Characters GitHub takes in a comment, and the rows of a table above which a page would pass them.
LIMIT = 65_536
MOST_ROWS = 100
DETAILS = ("case", "metric", "baseline", "current", "ratio", "verdict", "why", "place")
TIMES = "time, current / baseline"
#: Causes on the terminal.
MOST_CAUSES = 8
#: A reason longer than this is in the JSON.
MOST_LETTERS = 300


def tables(report: Report, *, verbose: bool = False) -> Iterator[RenderableType]:
    """The answer, a line a cause, worst first, what was compared; ``verbose``: all records."""
    if report.command == "check --self-test":
        yield from _self_test(report)
        return
    for name, records in gate.by_case(report).items() if verbose else ():
        for formulas in (False, True):
            rows = [
                r
                for r in rules.told_once(records)
                if r.metric.startswith(rules.FORMULA) == formulas
            ]
            if rows:
                names, title = (FULL[:5], "") if formulas else (FULL, name)
                yield record_table(rows, names, title=title, keys=2)
    yield Text(gate.headline(report), "bold")
    found, cases = gate.causes_of(report), gate.outcomes(report)
    if any(rules.TIME in cause.metrics for cause in found if cause.verdict == rules.REGRESSED):
        found = [cause for cause in found if cause.verdict != rules.INCONCLUSIVE]  # time is told
    first, total = next(iter(cases.values()), []), sum(map(len, cases.values()))
    wide = max((len(cause.verdict) for cause in found[:MOST_CAUSES]), default=0) + 1
    for cause in found[:MOST_CAUSES]:
        where = gate.cases_text(cause.cases, total) if {*cause.cases} != {*first} else ""
        verdict = (f"{cause.verdict:{wide}}", gate.OUTCOMES[cause.verdict].style)
        said = f"{rules.cause_text(cause)}{f', in {where}' * bool(where)}"
        yield Hanging(Text.assemble(verdict, said), wide)
    if (left := len(found) - MOST_CAUSES) > 0:
        yield Text(f"{'':{wide}}and {plural(left, 'more cause')}, in the JSON")
    yield Text("\n".join(gate.notes_of(report, 6 if verbose else 1)), "dim")


def _self_test(report: Report) -> Iterator[RenderableType]:
    """A line a slowdown, and what the first and the others mean."""
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


def page(report: Report, **_how: object) -> str:
    """The answer, a row a cause; what each metric was and is, and what stayed, is folded away."""
    if report.command == "check --self-test":
        return render_markdown(report)
    cases = gate.by_case(report)
    told = {name: rules.told_once(gate.named(rows, report)) for name, rows in cases.items()}
    changed = [record for rows in told.values() for record in rows]
    quiet = [
        [markdown_code(name), "".join(rules.time_text(r) for r in rows if r.metric == rules.TIME)]
        for name, rows in cases.items() if not told[name]
    ]  # fmt: skip
    causes = [_cells(cause, len(cases)) for cause in gate.causes_of(report)]
    more = f"the first {MOST_ROWS} of " * (len(changed) > MOST_ROWS)
    details = render_markdown(replace(report, records=changed[:MOST_ROWS]), DETAILS)
    parts = [
        MARKER,
        f"### attnprof check: {rules.worst(record.verdict for record in changed)}",
        f"**{markdown_text(gate.headline(report))}**",
        markdown_table(("verdict", "where", "operations", "effect", "cases"), causes[:MOST_ROWS])
        if causes else "",
        _folded(f"{more}{len(changed)} changes by metric", details if changed else ""),
        _folded(f"{len(quiet)} unchanged", markdown_table(("case", TIMES), quiet) if quiet else ""),
        "\n".join(f"- {markdown_text(note)}" for note in gate.notes_of(report)),
    ]  # fmt: skip
    return _fitting("\n\n".join(part.strip("\n") for part in parts if part) + "\n")


def _folded(title: str, table: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{table}\n</details>" if table else ""


def _cells(cause: rules.Cause, total: int) -> list[str]:
    cut = "…" if len(text := rules.effect_text(cause)) > MOST_LETTERS else ""
    where = cause.place if cause.place in ("", rules.TOGETHER) else markdown_code(cause.place)
    return [
        f"**{cause.verdict}**", where,
        " ".join(map(markdown_code, cause.operations)), markdown_text(text[:MOST_LETTERS]) + cut,
        markdown_text(gate.cases_text(cause.cases, total)),
    ]  # fmt: skip


def _fitting(text: str) -> str:
    """As much as a comment takes, cut between lines."""
    if len(text) <= LIMIT:
        return text
    kept = text[: LIMIT - 100].rsplit("\n", 1)[0]
    fold = "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}{fold}\n\n… cut here; everything is in the JSON.\n"
