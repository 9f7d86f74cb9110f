"""Write HTML pages that need no network: a report's text, tables and figure; the explorer.

Every command's items for the terminal become blocks of one template, ``report.html``:
:func:`report_page`. ``reproduce`` has blocks of its own, and calls :func:`page`. Formulas are set
as MathML as they are written: nothing is evaluated or reordered. A sum is one ``<math>`` a term, so
that a narrow page breaks it between terms. What is no formula stays code.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text

from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.render.formats import filled
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, render_text

#: Rows of a table above which it can be folded.
MOST_ROWS = 40
#: Commands whose answer begins with a word, which gets a capital; others begin with a name.
_SENTENCES = ("fit", "model", "recommend")
#: Styles of the terminal that are badges on a page.
_BADGES = {"green", "red", "yellow", "magenta", "cyan"}
_PARTS = {
    "plot_style": "uplot/uPlot.min.css", "plot_script": "uplot/uPlot.iife.min.js",
    "plot_licence": "uplot/LICENSE", "style": "explorer.css", "script": "explorer.js",
}  # fmt: skip
#: Words that may stand before a formula.
_WORDS = re.compile(r"^((?:at least|with even routing,) )?(.*)$", re.DOTALL)
#: Signs of a formula.
_SIGNED = re.compile(r"\w\*|\w/\w|\^|sqrt\(")
_FACTOR = r"[\w.]+(?:\*\*?(?:[\w.]+|\([^()]*\)))+"
_IN_SENTENCE = re.compile(rf"((?<![\w*]){_FACTOR}(?: [+-] {_FACTOR})*)")
#: How strongly the place of an expression binds.
_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4
_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "−", ast.Lt: "&lt;", ast.LtE: "≤", ast.Gt: "&gt;", ast.GtE: "≥",
    ast.Eq: "=", ast.NotEq: "≠",
}  # fmt: skip
#: Functions with brackets of their own.
_BRACKETS = {"ceiling": "⌈⌉", "floor": "⌊⌋", "Abs": "||"}


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
    """A figure as an element, its caption, and ``alt``, the text for readers who cannot see it."""

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


def report_page(report: Report, items: Iterable[RenderableType], answer: str = "") -> str:
    """Return the page of a report whose items for the terminal are given.

    It begins with the report's own answer, else with ``answer``.
    """
    phases = report.summary.get("phases") or {}
    answers = [report.summary.get("answer"), *(phase.get("answer") for phase in phases.values())]
    answer = str(next(filter(None, answers), answer)).strip()
    sections = _sections(items, answer)
    if figure := _figure(report, answer):
        sections[0].blocks.insert(0, figure)
    if report.command in _SENTENCES:
        answer = answer[:1].upper() + answer[1:]
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
    from attnprof.render.plots import DESCRIPTIONS, report_figure

    try:
        drawn = report_figure(report)
    except RequestError:  # no formula in N, points measured twice: the tables say it
        return None
    caption = DESCRIPTIONS.get(report.command, "")
    return Figure(caption, drawn, f"{caption}. {answer}".strip()) if drawn else None


def render_explorer(data: Mapping[str, Any], version: str) -> str:
    """Return the page of the data that :func:`attnprof.crossovers.explorer.page_data` returns."""
    folder = Path(__file__).parent / "templates"
    parts = {name: (folder / file).read_text(encoding="utf-8") for name, file in _PARTS.items()}
    return filled("explorer.html", {}, **parts, **data, version=version)


def formula_html(text: str) -> Markup:
    """Return ``4*N**2*d`` as MathML, each term of a sum an element; a ``<code>`` if it is none."""
    before, formula = _WORDS.fullmatch(text).groups()  # type: ignore[union-attr] # fits any text
    try:
        tree = ast.parse(formula.strip().replace("^", "**"), mode="eval").body
        terms = _pieces(tree)
    except (SyntaxError, ValueError, KeyError, MemoryError, RecursionError):
        signed = _SIGNED.search(text)
        return Markup("<code>{}</code>").format(text) if signed else Markup.escape(text)
    # names are escaped, all else is made here
    shown = Markup(" ".join(f"<math>{term}</math>" for term in terms))  # noqa: S704
    return Markup('{}<span class="formula" title="{}">{}</span>').format(
        before or "", formula, shown
    )


def value_html(text: str) -> Markup:
    """Return a text as MathML if it is a formula with signs of one; else as it is."""
    html = formula_html(text) if _SIGNED.search(text) else Markup()
    return html if "<math>" in html else Markup.escape(text)


def sentence_html(text: str) -> Markup:
    """Return a sentence with the formulas in it set; markup stays as it is."""
    if isinstance(text, Markup):
        return text
    parts = _IN_SENTENCE.split(text)
    shown = [value_html(part) if place % 2 else part for place, part in enumerate(parts)]
    return Markup("").join(shown)


def _pieces(tree: ast.expr) -> list[str]:
    """Return a sum's terms, a list's or a maximum's members: a line may break between them."""
    match tree:
        case ast.Call(func=ast.Name(id="Max" | "Min" as name), args=[_, _, *_] as args):
            ends = [",", *[","] * (len(args) - 2), ")"]
            sign = '<mo stretchy="false">{}</mo>'.format  # the brackets stand in two elements
            inner = [f"{_set(a)}{sign(end)}" for a, end in zip(args, ends, strict=True)]
            return [f"{_name(name.lower())}{sign('(')}{inner[0]}", *inner[1:]]
        case ast.Tuple(elts=[_, *_] as parts):
            return [*(f"{_set(part)}<mo>,</mo>" for part in parts[:-1]), _set(parts[-1])]
    (_, first), *rest = _terms(tree)
    signed = (f'<mo form="infix">{sign}</mo>{_set(term, _PRODUCT)}' for sign, term in rest)
    return [_set(first), *signed]


