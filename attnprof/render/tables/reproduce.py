"""What ``attnprof reproduce`` shows: counts, errata, full answers, regenerated tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.record import Report, ReproduceRecord
from attnprof.render import claims
from attnprof.render.claims import COUNTED, WORDS, place_text
from attnprof.render.reproduction import page
from attnprof.render.terminal import GAP, is_narrow, line_width, new_table

__all__ = ["page", "tables"]
COLOURS = {"match": "green", "erratum": "red", "not-reproducible": "yellow", "error": "magenta"}
#: Letters of the columns of a list.
PLACE, VERDICT = 24, len("not reproducible")
#: A column of long texts folds; it takes at most this many letters for sharing out the width.
MOST = 30
MORE = "Whole answers: attnprof reproduce --claim ID, or --verdict erratum; all claims: --all."


def tables(
    report: Report, *, everything: bool = False, in_full: bool = False, by_name: bool = False
) -> Iterator[RenderableType]:
    """A table or figure asked for, whole answers, every claim, or a summary."""
    records, asked = report.of(ReproduceRecord), report.summary
    amiss = [record for record in records if record.verdict != "match"]
    if everything:
        yield _counts(asked)
        yield _listed("Claims", records, verdicts=True)
    elif "table" in asked or "figure" in asked:
        if "table" in asked:
            yield from _regenerated(asked["table"])
        if "figure" in asked:
            yield from _described(asked["figure"])
        yield from _answers(amiss)
        if matches := [record.claim for record in records if record.verdict == "match"]:
            yield Text(f"match: {', '.join(matches)}", style="green")
    elif by_name:
        yield from _answers(records)
    elif in_full:  # where something is not as printed, or what was filtered for
        yield _counts(asked)
        yield from _answers(amiss or records)
    else:
        yield _counts(asked)
        yield from _errata(records)


def _errata(records: Sequence[ReproduceRecord]) -> Iterator[RenderableType]:
    """What the documents have wrong, a line each; checks that broke, with the reason."""
    if errata := [record for record in records if record.verdict == "erratum"]:
        yield _listed("Errata", errata)
    for record in records:
        if record.verdict == "error":
            yield Text(f"{record.claim} has no verdict: {record.why}", style="magenta")
    yield Text(MORE, style="dim")


def _counts(summary: Mapping[str, Any]) -> Table:
    """How many claims of each document came out how."""
    table = new_table("document", title="Claims replayed", fold=["document"])
    kept = [key for key in COUNTED if key != "error" or summary["errors"]]
    for key in kept:
        longest_word = max(map(len, COUNTED[key].split()))
        table.add_column(COUNTED[key], justify="right", min_width=longest_word)
    documents = summary["documents"]
    for place, row in enumerate(claims.count_rows(documents, kept), 1):
        table.add_row(*row, end_section=place == len(documents) > 1)
    return table


def _listed(title: str, records: Sequence[ReproduceRecord], *, verdicts: bool = False) -> Table:
    """A line a claim; what does not fit is cut."""
    places = not is_narrow()
    table = new_table(
        "claim",
        *["place"] * places,
        *["verdict"] * verdicts,
        "printed",
        "ours" if verdicts else "right",
        title=title,
    )
    before = max((len(record.claim) for record in records), default=0) + GAP
    before += places * (PLACE + GAP) + verdicts * (VERDICT + GAP)
    most = max(16, (line_width() - before - 2 * GAP) // 2)
    for record in records:
        place = [Text(_shortened(place_text(record.place), PLACE))] * places
        both = [Text(_shortened(text, most)) for text in claims.printed_and_ours(record)]
        table.add_row(Text(record.claim), *place, *[_verdict(record)] * verdicts, *both)
    return table


def _shortened(text: str, most: int) -> str:
    """A text of at most so many letters, with a mark where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _verdict(record: ReproduceRecord) -> Text:
    return Text(WORDS[record.verdict], style=COLOURS[record.verdict])


def _answers(records: Sequence[ReproduceRecord]) -> Iterator[RenderableType]:
    """Full answers, one block a claim."""
    for record in records:
        place = f"  {place_text(record.place)}  "
        yield Text.assemble((record.claim, "bold"), place, _verdict(record))
        grid = Table.grid(padding=(0, GAP))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, text in claims.answer_lines(record):
            grid.add_row(name, Text(text))
        yield Padding(grid, (0, 0, 1, 2))


def _described(figure: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What a document says of its figure, beside what our data say."""
    yield Text(f"Figure {figure['name']}: {figure['title']}", style="bold")
    headings = ("what", "in the document", "ours", "")
    table = new_table(*headings, fold=headings)
    for its in figure["described"]:
        agrees = Text("agrees", style="green") if its["agrees"] else Text("differs", style="red")
        table.add_row(*(str(its[key]) for key in ("what", "printed", "ours")), agrees)
    yield table


def _regenerated(values: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The table, in parts with the row labels repeated where it is wider than the terminal."""
    yield Text(claims.title_of(values), style="bold")
    rows = values["rows"]
    for names in _parts(values):
        titles = {name: name.replace("_", " ") for name in names}
        numeric = [title for n, title in titles.items() if all(_is_number(r[n]) for r in rows)]
        cells = ([_cell(row[name]) for name in names] for row in rows)
        yield new_table(*titles.values(), rows=cells, right=numeric, fold=[*titles.values()])
    for line in claims.notes(values):
        yield Text(f" {line}", style="dim")


def _cell(cell: Any) -> Text:
    differs = isinstance(cell, Mapping) and cell["differs"]
    return Text(claims.cell_text(cell), style="red" if differs else "")


def _is_number(cell: Any) -> bool:
    value = cell["printed"] if isinstance(cell, Mapping) else cell
    return value in ("", None) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _parts(values: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Columns shared out over as many tables as the terminal's width asks for.

    Each has the leading columns that name a row: plain values in every row, two at most.
    """
    rows, labels = values["rows"], list[str]()
    for name in values["columns"][:2]:
        if any(isinstance(row[name], Mapping) for row in rows):
            break
        labels.append(name)
    room, taken, part = line_width(), 0, list(labels)
    for name in values["columns"]:
        longest_word = max(map(len, name.replace("_", " ").split()))
        width = max([longest_word, *(min(MOST, len(claims.cell_text(r[name]))) for r in rows)])
        if name in labels:
            room -= width + GAP
            continue
        if taken and taken + width > room:
            yield part
            taken, part = 0, list(labels)
        part.append(name)
        taken += width + GAP
    yield part
