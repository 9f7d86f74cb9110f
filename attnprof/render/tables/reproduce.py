"""What ``attnprof reproduce`` shows: counts, errata, full answers, regenerated tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.record import Report, ReproduceRecord
from attnprof.render.claims import (
    COUNTED,
    WORDS,
    answer_lines,
    cell_text,
    count_rows,
    notes,
    place_text,
    printed_and_ours,
    records_of,
    shortened,
    title_of,
)
from attnprof.render.reproduction import page
from attnprof.render.terminal import console_width, is_narrow, new_table, paragraphs

__all__ = ["page", "tables"]
COLOURS = {"match": "green", "erratum": "red", "not-reproducible": "yellow", "error": "magenta"}
#: Letters of the columns of a list, and between them.
PLACE, VERDICT, GAP = 24, len("not reproducible"), 2
#: A column of long texts folds; it takes at most this many letters for sharing out the width.
MOST = 30
MORE = "Whole answers: attnprof reproduce --claim ID, or --verdict erratum; all claims: --all."


def tables(
    report: Report, *, everything: bool = False, in_full: bool = False, by_name: bool = False
) -> list[RenderableType]:
    """A table or figure asked for, whole answers, every claim, or a summary."""
    records = records_of(report)
    if everything:
        return [_counts(report), _listed("Claims", records, verdicts=True)]
    shown: list[RenderableType] = []
    if "table" in report.summary:
        shown += _regenerated(report.summary["table"])
    if "figure" in report.summary:
        shown += _described(report.summary["figure"])
    if shown:
        return [*shown, *_beside(records)]
    if by_name:
        return _answers(records)
    if in_full:  # where something is not as printed, or what was filtered for
        amiss = [record for record in records if record.verdict != "match"]
        return [_counts(report), *_answers(amiss or records)]
    return [_counts(report), *_errata(report)]


def _errata(report: Report) -> Iterator[RenderableType]:
    """What the documents have wrong, a line each; checks that broke, with the reason."""
    if errata := records_of(report, "erratum"):
        yield _listed("Errata", errata)
    for record in records_of(report, "error"):
        yield Text(f"{record.claim} has no verdict: {record.why}", style="magenta")
    yield Text(MORE, style="dim")


def _counts(report: Report) -> Table:
    """How many claims of each document came out how."""
    table = new_table("document", title="Claims replayed", fold=["document"])
    kept = [key for key in COUNTED if key != "error" or report.summary["errors"]]
    for key in kept:
        longest_word = max(map(len, COUNTED[key].split()))
        table.add_column(COUNTED[key], justify="right", min_width=longest_word)
    documents = report.summary["documents"]
    for place, row in enumerate(count_rows(documents, kept), 1):
        table.add_row(*row, end_section=place == len(documents) > 1)
    return table


def _listed(title: str, records: Sequence[ReproduceRecord], *, verdicts: bool = False) -> Table:
    """A line a claim; what does not fit is cut."""
    heads = ["claim", *([] if is_narrow() else ["place"]), *(["verdict"] if verdicts else [])]
    table = new_table(*heads, "printed", "ours" if verdicts else "right", title=title)
    before = max((len(record.claim) for record in records), default=0) + GAP
    before += 0 if is_narrow() else PLACE + GAP
    before += VERDICT + GAP if verdicts else 0
    most = max(16, (Console(width=console_width()).width - before - 2 * GAP) // 2)
    for record in records:
        both = [Text(shortened(text, most)) for text in printed_and_ours(record)]
        place = [] if is_narrow() else [Text(shortened(place_text(record.place), PLACE))]
        verdict = [_verdict(record)] if verdicts else []
        table.add_row(Text(record.claim), *place, *verdict, *both)
    return table


def _verdict(record: ReproduceRecord) -> Text:
    return Text(WORDS[record.verdict], style=COLOURS[record.verdict])


def _answers(records: Sequence[ReproduceRecord]) -> list[RenderableType]:
    """Full answers, one block a claim."""
    return [block for record in records for block in _answer(record)]


def _beside(records: Sequence[ReproduceRecord]) -> list[RenderableType]:
    """The claims about a table or figure: matches by name, what is otherwise in full."""
    matches = [record.claim for record in records if record.verdict == "match"]
    shown = _answers([record for record in records if record.verdict != "match"])
    if matches:
        shown.append(Text(f"match: {', '.join(matches)}", style="green"))
    return shown


def _answer(record: ReproduceRecord) -> Iterator[RenderableType]:
    place = f"  {place_text(record.place)}  "
    yield Text.assemble((record.claim, "bold"), place, _verdict(record))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text in answer_lines(record):
        grid.add_row(name, Text(text))
    yield Padding(grid, (0, 0, 1, 2))


def _described(figure: Mapping[str, Any]) -> list[RenderableType]:
    """What a document says of its figure, beside what our data say."""
    headings = ("what", "in the document", "ours", "")
    table = new_table(*headings, fold=headings)
    for its in figure["described"]:
        agrees = Text("agrees", style="green") if its["agrees"] else Text("differs", style="red")
        cells = (str(its[key]) for key in ("what", "printed", "ours"))
        table.add_row(*cells, agrees)
    return [Text(f"Figure {figure['name']}: {figure['title']}", style="bold"), table]


def _regenerated(values: Mapping[str, Any]) -> list[RenderableType]:
    """The table, in parts with the row labels repeated where it is wider than the terminal."""
    parts = list(_parts(values))
    shown: list[RenderableType] = [Text(title_of(values), style="bold")]
    for names in parts:
        titles = {name: name.replace("_", " ") for name in names}
        numeric = [t for n, t in titles.items() if all(_is_number(r[n]) for r in values["rows"])]
        table = new_table(*titles.values(), right=numeric, fold=list(titles.values()))
        for row in values["rows"]:
            table.add_row(*(_cell(row[name]) for name in names))
        shown.append(table)
    return [*shown, *paragraphs(*(f" {line}" for line in notes(values)), style="dim")]


def _cell(cell: Any) -> Text:
    differs = isinstance(cell, Mapping) and cell["differs"]
    return Text(cell_text(cell), style="red" if differs else "")


def _is_number(cell: Any) -> bool:
    value = cell["printed"] if isinstance(cell, Mapping) else cell
    return value in ("", None) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _parts(values: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Columns shared out over as many tables as the terminal's width asks for."""
    widths = {name: _width(name, values["rows"]) for name in values["columns"]}
    width, labels = Console(width=console_width()).width, _labels(values)
    rest = [name for name in values["columns"] if name not in labels]
    taken, part = 0, list(labels)
    room = width - sum(widths[name] + GAP for name in labels)
    for name in rest:
        if taken and taken + widths[name] > room:
            yield part
            taken, part = 0, list(labels)
        part.append(name)
        taken += widths[name] + GAP
    yield part


def _labels(values: Mapping[str, Any]) -> list[str]:
    """The leading columns that name a row: plain values in every row, two at most."""
    labels = []
    for name in values["columns"][:2]:
        if any(isinstance(row[name], Mapping) for row in values["rows"]):
            break
        labels.append(name)
    return labels


def _width(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    longest_word = max(len(word) for word in name.replace("_", " ").split())
    return max([longest_word, *(min(MOST, len(cell_text(row[name]))) for row in rows)])
