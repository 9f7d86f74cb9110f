"""The README of a document's folder of reports: each file with the command that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.record.recognition import mark
from attnprof.render.regenerated_table import count_bounds, count_cells
from attnprof.render.reproduction_page import escaped, figure_lines, reasons


@dataclass(frozen=True)
class Written:
    """A table or figure as its files and values; ``image`` where it is drawn."""

    data: str
    values: Mapping[str, Any]
    image: str | None = None


def folder_page(
    number: str,
    title: str,
    tables: Mapping[str, Written],
    figures: Mapping[str, Written],
    left_out: Mapping[str, str],
) -> str:
    """The whole page; ``left_out`` has what is not made again, with the reason."""
    lines = _page(number, title, tables, figures, left_out)
    return "\n".join([*lines, "", mark("reproduce")]) + "\n"


def _page(
    number: str,
    title: str,
    tables: Mapping[str, Written],
    figures: Mapping[str, Written],
    left_out: Mapping[str, str],
) -> Iterator[str]:
    yield f"# {number} {title}\n"
    yield f"`attnprof reproduce {number} --reports reports` writes this folder.\n"
    yield "- [claims.csv](claims.csv): every claim with its verdict."
    if tables:
        heads = ("table", "values made again", "different", "data", "command")
        yield f"\n## Tables\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}"
        yield from (_table_row(number, name, its) for name, its in tables.items())
    if figures:
        yield "\n## Figures"
    for name, its in figures.items():
        yield ""
        yield from figure_lines(its.values, its.image)
        again = "; `--measure` measures again" if its.values["measured"] else ""
        yield f"\nData: [{its.data}]({its.data}). `{_command(number, name, its)}`{again}"
    if left_out:
        yield "\n## Not made again\n"
        yield from reasons(left_out)


def _table_row(number: str, name: str, its: Written) -> str:
    made, differing = count_cells(its.values)
    title, data = f"{name}: {escaped(its.values['title'])}", f"[{its.data}]({its.data})"
    command = f"`attnprof reproduce {number} --table {name}`"
    bounded, beyond = count_bounds(its.values)
    again = f"{made}; {bounded} beside a bound" if bounded else f"{made}"
    different = f"{differing}; {beyond} beyond" if bounded else f"{differing}"
    return f"| {title} | {again} | {different} | {data} | {command} |"


def _command(number: str, name: str, its: Written) -> str:
    plot = f" --plot {its.image}" if its.image else ""
    return f"attnprof reproduce {number} --figure {name}{plot}"
