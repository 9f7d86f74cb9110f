"""A replay as Markdown: one page for all documents, one for each document's folder of reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnprof.papers.finding import not_made
from attnprof.record import Report, ReproduceRecord
from attnprof.record.recognition import mark
from attnprof.render.claim_text import WORDS, place_text, printed_and_ours
from attnprof.render.regenerated_table import cell_text, notes, title_of
from attnprof.render.reproduction import answer_lines, records_of

COUNTED = ("match", "erratum", "not-reproducible", "error", "readings")
HEADS = ("match", "erratum", "not reproducible", "error", "by reading")
WHAT = """Every claim, table and figure of the documents, recomputed. `match`: it holds, to the
digits printed. `erratum`: the document contradicts itself, its definitions or arithmetic; the right
value is given. `not reproducible`: what the document says does not suffice to compute it. Verdicts
are computed, or rest on measurements; those that only reading can give are listed as such.
"""


def reproduction_page(report: Report, *, in_full: bool = False, linked: bool = False) -> str:
    """Counts, every erratum, what is not reproducible, what was read; or whole answers.

    ``linked``: the documents' folders are beside the page.
    """
    lines = _answers(report) if in_full else _page(report, linked=linked)
    return "\n".join([*lines, "", mark("reproduce")]) + "\n"


def _answers(report: Report) -> Iterator[str]:
    """The table or figure asked for, then every claim in full."""
    if "table" in report.summary:
        yield from markdown_table(report.summary["table"])
    if "figure" in report.summary:
        yield from figure_lines(report.summary["figure"])
    for record in records_of(report):
        place = escaped(place_text(record.place))
        yield f"\n### {record.claim}, {place}: {WORDS[record.verdict]}\n"
        yield from (f"- {name}: {escaped(text)}" for name, text in answer_lines(record))


def _page(report: Report, *, linked: bool) -> Iterator[str]:
    yield "# Reproduction\n"
    yield WHAT
    yield from _counts(report)
    for number, counts in report.summary["documents"].items():
        records = [record for record in records_of(report) if record.document == number]
        yield f"\n## {number} {counts['title']}"
        if linked:
            yield f"\nTables and figures made again: [{number}]({number}/README.md)."
        yield from _section("Errata", "right", _of(records, "erratum"))
        yield from _section("Not reproducible", "ours", _of(records, "not-reproducible"))
        yield from _section("Without a verdict", "ours", _of(records, "error"))
        matches = _of(records, "match")
        if matches:
            yield f"\n### Match\n\n{', '.join(f'`{record.claim}`' for record in matches)}"
        read = [record for record in records if record.basis == "reading"]
        if read:
            yield "\n### Judged by reading\n"
            yield from _lines(("claim", "place", "verdict", "where and why"), map(_read, read))
        left_out = {f"figure {name}": why for name, why in not_made(number).items()}
        if left_out:
            yield "\n### Figures not made again\n"
            yield from reasons(left_out)


def _of(records: Sequence[ReproduceRecord], verdict: str) -> list[ReproduceRecord]:
    return [record for record in records if record.verdict == verdict]


def _counts(report: Report) -> Iterator[str]:
    counts = report.summary["documents"]
    rows = [
        [f"{number} {its['title']}", str(its["claims"]), *(str(its[key]) for key in COUNTED)]
        for number, its in counts.items()
    ]
    if len(rows) > 1:
        keys = ("claims", *COUNTED)
        rows.append(["all", *(str(sum(its[key] for its in counts.values())) for key in keys)])
    yield from _lines(("document", "claims", *HEADS), rows)


def _section(title: str, ours: str, records: Sequence[ReproduceRecord]) -> Iterator[str]:
    if not records:
        return
    yield f"\n### {title}\n"
    yield from _lines(("claim", "place", "printed", ours, "why"), map(_row, records))


def _row(record: ReproduceRecord) -> list[str]:
    printed, ours = printed_and_ours(record)
    return [f"`{record.claim}`", place_text(record.place), _code(printed), _code(ours), record.why]


def reasons(left_out: Mapping[str, str]) -> Iterator[str]:
    """What is not made again, by its reason."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    yield from (f"- {', '.join(those)}: {escaped(why)}" for why, those in names.items())


def _code(text: str) -> str:
    """A formula as code, where its signs would be taken for emphasis; other text as it is."""
    return f"`{text}`" if set(text) & set("*_^") and "`" not in text else text


def _read(record: ReproduceRecord) -> list[str]:
    both = ". ".join(dict.fromkeys((record.how, record.why)))
    return [f"`{record.claim}`", place_text(record.place), WORDS[record.verdict], both]


def _lines(heads: Sequence[str], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|")
        if part.startswith("`")
        else re.sub(r"([*_|<>\[\]~])", r"\\\1", part)
        for part in parts
    )


def markdown_table(values: Mapping[str, Any]) -> Iterator[str]:
    """A regenerated table; ours in brackets where it differs."""
    yield f"### {escaped(title_of(values))}\n"
    rows = ([cell_text(row[name]) for name in values["columns"]] for row in values["rows"])
    yield from _lines([name.replace("_", " ") for name in values["columns"]], rows)
    yield from (f"\n{escaped(line)}" for line in notes(values))


def figure_lines(values: Mapping[str, Any], image: str | None = None) -> Iterator[str]:
    """What the document says of a figure beside ours, with the figure where it was drawn."""
    yield f"### Figure {values['name']}: {values['title']}\n"
    if image:
        yield f"![{escaped(values['title'])}]({image})\n"
    if values["described"]:
        rows = (
            [its["what"], its["printed"], its["ours"], "agrees" if its["agrees"] else "differs"]
            for its in values["described"]
        )
        yield from _lines(("what", "in the document", "ours", ""), rows)
