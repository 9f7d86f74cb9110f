"""What ``attnprof check`` shows: a line a case, what changed by name; the same as a page.

The page is Markdown: the body of a pull request's comment, and the step summary.
"""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.gate import rules
from attnprof.gate.rules import WHOLE, sentence, time_text, told_once, values_text
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


def tables(report: Report, *, verbose: bool = False) -> Iterator[RenderableType]:
    """A line a case, worst first; the named changes; the verdict. ``verbose`` adds every record."""
    if report.command == "check --self-test":
        yield from _self_test(report)
        return
    cases, verdict = by_case(report), verdict_of(report)
    times = ["time, current / baseline"] * any(case.time for case in cases)
    title = f"check: {gate.sides_text(report)}"
    table = new_table("verdict", "case", *times, title=title, right=times, fold=["case"])
    for case in cases:
        time = [time_text(case.time) or MISSING] if times else []
        table.add_row(_verdict(case.verdict), case.name, *time)
    yield table
    if verbose:
        yield record_table(report.records, FULL)
    for case in cases:
        if changes := named(case, report):
            yield Text(case.name, "bold")
            yield _told(changes)
    ending = _verdict(verdict).append(f"; {gate.counts_text(report)}", "not bold default")
    for note in gate.notes_of(report):
        ending.append(f"\n{note}", "dim not bold")
    yield ending


def _verdict(verdict: str) -> Text:
    return Text(verdict, STYLES[verdict])


def _told(changes: Sequence[CheckRecord]) -> RenderableType:
    """A case's changes, each with its line of code."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for record in told_once(changes):
        place = f" ({record.place})" if record.place else ""
        lines.add_row(_verdict(record.verdict), Text(sentence(record)).append(place, "dim"))
    return Padding(lines, (0, 0, 1, 2))


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
    """What got worse first, then other changes; what stayed as it was is folded away."""
    if report.command == "check --self-test":
        return render_markdown(report)
    changes: dict[bool, list[str]] = {True: [], False: []}
    quiet = []
    for case in by_case(report):
        records = named(case, report)
        for record in told_once(records):
            changes[record.verdict in (rules.OK, rules.IMPROVED)].append(_change(case, record))
        if not records:
            quiet.append(f"| {markdown_code(case.name)} | {time_text(case.time)} |")
    columns = ("verdict", "case", "metric", "baseline → current", "why")
    folded = _table(("case", "time, current / baseline"), quiet)
    summary = f"<summary>{len(quiet)} unchanged</summary>"
    parts = [
        MARKER,
        f"### attnprof check: {verdict_of(report)}",
        f"{markdown_text(gate.sides_text(report))}; {gate.counts_text(report)}.",
        *(_table(columns, changes[fine]) for fine in (False, True)),
        f"<details>{summary}\n\n{folded}\n\n</details>" if quiet else "",
        "\n".join(f"- {markdown_text(note)}" for note in gate.notes_of(report)),
    ]
    return _fitting("\n\n".join(filter(None, parts)) + "\n")


def _change(case: CaseRows, record: CheckRecord) -> str:
    cut = "…" if len(record.why) > MOST_LETTERS else ""
    place = f" ({markdown_code(record.place)})" if record.place else ""
    cells = (
        f"**{record.verdict}**", markdown_code(case.name),
        "" if record.metric == WHOLE else markdown_code(record.metric),
        markdown_text(values_text(record)),
        f"{markdown_text(record.why[:MOST_LETTERS])}{cut}{place}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _table(columns: Sequence[str], rows: Sequence[str]) -> str:
    """As many rows as a comment takes; nothing where there are none."""
    if not rows:
        return ""
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    left = len(rows) - MOST_ROWS
    more = f"\n\n… and {left} more, in the JSON." if left > 0 else ""
    return "\n".join([*head, *rows[:MOST_ROWS]]) + more


def _fitting(text: str) -> str:
    """As much as a comment takes, cut between lines."""
    if len(text) <= LIMIT:
        return text
    kept = text[: LIMIT - 100].rsplit("\n", 1)[0]
    fold = "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}{fold}\n\n… cut here; everything is in the JSON.\n"
