"""A document's table on the terminal: as printed, with ours beside it where the two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from attnprof.render.claim_text import value_text
from attnprof.render.terminal import console_width, new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

GAP = 2
#: A column of long texts folds; it takes at most this many letters for sharing out the width.
MOST = 30


def regenerated_table(values: Mapping[str, Any]) -> list[RenderableType]:
    """The table, in parts with the row labels repeated where it is wider than the terminal."""
    parts = list(_parts(values))
    shown: list[RenderableType] = [Text(title_of(values), style="bold")]
    for names in parts:
        table = new_table()
        for name in names:
            numeric = all(_is_number(row[name]) for row in values["rows"])
            table.add_column(name.replace("_", " "), justify="right" if numeric else "left",
                             overflow="fold")  # fmt: skip
        for row in values["rows"]:
            table.add_row(*(_cell(row[name]) for name in names))
        shown.append(table)
    return [*shown, *(Text(f" {line}", style="dim") for line in notes(values))]


def title_of(values: Mapping[str, Any]) -> str:
    """What a table is called: by its number where the document numbers it."""
    return f"Table {values['name']}: {values['title']}" if values["name"].isdigit() else str(
        values["title"])  # fmt: skip


def cell_text(cell: Any) -> str:
    """What is printed, and ours in brackets where it says something else."""
    if not isinstance(cell, Mapping):
        return value_text(cell)
    printed, ours = value_text(cell["printed"]), value_text(cell["ours"])
    if bound := cell.get("bound"):
        return f"{printed} [{bound} {ours}]"
    return f"{printed} [ours {ours}]" if cell["differs"] else printed


def count_cells(values: Mapping[str, Any]) -> tuple[int, int]:
    """How many cells were recomputed, and how many of them differ; bounds are not among them."""
    cells = [cell for cell in _recomputed(values) if "bound" not in cell]
    return len(cells), sum(cell["differs"] for cell in cells)


def count_bounds(values: Mapping[str, Any]) -> tuple[int, int]:
    """How many cells stand beside a bound, and how many of them are beyond it."""
    cells = [cell for cell in _recomputed(values) if "bound" in cell]
    return len(cells), sum(cell["differs"] for cell in cells)


def _recomputed(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for row in values["rows"]:
        yield from (cell for cell in row.values() if isinstance(cell, Mapping))


def notes(values: Mapping[str, Any]) -> Iterator[str]:
    """What is said below a table: how much of it was made again, and its own notes."""
    made, differing = count_cells(values)
    if made:
        yield f"{made} values made again, {differing or 'none'} of them different from the printed."
    bounded, beyond = count_bounds(values)
    if bounded:
        yield f"{bounded} values beside a bound, not made again, {beyond or 'none'} beyond it."
    yield from values["notes"]


def _cell(cell: Any) -> Text:
    differs = isinstance(cell, Mapping) and cell["differs"]
    return Text(cell_text(cell), style="red" if differs else "")


def _is_number(cell: Any) -> bool:
    value = cell["printed"] if isinstance(cell, Mapping) else cell
    return value in ("", None) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _parts(values: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Columns shared out over as many tables as the terminal's width asks for."""
    widths = {name: _width(name, values["rows"]) for name in values["columns"]}
    width, labels = Console(width=console_width()).width, _labels(values)
    rest = [name for name in values["columns"] if name not in labels]
    taken, part = 0, list(labels)
    room = width - sum(widths[name] + GAP for name in labels)
    for name in rest:
        if taken and taken + widths[name] > room:
            yield part
            taken, part = 0, list(labels)
        part.append(name)
        taken += widths[name] + GAP
    yield part


def _labels(values: Mapping[str, Any]) -> list[str]:
    """The leading columns that name a row: plain values in every row, two at most."""
    labels = []
    for name in values["columns"][:2]:
        if any(isinstance(row[name], Mapping) for row in values["rows"]):
            break
        labels.append(name)
    return labels


def _width(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    longest_word = max(len(word) for word in name.replace("_", " ").split())
    return max([longest_word, *(min(MOST, len(cell_text(row[name]))) for row in rows)])
