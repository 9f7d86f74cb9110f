"""A replay in words: its claims, tables and figures on the terminal and as a Markdown page.

:func:`reproduce_tables` and :func:`reproduce_page` are the entry points; the HTML page
(:mod:`attnprof.render.reproduction`) uses the same texts.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from attnprof.papers.documents import not_made
from attnprof.record import Report, ReproduceRecord
from attnprof.record.recognition import mark
from attnprof.render.formats import filled, markdown_table
from attnprof.render.terminal import FittedTable, Hanging
from attnprof.units import MISSING, format_number, grouped

#: Words for each verdict.
WORDS = {name: name.replace("-", " ") for name in ("match", "erratum", "not-reproducible", "error")}
#: Their colours.
COLOURS = {"match": "green", "erratum": "red", "not-reproducible": "yellow", "error": "magenta"}
#: Headings of a document's statements on a figure; colours of their verdicts.
DESCRIBED, AGREES = ("what", "in the document", "ours", ""), {"agrees": "green", "differs": "red"}
#: Columns of a replay's counts: key in the summary, heading.
COUNTED = {"claims": "claims", **WORDS, "readings": "by reading"}
#: The width from which a claim's place and verdict have columns; characters of a claim's name.
WIDE, NAME = 115, 26
MORE = "Whole answers: attnprof reproduce --claim ID, or --verdict erratum; all claims: --all."
#: Sections of a document's claims: title, verdict, and the heading of our result.
SECTIONS = (
    ("Errata", "erratum", "right"),
    ("Not reproducible", "not-reproducible", "ours"),
    ("Without a verdict", "error", "ours"),
)


def count_rows(documents: Mapping[str, Any], keys: Collection[str]) -> list[list[str]]:
    """Return the counts of claims by verdict, a row a document; of several, the sums last."""
    rows = [[f"{number} {counts['title']}", *(str(counts[key]) for key in keys)]
            for number, counts in documents.items()]  # fmt: skip
    if len(rows) > 1:
        rows.append(["all", *(str(sum(x[key] for x in documents.values())) for key in keys)])
    return rows


def value_text(value: Any, *, inside: bool = False) -> str:
    """Return a number, formula, list or mapping as text, in brackets if ``inside`` another."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return format_number(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {value_text(item, inside=True)}" for name, item in value.items())
        return f"{{{text}}}" if inside else text
    if isinstance(value, (list, tuple)):
        text = ", ".join(value_text(item, inside=True) for item in value) or "none"
        return f"[{text}]" if inside else text
    return str(value)


def printed_and_ours(record: ReproduceRecord) -> tuple[str, str]:
    """Return the texts of a claim's printed value and ours.

    Mappings are shortened to the entries that differ. A statement's printed side is its own words.
    """
    if record.verdict == "error":
        return record.says, MISSING
    if isinstance(record.published, bool):
        holds = "holds" if record.ours else "does not hold"
        return record.says, holds if isinstance(record.ours, bool) else value_text(record.ours)
    printed, ours = differing_parts(record.published, record.ours)
    return value_text(printed), value_text(ours)


