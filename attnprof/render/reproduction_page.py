"""A replay as a page: Markdown, or one self-contained HTML file."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnprof.papers.documents import not_made
from attnprof.papers.regenerated import Regenerated, figure_values, table_values
from attnprof.record import Report, ReproduceRecord
from attnprof.record.recognition import mark
from attnprof.render.claims import (
    WORDS,
    answer_lines,
    cell_text,
    notes,
    place_text,
    printed_and_ours,
    records_of,
    title_of,
    value_text,
)
from attnprof.render.formats import filled
from attnprof.render.plots.documents import picture

COUNTED = ("match", "erratum", "not-reproducible", "error", "readings")
HEADS = ("match", "erratum", "not reproducible", "error", "by reading")
#: Sections of a document's claims: title, verdict, and the heading of what comes out here.
SECTIONS = (
    ("Errata", "erratum", "right"),
    ("Not reproducible", "not-reproducible", "ours"),
    ("Without a verdict", "error", "ours"),
)


def page(report: Report, *, by_name: bool = False, linked: bool = False, **_how: object) -> str:
    """Counts, every erratum, what is not reproducible, what was read; or whole answers.

    ``linked``: the documents' folders are beside the page.
    """
    filters = {
        "table": lambda rows, *heads: _table(heads, rows), "counts": _counts, "row": _row,
        "read": _read, "answer": answer_lines, "place": place_text, "regenerated": _regenerated,
        "verdict": lambda record: WORDS[record.verdict], **FILTERS,
        "left_out": lambda number: {f"figure {n}": why for n, why in not_made(number).items()},
    }  # fmt: skip
    return filled(
        "reproduce.md", filters, by_name=by_name, linked=linked, summary=report.summary,
        records=records_of(report), sections=SECTIONS, mark=mark("reproduce"),
    )  # fmt: skip


def _counts(documents: Mapping[str, Any]) -> str:
    keys = ("claims", *COUNTED)
    rows = [
        [f"{n} {its['title']}", *(str(its[key]) for key in keys)] for n, its in documents.items()
    ]
    if len(rows) > 1:
        rows.append(["all", *(str(sum(its[key] for its in documents.values())) for key in keys)])
    return _table(("document", "claims", *HEADS), rows)


def _row(record: ReproduceRecord) -> list[str]:
    # a formula is code, where its signs would be taken for emphasis
    both = (
        f"`{text}`" if set(text) & set("*_^") and "`" not in text else text
        for text in printed_and_ours(record)
    )
    return [f"`{record.claim}`", place_text(record.place), *both, record.why]


def _read(record: ReproduceRecord) -> list[str]:
    both = ". ".join(dict.fromkeys((record.how, record.why)))
    return [f"`{record.claim}`", place_text(record.place), WORDS[record.verdict], both]


def _reasons(left_out: Mapping[str, str]) -> str:
    """What is not made again, by its reason."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    return "\n".join(f"- {', '.join(those)}: {_escaped(why)}" for why, those in names.items())


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(map(_escaped, row)) for row in rows]
    rule = " | ".join("---" for _ in heads)
    return "\n".join(f"| {line} |" for line in (" | ".join(heads), rule, *lines))


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|")
        if part.startswith("`")
        else re.sub(r"([*_|<>\[\]~])", r"\\\1", part)
        for part in parts
    )


def _regenerated(values: Mapping[str, Any]) -> str:
    """A regenerated table; ours in brackets where it differs."""
    rows = ([cell_text(row[name]) for name in values["columns"]] for row in values["rows"])
    table = _table([name.replace("_", " ") for name in values["columns"]], rows)
    below = "".join(f"\n\n{_escaped(line)}" for line in notes(values))
    return f"### {_escaped(title_of(values))}\n\n{table}{below}"


def _figure(values: Mapping[str, Any], image: str | None = None) -> str:
    """What the document says of a figure beside ours, with the figure where it was drawn."""
    drawn = f"![{_escaped(values['title'])}]({image})\n\n" if image else ""
    rows = [
        [its["what"], its["printed"], its["ours"], "agrees" if its["agrees"] else "differs"]
        for its in values["described"]
    ]
    table = _table(("what", "in the document", "ours", ""), rows) if rows else ""
    return f"### Figure {values['name']}: {values['title']}\n\n{drawn}{table}"


#: What the pages of documents' folders write in the same way.
FILTERS = {"escaped": _escaped, "reasons": _reasons, "figure": _figure}


def reproduction_html(
    report: Report,
    tables: Sequence[Mapping[str, Any]] = (),
    figures: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page: counts, claims that can be filtered by verdict, tables and figures.

    ``tables`` and ``figures`` are their values as JSON has them, each with its ``document``;
    a figure's ``image`` is its drawing as PNG bytes or None.
    """
    rows = [{"record": r, "printed": printed, "ours": ours}
            for r in records_of(report) for printed, ours in [printed_and_ours(r)]]  # fmt: skip
    filters = {"value": value_text, "cell": cell_text, "place": place_text, "title_of": title_of,
               "picture": _picture}  # fmt: skip
    return filled(
        "reproduction.html", filters, report=report, rows=rows, words=WORDS, tables=tables,
        figures=figures, counted=list(zip(COUNTED, HEADS, strict=True)), notes=notes,
    )  # fmt: skip


def pictured(
    report: Report, made: Mapping[str, Regenerated]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tables and figures for the page: those asked for, and those of whole documents."""
    tables, figures = [], []
    number = next(iter(report.summary["documents"]), "")
    if "table" in report.summary:
        tables.append({**report.summary["table"], "document": number})
    if "figure" in report.summary:
        figures.append({**report.summary["figure"], "document": number, "image": None})
    for its, found in made.items():
        tables += [
            {**table_values(name, table), "document": its} for name, table in found.tables.items()
        ]
        for name, (figure, data) in found.figures.items():
            values = figure_values(name, figure, data)
            image = picture(its, name, data)
            figures.append({**values, "document": its, "image": image})
    return tables, figures


def _picture(image: bytes) -> str:
    return f"data:image/png;base64,{b64encode(image).decode()}"
