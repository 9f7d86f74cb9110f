"""Tables of ``attnprof reproduce``: counts, errata, full answers, recomputed tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from textwrap import wrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from attnprof.record import Report, ReproduceRecord
from attnprof.render import reproduction as claims
from attnprof.render.reproduction import COLOURS, COUNTED, WORDS, page, place_text
from attnprof.render.terminal import FittedTable, Hanging

__all__ = ["page", "tables"]
#: The width from which a claim's place and verdict have columns; characters of a claim's name.
WIDE, NAME = 115, 26
MORE = "Whole answers: attnprof reproduce --claim ID, or --verdict erratum; all claims: --all."


def tables(
    report: Report, *, everything: bool = False, in_full: bool = False, by_name: bool = False
) -> Iterator[RenderableType]:
    """Yield the table or figure asked for, whole answers, every claim, or a summary."""
    records, asked = report.of(ReproduceRecord), report.summary
    amiss = [record for record in records if record.verdict != "match"]
    if everything:
        yield from _counts(asked)
        yield _Listed("Claims", records, verdicts=True)
    elif "table" in asked or "figure" in asked:
        if "table" in asked:
            yield from _recomputed_table(asked["table"])
        if "figure" in asked:
            yield from _figure_table(asked["figure"])
        yield from _answers(amiss)
        if matches := [record.claim for record in records if record.verdict == "match"]:
            yield Text(f"match: {', '.join(matches)}", style="green")
    elif by_name:
        yield from _answers(records)
    elif in_full:  # where something is not as printed, or what was filtered for
        yield from _counts(asked)
        yield from _answers(amiss or records)
    else:
        yield from _counts(asked)
        yield from _errata(records)


def _errata(records: Sequence[ReproduceRecord]) -> Iterator[RenderableType]:
    """Yield the documents' errors; then checks that failed, with the reason."""
    if errata := [record for record in records if record.verdict == "erratum"]:
        yield _Listed("Errata", errata)
    for record in records:
        if record.verdict == "error":
            yield Text(f"{record.claim} has no verdict: {record.why}", style="magenta")
    yield Text(MORE, style="dim")


def _counts(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield how many claims have which verdict: as a sentence, and by document."""
    if "answer" in summary:
        yield Text(f"{summary['answer']}.", style="bold")
    kept = [key for key in COUNTED if key != "error" or summary["errors"]]
    counted = [COUNTED[key] for key in kept]
    found = claims.count_rows(summary["documents"], kept)
    rows = [[*name.partition(" ")[::2], *counts] for name, *counts in found]
    rows[-1:-1] = [[]] * (len(rows) > 1)  # a blank line before the sums
    yield FittedTable("", "document", *counted, rows=rows, right=counted)


@dataclass(frozen=True)
class _Listed:
    """A table with a row a claim; if narrow, verdict and place stand below the claim's name."""

    title: str
    records: Sequence[ReproduceRecord]
    verdicts: bool = False

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        more = ["place", *["verdict"] * self.verdicts] if wide else []
        texts = ("printed", "ours" if self.verdicts else "right")
        rows = map(self._row, self.records, repeat(wide))
        yield FittedTable("claim", *more, *texts, rows=rows, title=self.title)

    def _row(self, record: ReproduceRecord, wide: bool) -> list[str | Text]:
        place, verdict = place_text(record.place), [_verdict(record)] * self.verdicts
        sides = claims.printed_and_ours(record)
        if wide:
            return [record.claim, place, *verdict, *sides]
        below = (Text(line, style="dim") for line in wrap(place, NAME))
        return [Text("\n").join([Text(record.claim), *verdict, *below]), *sides]


def _verdict(record: ReproduceRecord) -> Text:
    return Text(WORDS[record.verdict], style=COLOURS[record.verdict])


def _answers(records: Sequence[ReproduceRecord]) -> Iterator[RenderableType]:
    """Yield full answers, one block a claim."""
    for record in records:
        place = f"  {place_text(record.place)}  "
        yield Text.assemble((record.claim, "bold"), place, _verdict(record))
        for name, text in claims.answer_lines(record):
            yield Hanging(Text.assemble((f"  {name:<11}", "dim"), text), 13)
        yield ""


def _figure_table(figure: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a document's statements on a figure beside those of our data."""
    yield Text(f"Figure {figure['name']}: {figure['title']}", style="bold")
    said = [Text("differs", style="red"), Text("agrees", style="green")]
    rows = (
        [*(Text(str(its[key])) for key in ("what", "printed", "ours")), said[bool(its["agrees"])]]
        for its in figure["described"]
    )
    yield FittedTable("what", "in the document", "ours", "", rows=rows)


def _recomputed_table(values: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a recomputed table."""
    yield Text(claims.title_of(values), style="bold")
    rows = values["rows"]
    names, labels = values["columns"], 0
    while labels < 2 and not any(isinstance(row[names[labels]], Mapping) for row in rows):
        labels += 1
    titles = {name: name.replace("_", " ") for name in names}
    numeric = [title for n, title in titles.items() if all(_is_number(r[n]) for r in rows)]
    cells = ([_cell(row[name]) for name in names] for row in rows)
    yield FittedTable(*titles.values(), rows=cells, right=numeric, keys=max(1, labels))
    for line in claims.table_notes(values):
        yield Text(f" {line}", style="dim")


def _cell(cell: Any) -> Text:
    differs = isinstance(cell, Mapping) and cell["differs"]
    return Text(claims.cell_text(cell), style="red" if differs else "")


def _is_number(cell: Any) -> bool:
    value = cell["printed"] if isinstance(cell, Mapping) else cell
    return re.fullmatch(r"(None|-?\d+(\.\d+)?(e-?\d+)?)?", str(value)) is not None
