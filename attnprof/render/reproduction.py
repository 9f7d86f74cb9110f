"""Write a replay as files: a folder a document (:func:`write_document`), and an HTML page.

The page (:func:`reproduction_html`) has claims as sentences, the most surprising first, matches
folded.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from attnprof.errors import AttnprofError
from attnprof.papers.regenerated import Regenerated, table_rows
from attnprof.papers.replay import distance, severity, surprises
from attnprof.record import Report, ReproduceRecord, write_whole
from attnprof.record.escapes import csv_cell
from attnprof.record.files import make_folder
from attnprof.record.recognition import mark
from attnprof.render.formats import csv_text, filled, render_csv
from attnprof.render.html import Entry, Figure, Fold, PageTable, Section, badge, page, value_html
from attnprof.render.plots.documents import picture, plot_figure
from attnprof.render.tables import reproduce as texts
from attnprof.units import plural

#: The look of a severity's badge.
SEVERE = {"major": "full", "moderate": "red", "minor": ""}
#: Characters of both sides of a claim that stand in its line.
BRIEF = 90


def reproduction_html(report: Report, regenerated: Mapping[str, Regenerated]) -> str:
    """Return the HTML page: counts, then claims of each document as sentences, tables, figures.

    Tables and figures are the one asked for, and those of whole documents (``regenerated``).
    """
    summary, records = report.summary, report.of(ReproduceRecord)
    documents = summary["documents"]
    head, right = ["document", *texts.COUNTED.values()], [False, *[True] * len(texts.COUNTED)]
    counts = PageTable("Claims by verdict", head, texts.count_rows(documents, texts.COUNTED), right)
    sections = [Section("", [counts])]
    for number, document in documents.items():
        blocks: list[Any] = [_table_block(summary["table"])] if "table" in summary else []
        blocks += _described_block(summary["figure"]) if "figure" in summary else []
        blocks += _claim_folds([record for record in records if record.document == number])
        if number in regenerated:
            blocks += _made_folds(number, regenerated[number])
        sections.append(Section(f"{number} {document['title']}", blocks))
    present = {record.verdict for record in records}
    verdicts = {name: words for name, words in texts.WORDS.items() if name in present}
    return page(report, "reproduce", f"{summary['answer']}.", sections, verdicts)


def _claim_folds(records: Sequence[ReproduceRecord]) -> Iterator[Fold]:
    """Yield a document's claims: the furthest off, then by verdict, matches last and folded."""
    first = surprises(records)
    of_verdict = {name: [r for r in records if r.verdict == name] for name in texts.WORDS}
    of_verdict["erratum"].sort(key=lambda r: -distance(r.published, r.ours))
    brief = len(first) < len(of_verdict["erratum"])
    if brief:
        yield Fold("What surprises most", [_entry(r, "-first") for r in first], open=True)
    titles = {**{name: title for title, name, _ in texts.SECTIONS}, "match": "Match"}
    for verdict, title in titles.items():
        if claims := of_verdict[verdict]:
            is_open = verdict != "match" and not (brief and verdict == "erratum")
            yield Fold(f"{title} ({len(claims)})", [*map(_entry, claims)], open=is_open)


def _entry(record: ReproduceRecord, suffix: str = "") -> Entry:
    """Return a claim: its sentence, badges, place, and the full answer to unfold."""
    verdict = record.verdict
    badges = [badge(texts.WORDS[verdict], f"{verdict} {texts.COLOURS[verdict]}")]
    if level := severity(record):
        badges.append(badge(level, SEVERE[level]))
    sides = [value_html(text) for text in texts.printed_and_ours(record)]
    differs = Markup("; does not hold") if isinstance(record.published, bool) else Markup("")
    if not differs and sum(map(len, texts.printed_and_ours(record))) < BRIEF:
        differs = Markup("; {} → {}").format(*sides)
    short = Markup("{}, {}{}").format(
        record.claim, texts.place_text(record.place), differs if level else ""
    )
    both = {"published": record.published, "ours": record.ours}
    lines = [
        (name, _value_html(both[name]) if name in both else text)
        for name, text in texts.answer_lines(record) if name not in ("says", "verdict")
    ]  # fmt: skip
    return Entry(f"{record.claim}{suffix}", record.says, badges, short, lines)


def _value_html(value: Any) -> Any:
    """Return a value with its formulas set; a mapping's entries are lines."""
    if isinstance(value, Mapping):
        lines = (Markup("{}: {}").format(name, _value_html(item)) for name, item in value.items())
        return Markup("<br>").join(lines)
    return value_html(texts.value_text(value))


