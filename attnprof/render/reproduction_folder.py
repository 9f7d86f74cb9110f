"""A replay as a folder of reports: the page, and per document its tables, figures and claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.papers.regenerated import Regenerated, figure_values, table_rows, table_values
from attnprof.record import Report, write_whole
from attnprof.record.escapes import csv_cell
from attnprof.record.files import why_of
from attnprof.record.recognition import mark
from attnprof.render.claims import count_bounds, count_cells, records_of
from attnprof.render.formats import filled, render_csv
from attnprof.render.plots.documents import plot_figure
from attnprof.render.reproduction_page import FILTERS, page


def make_folder(folder: Path) -> None:
    """A folder to write in; :class:`RequestError` where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot write --reports {folder}: {why_of(error)}; give a folder that can be made"
        ) from error


def files_there(folder: Path, numbers: Sequence[str]) -> list[Path]:
    """What is in a folder of reports under names that a replay writes."""
    names = ("README.md", "claims.csv", "table*.csv", "figure*.csv", "figure*.png")
    own = [path for number in numbers for name in names
           for path in sorted((folder / number).glob(name))]  # fmt: skip
    return [*sorted(folder.glob("reproduction.md")), *own]


def write_page(report: Report, folder: Path) -> None:
    """``reproduction.md``: the one page about all documents replayed."""
    write_whole(folder / "reproduction.md", page(report, linked=True))


def write_document(number: str, report: Report, made: Regenerated, folder: Path) -> dict[str, str]:
    """One document's folder; gives what could not be made or drawn, with the reason."""
    make_folder(folder)
    failed = dict(made.failed)
    tables = {}
    for name, table in made.tables.items():
        values, data = table_values(name, table), f"table{_padded(name)}.csv"
        write_whole(folder / data, rows_as_csv(table_rows(values)))
        tables[name] = Written(data, values)
    figures = {}
    for name, (figure, found) in made.figures.items():
        values, stem = figure_values(name, figure, found), f"figure{_padded(name)}"
        write_whole(folder / f"{stem}.csv", rows_as_csv(values["rows"]))
        image: str | None = f"{stem}.png"
        try:
            plot_figure(number, name, found, folder / f"{stem}.png")
        except AttnprofError as error:
            image, failed[f"figure {name}, drawn"] = None, str(error)
        figures[name] = Written(f"{stem}.csv", values, image)
    own = [record for record in records_of(report) if record.document == number]
    write_whole(folder / "claims.csv", render_csv(Report(report.command, own)))
    title = report.summary["documents"][number]["title"]
    left_out = {f"figure {name}": why for name, why in made.not_made.items()} | failed
    filters = {**FILTERS, "cells": count_cells, "bounds": count_bounds}
    readme = filled(
        "folder.md", filters, number=number, title=title, tables=tables, figures=figures,
        left_out=left_out, mark=mark("reproduce"),
    )  # fmt: skip
    write_whole(folder / "README.md", readme)
    return failed


def _padded(name: str) -> str:
    """Numbers sort as files: ``2`` is ``02``."""
    return f"{int(name):02d}" if name.isdigit() else f"_{name}"


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of all of them, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: csv_cell(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    )
    return stream.getvalue()


@dataclass(frozen=True)
class Written:
    """A table or figure as its files and values; ``image`` where it is drawn."""

    data: str
    values: Mapping[str, Any]
    image: str | None = None
