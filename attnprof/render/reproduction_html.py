"""A replay as one self-contained HTML page: no scripts or pictures from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.papers.regenerating import Regenerated, figure_values, table_values
from attnprof.record import Report
from attnprof.render.claim_text import WORDS, place_text, printed_and_ours, value_text
from attnprof.render.plots.documents import picture
from attnprof.render.regenerated_table import cell_text, notes, title_of
from attnprof.render.reproduction import records_of
from attnprof.render.reproduction_page import COUNTED, HEADS

TEMPLATES = Path(__file__).parent / "templates"


def reproduction_html(
    report: Report,
    tables: Sequence[Mapping[str, Any]] = (),
    figures: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page: counts, claims that can be filtered by verdict, tables and figures.

    ``tables`` and ``figures`` are their values as JSON has them, each with its ``document``;
    a figure's ``image`` is its drawing as PNG bytes or None.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        value=value_text, cell=cell_text, place=place_text, title_of=title_of, picture=_picture
    )
    rows = [{"record": r, "printed": printed, "ours": ours}
            for r in records_of(report) for printed, ours in [printed_and_ours(r)]]  # fmt: skip
    return environment.get_template("reproduction.html").render(
        report=report, rows=rows, words=WORDS, tables=tables, figures=figures,
        counted=list(zip(COUNTED, HEADS, strict=True)), notes=notes,
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