def _made_folds(number: str, parts: Regenerated) -> Iterator[Fold]:
    """Yield a document's recomputed tables and figures, each kind in a fold."""
    tables = [*map(_table_block, parts.tables.values())]
    figures: list[Any] = []
    for values in parts.figures.values():
        figures += _described_block(values, picture(number, values))
    if tables:
        yield Fold(f"{plural(len(parts.tables), 'table')} made again", tables)
    if figures:
        yield Fold(f"{plural(len(parts.figures), 'figure')} made again", figures)


def _table_block(values: Mapping[str, Any]) -> PageTable:
    """Return a recomputed table; where ours differs it is a badge after the printed value."""
    names, rows = values["columns"], values["rows"]
    printed = {name: [texts.printed_of(row[name]) for row in rows] for name in names}
    right = [all(isinstance(value, int | float) for value in printed[name]) for name in names]
    cells = [[_cell_html(row[name]) for name in names] for row in rows]
    heads = [name.replace("_", " ") for name in names]
    note = " ".join(texts.table_notes(values))
    return PageTable(texts.title_of(values), heads, cells, right, note=note)


def _cell_html(cell: Any) -> Any:
    printed = value_html(texts.value_text(texts.printed_of(cell)))
    if not isinstance(cell, Mapping) or not (cell["differs"] or cell.get("bound")):
        return printed
    ours = f"{cell.get('bound', 'ours')} {texts.value_text(cell['ours'])}"
    return Markup("{} {}").format(printed, badge(ours, "red" if cell["differs"] else ""))


def _described_block(values: Mapping[str, Any], drawn: str | None = None) -> Iterator[Any]:
    """Yield a figure, if it was drawn, and a table of the document's statements on it."""
    title, rows = f"Figure {values['name']}: {values['title']}", texts.described_rows(values)
    if drawn:
        statements = "; ".join(f"{subject}: {ours}" for subject, _, ours, _ in rows)
        yield Figure(title, drawn, f"{title}. {statements}")
    if rows:
        cells = [[*row, badge(verdict, texts.AGREES[verdict])] for *row, verdict in rows]
        yield PageTable("" if drawn else title, texts.DESCRIBED, cells, [False] * 4)


def existing_files(folder: Path, numbers: Sequence[str]) -> list[Path]:
    """Return the files in a folder of reports that a replay would write."""
    names = ("README.md", "claims.csv", "table*.csv", "figure*.csv", "figure*.png")
    paths = [path for number in numbers for name in names
           for path in sorted((folder / number).glob(name))]  # fmt: skip
    return [*sorted(folder.glob("reproduction.md")), *paths]


def write_document(number: str, report: Report, parts: Regenerated, folder: Path) -> dict[str, str]:
    """Write one document's folder; return what failed, with the reason."""
    make_folder(folder)
    failed, tables, figures = dict(parts.failed), {}, {}
    for name, values in parts.tables.items():
        data = f"table{_padded(name)}.csv"
        write_whole(folder / data, _rows_as_csv(table_rows(values)))
        tables[name] = SimpleNamespace(data=data, values=values)
    for name, values in parts.figures.items():
        stem = f"figure{_padded(name)}"
        write_whole(folder / f"{stem}.csv", _rows_as_csv(values["rows"]))
        image: str | None = f"{stem}.png"
        try:
            plot_figure(number, values, folder / f"{stem}.png")
        except AttnprofError as error:
            image, failed[f"figure {name}, drawn"] = None, str(error)
        figures[name] = SimpleNamespace(data=f"{stem}.csv", values=values, image=image)
    of_document = [record for record in report.of(ReproduceRecord) if record.document == number]
    write_whole(folder / "claims.csv", render_csv(Report(report.command, of_document)))
    left_out = {f"figure {name}": why for name, why in parts.not_made.items()} | failed
    readme = filled(
        "folder.md", {**texts.FILTERS, "cells": texts.count_cells}, number=number, tables=tables,
        figures=figures, left_out=left_out, mark=mark("reproduce"),
        title=report.summary["documents"][number]["title"],
    )  # fmt: skip
    write_whole(folder / "README.md", readme)
    return failed


def _padded(name: str) -> str:
    """Return a number for a file name that sorts: ``2`` is ``02``."""
    return f"{int(name):02d}" if name.isdigit() else f"_{name}"


def _rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV under the names of all of them, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = (
        [csv_cell(cell) if isinstance(cell, str) else cell for cell in map(row.get, names)]
        for row in rows
    )
    return csv_text(names, cells)
