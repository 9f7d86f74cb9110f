"""Write claims and tables in words, and a replay as Markdown page and folder."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.papers.documents import not_made
from attnprof.papers.regenerated import Regenerated, figure_values, table_rows, table_values
from attnprof.record import Report, ReproduceRecord, write_whole
from attnprof.record.escapes import csv_cell
from attnprof.record.files import make_folder
from attnprof.record.recognition import mark
from attnprof.render.formats import csv_text, filled, markdown_table, render_csv
from attnprof.render.plots.documents import plot_figure
from attnprof.units import MISSING, format_number

#: Words for each verdict.
WORDS = {name: name.replace("-", " ") for name in ("match", "erratum", "not-reproducible", "error")}
#: Their colours.
COLOURS = {"match": "green", "erratum": "red", "not-reproducible": "yellow", "error": "magenta"}
#: Columns of a replay's counts: key in the summary, heading.
COUNTED = {"claims": "claims", **WORDS, "readings": "by reading"}


def count_rows(documents: Mapping[str, Any], keys: Collection[str]) -> list[list[str]]:
    """Return the counts of claims by verdict, a row a document; of several, the sums last."""
    rows = [[f"{n} {its['title']}", *(str(its[key]) for key in keys)]
            for n, its in documents.items()]  # fmt: skip
    if len(rows) > 1:
        rows.append(["all", *(str(sum(its[key] for its in documents.values())) for key in keys)])
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
        text = ", ".join(f"{name}: {value_text(its, inside=True)}" for name, its in value.items())
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
    """Return both values without what they share; whole if they are equal or no mappings."""
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
    made, differing = count_cells(values)
    if made:
        yield f"{made} values made again, {differing or 'none'} of them different from the printed."
    bounded, beyond = count_cells(values, bounds=True)
    if bounded:
        yield f"{bounded} values beside a bound, not made again, {beyond or 'none'} beyond it."
    yield from values["notes"]


#: Sections of a document's claims: title, verdict, and the heading of our result.
SECTIONS = (
    ("Errata", "erratum", "right"),
    ("Not reproducible", "not-reproducible", "ours"),
    ("Without a verdict", "error", "ours"),
)


def page(report: Report, *, by_name: bool = False, linked: bool = False, **_how: object) -> str:
    """Return the Markdown page: counts, errata, claims that are not reproducible, readings.

    ``by_name`` has whole answers instead. ``linked``: the documents' folders are beside the page.
    """
    filters = {
        "table": lambda rows, *heads: _table(heads, rows), "row": _row,
        "counts": lambda its: _table(
            ["document", *COUNTED.values()], count_rows(its, COUNTED)
        ),
        "read": lambda record: [
            f"`{record.claim}`", place_text(record.place), WORDS[record.verdict],
            ". ".join(dict.fromkeys((record.how, record.why))),
        ],
        "answer": answer_lines, "place": place_text, "regenerated": _regenerated,
        "verdict": lambda record: WORDS[record.verdict], **FILTERS,
        "left_out": lambda number: {f"figure {n}": why for n, why in not_made(number).items()},
    }  # fmt: skip
    return filled(
        "reproduce.md", filters, by_name=by_name, linked=linked, summary=report.summary,
        records=report.of(ReproduceRecord), sections=SECTIONS, mark=mark("reproduce"),
    )  # fmt: skip


def _row(record: ReproduceRecord) -> list[str]:
    # a formula is code, where its signs would be taken for emphasis
    both = (
        f"`{text}`" if set(text) & set("*_^") and "`" not in text else text
        for text in printed_and_ours(record)
    )
    return [f"`{record.claim}`", place_text(record.place), *both, record.why]


def _reasons(left_out: Mapping[str, str]) -> str:
    """Return a list of what was left out, grouped by reason."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    return "\n".join(f"- {', '.join(those)}: {_escaped(why)}" for why, those in names.items())


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


def _regenerated(values: Mapping[str, Any]) -> str:
    """Return a recomputed table; ours is in brackets where it differs."""
    rows = ([cell_text(row[name]) for name in values["columns"]] for row in values["rows"])
    table = _table([name.replace("_", " ") for name in values["columns"]], rows)
    below = "".join(f"\n\n{_escaped(line)}" for line in table_notes(values))
    return f"### {_escaped(title_of(values))}\n\n{table}{below}"


def _figure(values: Mapping[str, Any], image: str | None = None) -> str:
    """Return what the document says of a figure beside ours, and the image if it was drawn."""
    drawn = f"![{_escaped(values['title'])}]({image})\n\n" if image else ""
    rows = [
        [its["what"], its["printed"], its["ours"], "agrees" if its["agrees"] else "differs"]
        for its in values["described"]
    ]
    table = _table(("what", "in the document", "ours", ""), rows) if rows else ""
    return f"### Figure {values['name']}: {values['title']}\n\n{drawn}{table}"


#: Template filters that all documents' pages share.
FILTERS = {"escaped": _escaped, "reasons": _reasons, "figure": _figure}


def existing_files(folder: Path, numbers: Sequence[str]) -> list[Path]:
    """Return the files in a folder of reports that a replay would write."""
    names = ("README.md", "claims.csv", "table*.csv", "figure*.csv", "figure*.png")
    paths = [path for number in numbers for name in names
           for path in sorted((folder / number).glob(name))]  # fmt: skip
    return [*sorted(folder.glob("reproduction.md")), *paths]


def write_document(number: str, report: Report, made: Regenerated, folder: Path) -> dict[str, str]:
    """Write one document's folder; return what failed, with the reason."""
    make_folder(folder)
    failed, tables, figures = dict(made.failed), {}, {}
    for name, table in made.tables.items():
        values, data = table_values(name, table), f"table{_padded(name)}.csv"
        write_whole(folder / data, _rows_as_csv(table_rows(values)))
        tables[name] = SimpleNamespace(data=data, values=values)
    for name, (figure, found) in made.figures.items():
        values, stem = figure_values(name, figure, found), f"figure{_padded(name)}"
        write_whole(folder / f"{stem}.csv", _rows_as_csv(values["rows"]))
        image: str | None = f"{stem}.png"
        try:
            plot_figure(number, name, found, folder / f"{stem}.png")
        except AttnprofError as error:
            image, failed[f"figure {name}, drawn"] = None, str(error)
        figures[name] = SimpleNamespace(data=f"{stem}.csv", values=values, image=image)
    of_document = [record for record in report.of(ReproduceRecord) if record.document == number]
    write_whole(folder / "claims.csv", render_csv(Report(report.command, of_document)))
    left_out = {f"figure {name}": why for name, why in made.not_made.items()} | failed
    readme = filled(
        "folder.md", {**FILTERS, "cells": count_cells}, number=number, tables=tables,
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
    texts = (
        [csv_cell(cell) if isinstance(cell, str) else cell for cell in map(row.get, names)]
        for row in rows
    )
    return csv_text(names, texts)
