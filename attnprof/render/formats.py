"""Render a report in the asked format (:func:`render`): tables, JSON, CSV, Markdown or HTML.

JSON and CSV are the records as they are. Tables, pages and notes are made by a module of ``tables``
for each command (:data:`MODULES`).
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from attnprof.record import ColumnarRecords, Record, Report, record_kinds
from attnprof.record.base import heading
from attnprof.record.escapes import csv_cell, markdown_code, markdown_text, readable
from attnprof.record.recognition import written_by
from attnprof.units import format_count, format_value, is_numeric

#: Commands whose tables have a place of their own for the answer.
_PLACED = ("reproduce", "sweep", "tradeoff", "verify-formula")
#: The commands of each module of ``tables``, which has ``compare_tables``, ``check_page`` ….
MODULES = {
    "costs": ("compare", "cost", "heads", "heatmap", "list"), "crossover": ("crossover",),
    "measured": ("profile", "predict", "recommend", "calibrate", "doctor", "tradeoff"),
    "check": ("check", "baseline", "history"), "derive": ("derive", "verify_formula"),
    "model": ("model", "fit"), "reproduce": ("reproduce",),
}  # fmt: skip


def render(
    report: Report, fmt: str, *, exact: bool = False, without: Sequence[str] = (), **options: Any
) -> str:  # fmt: skip
    """Return the text of a report for a file or a pipe; ``options`` is for its command's tables.

    ``without`` are fields that CSV and Markdown have no columns for. Markdown is the records' table
    unless the command has a page of its own. Tables have short
    numbers unless ``exact``; all other formats have all digits.
    """
    if fmt in ("json", "csv"):
        return render_csv(report, without) if fmt == "csv" else report.to_json()
    from attnprof.render.terminal import digits, render_text

    view, shown = _prepared(report)
    with digits(exact=exact or fmt == "markdown"):
        if fmt == "markdown":
            page = view("page", None)
            return page(shown, **options) if page else render_markdown(shown, without=without)
        drawn = _drawn(view, shown, options)
        if fmt == "html":
            from attnprof.render.html import report_page

            return report_page(shown, drawn, view("headline", lambda _: "")(shown))
        text = render_text(drawn)
    return f"{text}{'% ' if options.get('latex') else ''}{written_by(report.command)}\n"


def print_tables(report: Report, *, exact: bool = False, **options: Any) -> None:
    """Write a report's tables to stdout: all of them, or none if one cannot be made."""
    from attnprof.render import terminal

    view, shown = _prepared(report)
    with terminal.digits(exact=exact):
        terminal.print_tables([*_drawn(view, shown, options)])


def _drawn(view: Callable[..., Any], report: Report, options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the answer in a sentence, if there is one, and the command's tables."""
    from rich.text import Text

    if (answer := report.summary.get("answer")) and report.command not in _PLACED:
        yield Text(f"{answer}\n", style="bold")
    yield from view("tables")(report, **options)


def notes(report: Report) -> Iterable[str]:
    """Return the lines that a command prints to stderr besides its tables."""
    view, shown = _prepared(report)
    lines: Iterable[str] = view("notes", lambda _: ())(shown)
    return lines


def _prepared(report: Report) -> tuple[Callable[..., Any], Report]:
    """Return a lookup of the command's ``tables``, ``page`` or ``notes``, and the report to show.

    Its texts are without control characters.
    """
    command = report.command.split()[0].replace("-", "_").replace("sweep", "profile")
    module = next(name for name, commands in MODULES.items() if command in commands)
    members = import_module(f"attnprof.render.tables.{module}")
    # columns hold numbers only
    shown = report if isinstance(report.records, ColumnarRecords) else readable(report)
    return lambda kind, *other: getattr(members, f"{command}_{kind}", *other), shown


def _columns(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the fields of a report's records, even if it has none."""
    kind: type[Record] = (
        type(report.records[0]) if report.records else record_kinds()[report.command]
    )
    return kind.columns()


def render_csv(report: Report, without: Sequence[str] = ()) -> str:
    """Return RFC 4180 text; mappings and lists are compact JSON, missing values and NaN empty.

    A text that spreadsheets would take for a formula begins with an apostrophe.
    """
    names = [name for name, _ in _columns(report) if name not in without]
    if isinstance(report.records, ColumnarRecords):
        return csv_text(names, report.records.rows())  # None is written as nothing
    return csv_text(names, ([_csv(getattr(r, name)) for name in names] for r in report.records))


def csv_text(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as RFC 4180 text under these names."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return stream.getvalue()


def _csv(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, separators=(",", ":"))
    return csv_cell(value) if isinstance(value, str) else value


def render_markdown(
    report: Report, names: Sequence[str] = (), without: Sequence[str] = ()
) -> str:  # fmt: skip
    """Return a GitHub table, numbers right-aligned, with all digits, units in the header.

    Columns that are empty in every record are left out. With ``names`` it is an excerpt: of these
    columns only, its fractions of six digits.
    """
    columns = [
        (n, m) for n, m in _columns(report)
        if _used(report, n) and n in (names or (n,)) and n not in without
    ]  # fmt: skip
    rule = ["---:" if is_numeric(meta["format"]) else "---" for _, meta in columns]
    rows = (
        [markdown_text(_markdown(getattr(record, name), meta["format"], exact=not names))
         for name, meta in columns]
        for record in report.records
    )  # fmt: skip
    return markdown_table([markdown_text(heading(*column)) for column in columns], rows, rule)


def markdown_table(
    header: Sequence[str], rows: Iterable[Iterable[str]], rule: Sequence[str] = ()
) -> str:
    """Return a GitHub table of cells that are Markdown; ``rule`` aligns its columns."""
    lines = (header, rule or ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _used(report: Report, name: str) -> bool:
    """Return whether a field has a value in any record; True for no records."""
    values = [getattr(record, name) for record in report.records]
    return not values or any(v is not None and v not in ("", {}, []) for v in values)


def _markdown(value: Any, fmt: str, *, exact: bool) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    if exact and isinstance(value, float) and math.isfinite(value):
        return f"{value:,}"
    return format_value(value, "number" if is_numeric(fmt) else fmt)


def filled(template: str, filters: Mapping[str, Any], **values: Any) -> str:
    """Return a file of ``templates`` with these values, which are escaped in HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), undefined=StrictUndefined,
        autoescape=template.endswith(".html"), trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=template.endswith(".md"),
    )  # fmt: skip
    environment.filters.update({"text": markdown_text, "code": markdown_code, **filters})
    return environment.get_template(template).render(**values)