def _terms(tree: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the terms of a sum with their signs, in order; its left side may be very deep."""
    terms: list[tuple[str, ast.expr]] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        terms.append((_SIGNS[type(tree.op)], tree.right))
        tree = tree.left
    return [("", tree), *reversed(terms)]


def _set(tree: ast.expr, level: int = 0) -> str:
    """Return an expression's MathML, in brackets if it binds less than its place (``level``)."""
    inner, binds = _operation(tree) if isinstance(tree, ast.BinOp) else _simple(tree)
    return _bracketed(inner) if level > binds else inner


def _operation(tree: ast.BinOp) -> tuple[str, int]:
    """Return an operation's MathML, and how strongly it binds."""
    match tree.op:
        case ast.Add() | ast.Sub():
            (_, first), *rest = _terms(tree)
            terms = (f"<mo>{sign}</mo>{_set(term, _PRODUCT)}" for sign, term in rest)
            return f"{_set(first, _SUM)}{''.join(terms)}", _SUM
        case ast.Mult():
            return _product(tree), _PRODUCT
        case ast.Div() | ast.FloorDiv() as op:
            parts = f"<mfrac>{_row(_set(tree.left))}{_row(_set(tree.right))}</mfrac>"
            return (
                (parts, _PRODUCT) if isinstance(op, ast.Div) else (_bracketed(parts, "⌊⌋"), _ATOM)
            )
        case ast.Pow():
            base = _row(_set(tree.left, _ATOM))
            return f"<msup>{base}{_row(_set(tree.right))}</msup>", _POWER
        case ast.Mod():
            return f"{_set(tree.left, _POWER)}<mo>mod</mo>{_set(tree.right, _POWER)}", 0
    raise ValueError(f"no formula: {ast.dump(tree)}")


def _simple(tree: ast.expr) -> tuple[str, int]:
    """Return the MathML of a number, name, call, sign or comparison, and how strongly it binds."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return f"<mn>{value}</mn>", _ATOM
        case ast.Name(id=name):
            return _name(name), _ATOM
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, args), _ATOM
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"<mo>−</mo>{_set(operand, _PRODUCT)}", _SUM
        case ast.Compare(left=first, ops=ops, comparators=others):
            rest = zip(ops, others, strict=True)
            sides = (f"<mo>{_SIGNS[type(op)]}</mo>{_set(side)}" for op, side in rest)
            return f"{_set(first)}{''.join(sides)}", 0
        case ast.Tuple(elts=parts):
            return "<mo>,</mo>".join(map(_set, parts)), 0
    raise ValueError(f"no formula: {ast.dump(tree)}")


def _product(tree: ast.expr) -> str:
    factors: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        factors.append(tree.right)
        tree = tree.left
    text = _set(tree, _PRODUCT)
    for factor in reversed(factors):
        right = _set(factor, _POWER if isinstance(factor, ast.BinOp) else _PRODUCT)
        # 2·3 is not 23, nor chunk·N a name
        word = text.endswith("</mtext>")
        dot = word or re.match(r"(<msup>|<mrow>)*(<mn>|<mtext>)", right)
        text += f"<mo>{'·' if dot else '&#x2062;'}</mo>{right}"
    return text


def _call(name: str, args: list[ast.expr]) -> str:
    inner = "<mo>,</mo>".join(map(_set, args))
    if name == "sqrt":
        return f"<msqrt>{inner}</msqrt>"
    if name in _BRACKETS:
        return _bracketed(inner, _BRACKETS[name])
    return f"{_name(name.lower() if name in ('Max', 'Min') else name)}{_bracketed(inner)}"


def _name(name: str) -> str:
    base, _, index = name.strip("_").partition("_")
    if index:
        return f"<msub><mi>{escape(base)}</mi><mtext>{escape(index)}</mtext></msub>"
    tag = "mi" if len(name) == 1 else "mtext"
    return f"<{tag}>{escape(name)}</{tag}>"


def _row(inner: str) -> str:
    return f"<mrow>{inner}</mrow>"


def _bracketed(inner: str, pair: str = "()") -> str:
    return _row(f"<mo>{pair[0]}</mo>{inner}<mo>{pair[1]}</mo>")
