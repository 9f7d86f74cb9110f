"""Write a replay as an HTML page: claims as sentences, what surprises first, matches folded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from attnprof.papers.regenerated import Regenerated, figure_values, table_values
from attnprof.papers.replay import distance, severity, surprises
from attnprof.record import Report, ReproduceRecord
from attnprof.render.html import Entry, Figure, Fold, PageTable, Section, badge, page
from attnprof.render.mathml import value_html
from attnprof.render.plots.documents import picture
from attnprof.render.reproduction import (
    COLOURS,
    COUNTED,
    SECTIONS,
    WORDS,
    answer_lines,
    count_rows,
    place_text,
    printed_and_ours,
    table_notes,
    title_of,
    value_text,
)
from attnprof.units import plural

#: The look of a severity's badge.
SEVERE = {"major": "full", "moderate": "red", "minor": ""}
#: Characters of both sides of a claim that stand in its line.
BRIEF = 90


def reproduction_html(report: Report, made: Mapping[str, Regenerated]) -> str:
    """Return the HTML page: counts, then claims of each document as sentences, tables, figures.

    The tables and figures are the one asked for, and those of the whole documents in ``made``.
    """
    summary, records = report.summary, report.of(ReproduceRecord)
    documents = summary["documents"]
    right = [False, *[True] * len(COUNTED)]
    rows = count_rows(documents, COUNTED)
    sections = [
        Section("", [PageTable("Claims by verdict", ["document", *COUNTED.values()], rows, right)])
    ]
    for number, its in documents.items():
        blocks: list[Any] = [_table_block(summary["table"])] if "table" in summary else []
        blocks += _described_block(summary["figure"]) if "figure" in summary else []
        blocks += _claim_folds([record for record in records if record.document == number])
        if number in made:
            blocks += _made_folds(number, made[number])
        sections.append(Section(f"{number} {its['title']}", blocks))
    verdicts = {
        name: words for name, words in WORDS.items() if any(r.verdict == name for r in records)
    }
    return page(report, "reproduce", f"{summary['answer']}.", sections, verdicts)


def _claim_folds(records: Sequence[ReproduceRecord]) -> Iterator[Fold]:
    """Yield a document's claims: those furthest off, then by verdict, matches last and folded."""
    first = surprises(records)
    of_verdict = {name: [r for r in records if r.verdict == name] for name in WORDS}
    of_verdict["erratum"].sort(key=lambda r: -distance(r.published, r.ours))
    brief = len(first) < len(of_verdict["erratum"])
    if brief:
        yield Fold("What surprises most", [_entry(r, "-first") for r in first], open=True)
    for verdict, title in {
        **{name: title for title, name, _ in SECTIONS},
        "match": "Match",
    }.items():
        if those := of_verdict[verdict]:
            few = verdict != "match" and not (brief and verdict == "erratum")
            yield Fold(f"{title} ({len(those)})", [_entry(record) for record in those], open=few)


def _entry(record: ReproduceRecord, suffix: str = "") -> Entry:
    """Return a claim: its sentence, badges, place, and the full answer to unfold."""
    badges = [badge(WORDS[record.verdict], f"{record.verdict} {COLOURS[record.verdict]}")]
    if level := severity(record):
        badges.append(badge(level, SEVERE[level]))
    sides = [value_html(text) for text in printed_and_ours(record)]
    differs = Markup("; does not hold") if isinstance(record.published, bool) else Markup("")
    if not differs and sum(map(len, printed_and_ours(record))) < BRIEF:
        differs = Markup("; {} → {}").format(*sides)
    short = Markup("{}, {}{}").format(
        record.claim, place_text(record.place), differs if level else ""
    )
    both = {"published": record.published, "ours": record.ours}
    lines = [(name, _value_html(both[name]) if name in both else text)
             for name, text in answer_lines(record) if name not in ("says", "verdict")]  # fmt: skip
    return Entry(f"{record.claim}{suffix}", record.says, badges, short, lines)


def _value_html(value: Any) -> Any:
    """Return a value with its formulas set; a mapping's entries are lines."""
    if isinstance(value, Mapping):
        lines = (Markup("{}: {}").format(name, _value_html(its)) for name, its in value.items())
        return Markup("<br>").join(lines)
    return value_html(value_text(value))


def _made_folds(number: str, made: Regenerated) -> Iterator[Fold]:
    tables = [_table_block(table_values(name, table)) for name, table in made.tables.items()]
    figures: list[Any] = []
    for name, (figure, data) in made.figures.items():
        values = figure_values(name, figure, data)
        figures += _described_block(values, picture(number, name, data))
    for what, blocks in (("table", tables), ("figure", figures)):
        if blocks:
            count = len(getattr(made, f"{what}s"))
            yield Fold(f"{plural(count, what)} made again", blocks)


def _table_block(values: Mapping[str, Any]) -> PageTable:
    """Return a recomputed table; ours is a badge beside what is printed where they differ."""
    names, rows = values["columns"], values["rows"]
    right = [all(isinstance(_printed(row[name]), int | float) for row in rows) for name in names]
    cells = [[_cell_html(row[name]) for name in names] for row in rows]
    heads = [name.replace("_", " ") for name in names]
    return PageTable(title_of(values), heads, cells, right, note=" ".join(table_notes(values)))


def _printed(cell: Any) -> Any:
    return cell["printed"] if isinstance(cell, Mapping) else cell


def _cell_html(cell: Any) -> Any:
    printed = value_html(value_text(_printed(cell)))
    if not isinstance(cell, Mapping) or not (cell["differs"] or cell.get("bound")):
        return printed
    ours = f"{cell.get('bound', 'ours')} {value_text(cell['ours'])}"
    return Markup("{} {}").format(printed, badge(ours, "red" if cell["differs"] else ""))


def _described_block(values: Mapping[str, Any], drawn: str | None = None) -> Iterator[Any]:
    """Yield a figure, if it was drawn, and a table of what the document says of it."""
    title, said = f"Figure {values['name']}: {values['title']}", values["described"]
    if drawn:
        seen = "; ".join(f"{its['what']}: {its['ours']}" for its in said)
        yield Figure(title, drawn, f"{title}. {seen}")
    rows = [[its["what"], its["printed"], its["ours"],
             badge("agrees", "green") if its["agrees"] else badge("differs", "red")]
            for its in said]  # fmt: skip
    if rows:
        yield PageTable(
            "" if drawn else title, ["what", "in the document", "ours", ""], rows, [False] * 4
        )
