"""What ``attnprof check`` shows: a line a case, what changed by name; the same as a page.

The page is Markdown: the body of a pull request's comment, and the step summary.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.gate import rules
from attnprof.gate.sentences import WHOLE, sentence, time_text, told_once, values_text
from attnprof.record import CheckRecord, Report, SelfTestRecord
from attnprof.record.escapes import markdown_code, markdown_text
from attnprof.render import gate
from attnprof.render.formats import render_markdown
from attnprof.render.gate import CaseRows, by_case, named, verdict_of
from attnprof.render.terminal import new_table, record_table
from attnprof.units import MISSING

STYLES = {
    rules.REGRESSED: "bold red", rules.ERROR: "bold magenta", rules.MISSING: "bold magenta",
    rules.INCONCLUSIVE: "yellow", rules.NOT_COMPARABLE: "dim", rules.NEW: "cyan",
    rules.IMPROVED: "green", rules.OK: "green",
}  # fmt: skip
#: All that a record says, for who wants every number.
FULL = (
    "case", "metric", "baseline", "current", "ratio", "ci_low", "ci_high", "verdict", "pairs",
    "noise", "wall_ratio", "why", "place",
)  # fmt: skip
SELF_TEST = ("slowdown", "trials", "regressed", "inconclusive", "ratio", "noise", "case_s")
#: Unseen in the comment; by it the next run finds the comment to write anew.
MARKER = "<!-- attnprof-check -->"
#: Characters GitHub takes in a comment, and the rows of a table above which a page would pass them.
LIMIT = 65_536
MOST_ROWS = 100
#: A reason longer than this is in the JSON.
MOST_LETTERS = 300


def tables(report: Report, *, verbose: bool = False) -> list[RenderableType]:
    """A line a case, worst first; the named changes; the verdict. ``verbose`` adds every record."""
    if report.command == "check --self-test":
        return _self_test(report)
    cases = by_case(report)
    found: list[RenderableType] = [_overview(cases, report)]
    if verbose:
        found.append(record_table(report.records, FULL))
    found += [_told(case, report) for case in cases if named(case, report)]
    return [*found, _ending(report)]


def _overview(cases: list[CaseRows], report: Report) -> RenderableType:
    timed = any(case.time for case in cases)
    times = ["time, current / baseline"] * timed
    title = f"check: {gate.sides_text(report)}"
    table = new_table("verdict", "case", *times, title=title, right=times, fold=["case"])
    for case in cases:
        time = [time_text(case.time) or MISSING] if timed else []
        table.add_row(Text(case.verdict, STYLES[case.verdict]), case.name, *time)
    return table


def _told(case: CaseRows, report: Report) -> RenderableType:
    """A case's name over its changes, each with its line of code."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for record in told_once(named(case, report)):
        place = f" ({record.place})" if record.place else ""
        told = Text(sentence(record)).append(place, "dim")
        lines.add_row(Text(record.verdict, STYLES[record.verdict]), told)
    return Group(Text(case.name, "bold"), Padding(lines, (0, 0, 1, 2)))


def _ending(report: Report) -> RenderableType:
    verdict = verdict_of(report)
    lines = Text(verdict, STYLES[verdict])
    lines.append(f"; {gate.counts_text(report)}", "not bold default")
    for note in gate.notes_of(report):
        lines.append(f"\n{note}", "dim not bold")
    return lines


def _self_test(report: Report) -> list[RenderableType]:
    """A line a slowdown, and what the first and the others mean."""
    rule = report.summary["rule"]
    rows = report.of(SelfTestRecord)
    alarms = sum(row.regressed for row in rows if not row.slowdown)
    trials = sum(row.trials for row in rows if not row.slowdown)
    # the rule of three, one event more for each seen
    likely = min(1.0, (3 + 1.5 * alarms) / trials) if trials else 1.0
    said = (
        f"False alarms: {alarms} of {trials}. Few trials say little: up to "
        f"{likely:.1%} are still likely; give more --budget."
    )
    return [record_table(rows, SELF_TEST, title=f"self-test of rule {rule} on this machine"), said]


def page(report: Report, **_how: object) -> str:
    """What got worse first, then other changes; what stayed as it was is folded away."""
    if report.command == "check --self-test":
        return render_markdown(report)
    cases = by_case(report)
    changed = [(case, record) for case in cases for record in told_once(named(case, report))]
    amiss = [pair for pair in changed if pair[1].verdict not in (rules.OK, rules.IMPROVED)]
    other = [pair for pair in changed if pair[1].verdict in (rules.OK, rules.IMPROVED)]
    quiet = [case for case in cases if not named(case, report)]
    parts = [
        MARKER,
        f"### attnprof check: {verdict_of(report)}",
        f"{markdown_text(gate.sides_text(report))}; {gate.counts_text(report)}.",
        _changes(amiss),
        _changes(other),
        _folded(quiet),
        "\n".join(f"- {markdown_text(note)}" for note in gate.notes_of(report)),
    ]
    return _fitting("\n\n".join(part for part in parts if part) + "\n")


def _changes(rows: list[tuple[CaseRows, CheckRecord]]) -> str:
    if not rows:
        return ""
    lines = ["| verdict | case | metric | baseline → current | why |", "|---|---|---|---|---|"]
    for case, record in rows[:MOST_ROWS]:
        metric = "" if record.metric == WHOLE else markdown_code(record.metric)
        cut = "…" if len(record.why) > MOST_LETTERS else ""
        place = f" ({markdown_code(record.place)})" if record.place else ""
        cells = (
            f"**{record.verdict}**", markdown_code(case.name), metric,
            markdown_text(values_text(record)),
            f"{markdown_text(record.why[:MOST_LETTERS])}{cut}{place}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return _ended(lines, len(rows))


def _folded(cases: list[CaseRows]) -> str:
    if not cases:
        return ""
    lines = ["| case | time, current / baseline |", "|---|---|"]
    lines += [
        f"| {markdown_code(case.name)} | {time_text(case.time)} |" for case in cases[:MOST_ROWS]
    ]
    return (
        f"<details><summary>{len(cases)} unchanged</summary>\n\n"
        f"{_ended(lines, len(cases))}\n\n</details>"
    )


def _ended(lines: list[str], count: int) -> str:
    more = f"\n\n… and {count - MOST_ROWS} more, in the JSON." if count > MOST_ROWS else ""
    return "\n".join(lines) + more


def _fitting(text: str) -> str:
    """As much as a comment takes, cut between lines."""
    if len(text) <= LIMIT:
        return text
    kept = text[: LIMIT - 100].rsplit("\n", 1)[0]
    fold = "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}{fold}\n\n… cut here; everything is in the JSON.\n"
