"""Write a report as one HTML page that needs no network: text, tables, formulas, a figure.

Every command's items for the terminal become blocks of one template, ``report.html``:
:func:`report_page`. ``reproduce`` has blocks of its own, and calls :func:`page`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text

from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.render.formats import filled
from attnprof.render.mathml import formula_html, sentence_html
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, render_text

#: Rows of a table above which it can be folded.
MOST_ROWS = 40
#: Styles of the terminal that are badges on a page.
_BADGES = {"green", "red", "yellow", "magenta", "cyan"}


@dataclass(frozen=True)
class Paragraph:
    """A text; ``note`` makes it small."""

    text: str
    note: bool = False
    kind, title = "paragraph", ""


@dataclass(frozen=True)
class PageTable:
    """A table of texts or markup; the first ``keys`` cells of a row are its headings."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Sequence[bool]
    keys: int = 1
    note: str = ""
    kind = "table"


@dataclass(frozen=True)
class Figure:
    """A figure as an element, its caption, and ``alt``, which says what is seen on it."""

    caption: str
    element: str
    alt: str
    kind, title = "figure", ""


@dataclass(frozen=True)
class Entry:
    """A sentence that unfolds to named lines, with badges and an id of its own."""

    id: str
    text: str
    badges: Sequence[Markup]
    short: Any
    lines: Sequence[tuple[str, Any]]
    kind, title = "entry", ""


@dataclass(frozen=True)
class Fold:
    """Blocks below a heading, which a click shows unless they are ``open``."""

    title: str
    blocks: Sequence[Any]
    open: bool = False
    kind = "fold"


@dataclass(frozen=True)
class Section:
    """Blocks below a heading that the contents name; the first has none."""

    title: str
    blocks: list[Any] = field(default_factory=list)


def page(
    report: Report, title: str, answer: str, sections: Sequence[Section],
    verdicts: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Return the page: the answer first, contents and search that stay in view, the sections.

    ``verdicts`` are badges by which entries can be hidden: their classes, and their words.
    """
    return filled(
        "report.html", {"sentence": sentence_html}, report=report, title=title, answer=answer,
        sections=sections, verdicts=verdicts or {},
    )  # fmt: skip


def report_page(report: Report, items: Iterable[RenderableType]) -> str:
    """Return the page of a report whose items for the terminal are given."""
    phases = report.summary.get("phases") or {}
    answers = [report.summary.get("answer"), *(its.get("answer") for its in phases.values())]
    answer = str(next(filter(None, answers), "")).strip()
    sections = _sections(items, answer)
    if figure := _figure(report, answer):
        sections[0].blocks.insert(0, figure)
    name = str(report.summary.get("name") or "")
    return page(report, f"{report.command} {name}".strip(), answer, sections)


def badge(text: str, look: str) -> Markup:
    """Return a badge: a word in a frame, of the class ``look``."""
    return Markup('<span class="badge {}">{}</span>').format(look, text)


def _sections(items: Iterable[RenderableType], answer: str) -> list[Section]:
    """Return the items as blocks; a bold text, unless it is the answer, begins a section."""
    sections = [Section("")]
    for item in items:
        text = item.text if isinstance(item, Hanging) else item
        if isinstance(item, FittedTable):
            sections[-1].blocks.append(_table(item))
        elif not isinstance(text, Text | str):
            sections[-1].blocks.append(Paragraph(render_text([item])))
        elif (plain := str(text).strip()) and plain.rstrip(".") != answer.rstrip("."):
            style = str(text.style) if isinstance(text, Text) else ""
            if style == "bold":
                sections.append(Section(plain))
            else:  # a plain string is to be copied as it is
                shown = Markup.escape(plain) if isinstance(text, str) else plain
                sections[-1].blocks.append(Paragraph(shown, note=style == "dim"))
    return sections


def _table(drawn: FittedTable) -> PageTable | Fold:
    places = drawn.shown_columns()
    rows = [[_cell(row[n]) for n in places] for row in drawn.rows if any(row)]
    table = PageTable(
        drawn.title or "", [drawn.headings[n] for n in places], rows,
        [drawn.right[n] for n in places], drawn.keys, drawn.caption or "",
    )  # fmt: skip
    if len(rows) <= MOST_ROWS:
        return table
    return Fold(f"{table.title or 'table'}: {len(rows):,} rows", [table], open=True)


def _cell(text: Text) -> Any:
    if isinstance(text, FormulaText):
        return formula_html(text.plain)
    return badge(text.plain, str(text.style)) if text.style in _BADGES else text.plain


def _figure(report: Report, answer: str) -> Figure | None:
    """Return the figure of a command that has one, unless the report has nothing to draw."""
    from attnprof.render.plots import SEEN, report_figure

    try:
        drawn = report_figure(report)
    except RequestError:  # no formula in N, points measured twice: the tables say it
        return None
    seen = SEEN.get(report.command, "")
    return Figure(seen, drawn, f"{seen}. {answer}".strip()) if drawn else None
