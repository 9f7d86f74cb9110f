"""The tables of ``attnprof compare``: one a length, the winner marked in each column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import CompareRecord, Report
from attnprof.render.terminal import (
    is_narrow,
    new_table,
    paragraphs,
    quantity_text,
    quantity_value,
    workload_text,
)

WON = "*"
CAPTION = (
    f"{WON} lowest of its column. FLOPs as executed, masked entries included; operations as "
    "defined (002: k-1 additions a dot product). Peak: increment over what was live before "
    "the call. State: what a decoder keeps after this many tokens."
)
#: Columns that fit a terminal of 80 characters; the others follow in a second table.
NARROW_COLUMNS = 4


def tables(report: Report, quantities: Sequence[str]) -> list[RenderableType]:
    """A block a length, of the quantities that are known of any mechanism."""
    blocks: list[RenderableType] = []
    for _, group in groupby(report.of(CompareRecord), key=lambda record: record.seq_len):
        blocks += _block(list(group), quantities)
    return [*blocks, Text(CAPTION, style="dim")]


def _block(rows: list[CompareRecord], quantities: Sequence[str]) -> list[RenderableType]:
    names = [name for name in quantities if any(getattr(row, name) is not None for row in rows)]
    at_once = NARROW_COLUMNS if is_narrow() else max(1, len(names))
    blocks: list[RenderableType] = [Text(workload_text(rows[0]), style="bold")]
    for first in range(0, len(names), at_once):
        some = names[first : first + at_once]
        headings = ["state" if name == "state_bytes" else quantity_text(name) for name in some]
        table = new_table("mechanism", *headings, right=headings, fold=["mechanism"])
        for row in rows:
            if not row.skipped:
                table.add_row(row.mechanism, *(_cell(row, name) for name in some))
        blocks.append(table)
    refused = paragraphs(*(f" skipped: {row.skipped}" for row in rows if row.skipped))
    return [*blocks, *refused, *([Text()] if refused else [])]


def _cell(row: CompareRecord, name: str) -> RenderableType:
    text = quantity_value(getattr(row, name), name, short=is_narrow())
    won = name in row.wins.split(",")
    return Text(f"{text} {WON if won else ' '}", style="bold green" if won else "")