def differing_parts(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both mappings without equal entries; values that are equal or no mappings whole."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and set(a) == set(b) and a != b:
        pairs = {name: differing_parts(a[name], b[name]) for name in a if a[name] != b[name]}
        theirs, ours = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
        return theirs, ours
    return a, b


def place_text(place: str) -> str:
    """Return a claim's place, a table by its number instead of its file: ``Table 2``."""
    return re.sub(r"\b(\d{3}_)?table0?(\d+)(\w*\.csv)?", r"Table \2", place)


def answer_lines(record: ReproduceRecord) -> Iterator[tuple[str, str]]:
    """Yield the lines of a full answer on a claim, as name and text."""
    yield "says", record.says
    if record.verdict != "error":
        yield "published", value_text(record.published)
        yield "ours", value_text(record.ours)
        yield "verdict", f"{WORDS[record.verdict]} ({record.basis})"
        yield "how", record.how
    if record.why:
        yield "why", record.why
    if record.committed and record.committed != record.verdict:
        yield "before", f"{WORDS[record.committed]} (the verdict that ships with attnprof)"


def title_of(values: Mapping[str, Any]) -> str:
    """Return a table's title, with its number if the document has one."""
    title = str(values["title"])
    return f"Table {values['name']}: {title}" if values["name"].isdigit() else title


def cell_text(cell: Any) -> str:
    """Return the printed value and, if ours differs, ours in brackets."""
    if not isinstance(cell, Mapping):
        return value_text(cell)
    printed, ours = value_text(cell["printed"]), value_text(cell["ours"])
    if bound := cell.get("bound"):
        return f"{printed} [{bound} {ours}]"
    return f"{printed} [ours {ours}]" if cell["differs"] else printed


def count_cells(values: Mapping[str, Any], *, bounds: bool = False) -> tuple[int, int]:
    """Return how many cells were recomputed, and how many of them differ.

    With ``bounds`` the cells beside a bound are counted instead: those that differ are beyond it.
    """
    cells = [
        cell for row in values["rows"] for cell in row.values()
        if isinstance(cell, Mapping) and ("bound" in cell) == bounds
    ]  # fmt: skip
    return len(cells), sum(cell["differs"] for cell in cells)


def table_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes below a table: how many values were recomputed, and its own notes."""
    cells, unlike = count_cells(values)
    if cells:
        yield f"{cells} values made again, {unlike or 'none'} of them different from the printed."
    bounded, beyond = count_cells(values, bounds=True)
    if bounded:
        yield f"{bounded} values beside a bound, not made again, {beyond or 'none'} beyond it."
    yield from values["notes"]


def reproduce_tables(
    report: Report, *, everything: bool = False, in_full: bool = False, by_name: bool = False
) -> Iterator[RenderableType]:
    """Yield the table or figure asked for, whole answers, every claim, or a summary."""
    records, summary = report.of(ReproduceRecord), report.summary
    differing = [record for record in records if record.verdict != "match"]
    if everything:
        yield from _counts(summary)
        yield _Listed("Claims", records, verdicts=True)
    elif "table" in summary or "figure" in summary:
        if "table" in summary:
            yield from _recomputed_table(summary["table"])
        if "figure" in summary:
            yield from _figure_table(summary["figure"])
        yield from _answers(differing)
        if matches := [record.claim for record in records if record.verdict == "match"]:
            yield Text(f"match: {', '.join(matches)}", style="green")
    elif by_name:
        yield from _answers(records)
    elif in_full:  # claims that differ; if none does, the ones that were filtered
        yield from _counts(summary)
        yield from _answers(differing or records)
    else:
        yield from _counts(summary)
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
    counts = count_rows(summary["documents"], kept)
    rows = [[*name.partition(" ")[::2], *numbers] for name, *numbers in counts]
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
        rows = (self._row(record, wide=wide) for record in self.records)
        yield FittedTable("claim", *more, *texts, rows=rows, title=self.title)

    def _row(self, record: ReproduceRecord, *, wide: bool) -> list[str | Text]:
        place, verdict = place_text(record.place), [_verdict(record)] * self.verdicts
        sides = printed_and_ours(record)
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
        for name, text in answer_lines(record):
            yield Hanging(Text.assemble((f"  {name:<11}", "dim"), text), 13)
        yield ""


def _figure_table(figure: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield a document's statements on a figure, and the same of our data."""
    yield Text(f"Figure {figure['name']}: {figure['title']}", style="bold")
    table = FittedTable(*DESCRIBED)
    for *texts, verdict in described_rows(figure):
        table.add_row(*texts, Text(verdict, style=AGREES[verdict]))
    yield table


def _recomputed_table(values: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(title_of(values), style="bold")
    rows, names, labels = values["rows"], values["columns"], 0
    while labels < 2 and not any(isinstance(row[names[labels]], Mapping) for row in rows):
        labels += 1
    titles = {name: name.replace("_", " ") for name in names}
    numeric = [title for n, title in titles.items() if all(_is_number(r[n]) for r in rows)]
    cells = ([_cell(row[name]) for name in names] for row in rows)
    yield FittedTable(*titles.values(), rows=cells, right=numeric, keys=max(1, labels))
    yield from (Text(f" {line}", style="dim") for line in table_notes(values))


def _cell(cell: Any) -> Text:
    differs = isinstance(cell, Mapping) and cell["differs"]
    return Text(cell_text(cell), style="red" if differs else "")


def _is_number(cell: Any) -> bool:
    return re.fullmatch(r"(None|-?\d+(\.\d+)?(e-?\d+)?)?", str(printed_of(cell))) is not None


def printed_of(cell: Any) -> Any:
    """Return the document's value in a cell of a recomputed table."""
    return cell["printed"] if isinstance(cell, Mapping) else cell


def reproduce_page(
    report: Report, *, by_name: bool = False, linked: bool = False, **_how: object
) -> str:
    """Return the Markdown page: counts, errata, claims that are not reproducible, readings.

    ``by_name`` has whole answers instead. ``linked``: the documents' folders are beside the page.
    """
    filters = {
        "table": lambda rows, *heads: _table(heads, rows), "row": _row,
        "counts": lambda x: _table(["document", *COUNTED.values()], count_rows(x, COUNTED)),
        "read": lambda record: [
            f"`{record.claim}`", place_text(record.place), WORDS[record.verdict],
            ". ".join(dict.fromkeys((record.how, record.why))),
        ],
        "answer": answer_lines, "place": place_text, "regenerated": _table_page,
        "verdict": lambda record: WORDS[record.verdict], **FILTERS,
        "left_out": lambda number: {f"figure {n}": why for n, why in not_made(number).items()},
    }  # fmt: skip
    return filled(
        "reproduce.md", filters, by_name=by_name, linked=linked, summary=report.summary,
        records=report.of(ReproduceRecord), sections=SECTIONS, mark=mark("reproduce"),
    )  # fmt: skip


def _row(record: ReproduceRecord) -> list[str]:
    both = (  # a formula is code: its signs would be taken for emphasis
        f"`{text}`" if set(text) & set("*_^") and "`" not in text else text
        for text in printed_and_ours(record)
    )
    return [f"`{record.claim}`", place_text(record.place), *both, record.why]


def _reasons(left_out: Mapping[str, str]) -> str:
    """Return a list of tables and figures that were left out, grouped by reason."""
    reasons = grouped(left_out, left_out.__getitem__).items()
    return "\n".join(f"- {', '.join(names)}: {_escaped(why)}" for why, names in reasons)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown_table(heads, (map(_escaped, row) for row in rows)).rstrip("\n")


def _escaped(text: str) -> str:
    """Return text that Markdown shows verbatim; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|")
        if part.startswith("`")
        else re.sub(r"([*_|<>\[\]~])", r"\\\1", part)
        for part in parts
    )


def _table_page(values: Mapping[str, Any]) -> str:
    """Return a recomputed table; ours is in brackets where it differs."""
    rows = ([cell_text(row[name]) for name in values["columns"]] for row in values["rows"])
    table = _table([name.replace("_", " ") for name in values["columns"]], rows)
    below = "".join(f"\n\n{_escaped(line)}" for line in table_notes(values))
    return f"### {_escaped(title_of(values))}\n\n{table}{below}"


def described_rows(values: Mapping[str, Any]) -> list[list[str]]:
    """Return a row a statement on a figure: the document's, ours, and whether they agree."""
    return [
        [row["what"], row["printed"], row["ours"], "agrees" if row["agrees"] else "differs"]
        for row in values["described"]
    ]


def _figure(values: Mapping[str, Any], image: str | None = None) -> str:
    """Return a figure's title, its image if it was drawn, and the document's statements on it."""
    drawn = f"![{_escaped(values['title'])}]({image})\n\n" if image else ""
    rows = described_rows(values)
    table = _table(DESCRIBED, rows) if rows else ""
    return f"### Figure {values['name']}: {values['title']}\n\n{drawn}{table}"


#: Template filters that the page and the documents' folders share.
FILTERS = {"escaped": _escaped, "reasons": _reasons, "figure": _figure}
