"""A report of ``check`` as Markdown: the body of a pull request's comment, and the step summary."""

from __future__ import annotations

from attnprof.gate.sentences import WHOLE, time_text, told_once, values_text
from attnprof.gate.verdicts import IMPROVED, OK
from attnprof.record import CheckRecord, Report
from attnprof.record.escaping import markdown_code, markdown_text
from attnprof.render.gate.cases import (
    CaseRows,
    by_case,
    counts_text,
    named,
    notes_of,
    sides_text,
    verdict_of,
)

#: Unseen in the comment; by it the next run finds the comment to write anew.
MARKER = "<!-- attnprof-check -->"
#: Characters GitHub takes in a comment, and the rows of a table above which a page would pass them.
LIMIT = 65_536
MOST_ROWS = 100
#: A reason longer than this is in the JSON.
MOST_LETTERS = 300


def render_page(report: Report) -> str:
    """What got worse first, then other changes; what stayed as it was is folded away."""
    cases = by_case(report)
    changed = [(case, record) for case in cases for record in told_once(named(case, report))]
    amiss = [pair for pair in changed if pair[1].verdict not in (OK, IMPROVED)]
    other = [pair for pair in changed if pair[1].verdict in (OK, IMPROVED)]
    quiet = [case for case in cases if not named(case, report)]
    parts = [
        MARKER,
        f"### attnprof check: {verdict_of(report)}",
        f"{markdown_text(sides_text(report))}; {counts_text(report)}.",
        _changes(amiss),
        _changes(other),
        _folded(quiet),
        "\n".join(f"- {markdown_text(note)}" for note in notes_of(report)),
    ]
    return _fitting("\n\n".join(part for part in parts if part) + "\n")


def _changes(rows: list[tuple[CaseRows, CheckRecord]]) -> str:
    if not rows:
        return ""
    lines = ["| verdict | case | metric | baseline → current | why |", "|---|---|---|---|---|"]
    for case, record in rows[:MOST_ROWS]:
        metric = "" if record.metric == WHOLE else markdown_code(record.metric)
        why = markdown_text(record.why[:MOST_LETTERS]) + (
            "…" if len(record.why) > MOST_LETTERS else ""
        )
        if record.place:
            why = f"{why} ({markdown_code(record.place)})"
        cells = (
            f"**{record.verdict}**", markdown_code(case.name), metric,
            markdown_text(values_text(record)), why,
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


def _fitting(page: str) -> str:
    """As much as a comment takes, cut between lines."""
    if len(page) <= LIMIT:
        return page
    kept = page[: LIMIT - 100].rsplit("\n", 1)[0]
    fold = "\n\n</details>" if kept.count("<details>") > kept.count("</details>") else ""
    return f"{kept}{fold}\n\n… cut here; everything is in the JSON.\n"
