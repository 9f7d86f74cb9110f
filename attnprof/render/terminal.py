"""Tables on the terminal: sober, numbers right-aligned, units in the header."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnprof.record import Record
from attnprof.record.escapes import visible
from attnprof.units import format_value, is_numeric

#: Width of tables that go to a file or a pipe, where nothing says how wide it may be.
FILE_WIDTH = 160
NARROW = 110
#: Characters between two columns.
GAP = 2


def line_width() -> int:
    """The width to draw in: the terminal's or COLUMNS; 160 where output is piped."""
    known = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    return Console(width=None if known else FILE_WIDTH).width


def is_narrow() -> bool:
    """Whether counts should be written short (``20.95 M``) to fit."""
    return line_width() < NARROW


def new_table(
    *headings: str,
    rows: Iterable[Iterable[RenderableType]] = (),
    title: str | None = None,
    caption: str | None = None,
    right: Collection[str] = (),
    fold: Collection[str] = (),
) -> Table:
    """A table in the house style; cells stay in one line, but for the columns that fold."""
    table = Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left",
        caption_justify="left", title_style="bold", caption_style="dim", header_style="bold",
        pad_edge=False,
    )  # fmt: skip
    for name in headings:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=name not in fold,
            overflow="fold" if name in fold else "ellipsis",
        )  # fmt: skip
    for row in rows:
        table.add_row(*row)
    return table


def record_table(
    records: Sequence[Record],
    names: Sequence[str],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """Records as a table of the named fields: numbers right-aligned and never wrapped."""
    known = dict(type(records[0]).columns()) if records else {}
    fields = {name: known.get(name, {"title": name, "format": "text"}) for name in names}
    headings = {name: str(meta.get("title") or name) for name, meta in fields.items()}
    for name, meta in fields.items():
        # bytes, times and rates carry their unit in each cell, scaled to the value
        if meta.get("unit") and meta["format"] not in ("bytes", "time", "flops_rate"):
            headings[name] += f" [{meta['unit']}]"
    numeric = {headings[name] for name, meta in fields.items() if is_numeric(meta["format"])}
    short = is_narrow()
    rows = (
        [format_value(getattr(record, name), meta["format"], short=short)
         for name, meta in fields.items()]
        for record in records
    )  # fmt: skip
    return new_table(
        *headings.values(), rows=rows, title=title, caption=caption, right=numeric,
        fold={*headings.values()} - numeric,
    )  # fmt: skip


#: Quantities whose names are not read as they are written.
_QUANTITIES = {"flops": "FLOPs", "matmul_flops": "matmul FLOPs", "peak_bytes": "peak memory"}


def quantity_text(name: str) -> str:
    """A quantity as one reads it."""
    return _QUANTITIES.get(name, name.replace("_", " "))


def quantity_value(value: Any, name: str, *, short: bool | None = None) -> str:
    """A quantity's value, with its unit where it is bytes; short where the line is narrow."""
    fmt = "bytes" if "bytes" in name else "count"
    return format_value(value, fmt, short=is_narrow() if short is None else short)


def workload_text(row: Any) -> str:
    """What a record's costs are for: scope, phase, sizes and number format."""
    mask = ", causal" if row.causal else ""
    heads = f"{row.num_heads} head{'s' if row.num_heads > 1 else ''}"
    return (
        f"{row.scope}, {row.phase}{mask}, batch {row.batch_size}, seq {row.seq_len:,}, "
        f"d_model {row.d_model:,}, {heads} of {row.head_dim}, {row.dtype}"
    )


def print_tables(renderables: Iterable[RenderableType]) -> None:
    """Write to stdout; colour only on a terminal and never where NO_COLOR is set.

    A plain string is a line to be copied: it is never wrapped.
    """
    _draw(new_console(width=line_width()), renderables)


def render_text(renderables: Iterable[RenderableType], width: int = FILE_WIDTH) -> str:
    """The same as plain text, for a file."""
    stream = StringIO()
    _draw(new_console(file=stream, width=width, color_system=None), renderables)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command that whoever read has gone; rich would end the program."""
        raise BrokenPipeError


def new_console(**how: Any) -> Console:
    """A console to which text is text: brackets are no markup, ``:name:`` no picture."""
    return _Terminal(highlight=False, markup=False, emoji=False, **how)


class _Shown:
    """Something to draw, its texts without control characters: colours are the console's alone."""

    def __init__(self, item: RenderableType) -> None:
        self._item = item

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for part in console.render(self._item, options):
            yield part if part.control else Segment(visible(part.text, lines=True), part.style)


def _draw(console: Console, renderables: Iterable[RenderableType]) -> None:
    for item in renderables:
        if isinstance(item, str):
            console.print(Text(visible(item)), soft_wrap=True)
        else:
            console.print(_Shown(item))
