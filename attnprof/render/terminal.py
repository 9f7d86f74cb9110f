"""Tables on the terminal: sober, numbers right-aligned, units in the header."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from itertools import chain
from textwrap import wrap
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnprof.record import Record
from attnprof.record.escapes import visible
from attnprof.render.formulas import FormulaText
from attnprof.units import format_value, is_numeric

#: Width of tables that go to a file or a pipe, where nothing says how wide it may be.
FILE_WIDTH = 160
#: Characters between two columns.
GAP = 2
#: A column of texts folds down to this width.
FOLDED = 20


def line_width() -> int:
    """The width to draw in: the terminal's or COLUMNS; 160 where output is piped."""
    known = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    return Console(width=None if known else FILE_WIDTH).width


#: Whether numbers are shown with all their digits, while a report is drawn.
_exact = ContextVar("exact", default=False)


@contextmanager
def digits(*, exact: bool) -> Iterator[None]:
    """Inside, counts and bytes have all their digits, or are short: ``39.3 G``, ``1.01 GiB``."""
    token = _exact.set(exact)
    try:
        yield
    finally:
        _exact.reset(token)


def shown_value(value: Any, fmt: str) -> str:
    """A value by its column's format, short or exact as was asked for."""
    if _exact.get() and fmt == "bytes" and isinstance(value, int):
        return f"{value:,} B"
    return format_value(value, fmt, short=not _exact.get())


class FittedTable:
    """A table in as many parts as the width asks for, the key columns repeated in each.

    Cells stay in one line and are never cut, but for the columns that fold.
    """

    def __init__(
        self, headings: Sequence[str], *, right: Collection[str], fold: Collection[str],
        keys: int, title: str | None, caption: str | None,
    ) -> None:  # fmt: skip
        self._headings, self._title, self._caption = headings, title, caption
        self._right = [name in right for name in headings]
        self._fold = [name in fold for name in headings]
        self._keys = keys
        self._rows: list[list[Text] | None] = []

    def add_row(self, *cells: str | Text) -> None:
        """One cell a column; the last ones may be left out."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append(texts + [Text()] * (len(self._headings) - len(texts)))

    def add_section(self) -> None:
        """A rule below the rows so far."""
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="bold")
        room, headings = options.max_width, list(self._headings)
        most, least = self._widths(headings)
        if _taken(most) > room:  # headings of several words in several lines, first of all
            cells, _ = self._widths([""] * len(headings))
            headings = list(map(_wrapped, headings, cells))
            most, least = self._widths(headings)
        for part in self._parts(least, room):
            yield self._drawn(part, headings, _shared(part, most, least, room))
        if self._caption:
            yield Text(self._caption, style="dim")

    def _widths(self, headings: Sequence[str]) -> tuple[list[int], list[int]]:
        """The width each column would take, and the least that it must have."""
        columns = [
            [heading.split("\n"), *(row[place].plain.split("\n") for row in self._rows if row)]
            for place, heading in enumerate(headings)
        ]
        most = [max(cell_len(line) for cell in cells for line in cell) for cells in columns]
        folded = zip(self._fold, most, range(len(most)), strict=True)
        return most, [
            min(width, FOLDED) if folds and place >= self._keys else width
            for folds, width, place in folded
        ]

    def _parts(self, least: Sequence[int], room: int) -> Iterator[list[int]]:
        keys, part = list(range(self._keys)), list[int]()
        for place in range(self._keys, len(least)):
            if part and _taken([least[c] for c in (*keys, *part, place)]) > room:
                yield keys + part
                part = []
            part.append(place)
        yield keys + part

    def _drawn(self, part: list[int], headings: Sequence[str], widths: Sequence[int]) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0)
        )
        for place, width in zip(part, widths, strict=True):
            table.add_column(
                headings[place], justify="right" if self._right[place] else "left",
                width=width, overflow="fold",
            )  # fmt: skip
        for row in self._rows:
            if row is None:
                table.add_section()
            else:
                cells = zip((row[place] for place in part), widths, strict=True)
                table.add_row(*(
                    cell.folded(width) if isinstance(cell, FormulaText) else cell
                    for cell, width in cells
                ))  # fmt: skip
        return table


def _taken(widths: Sequence[int]) -> int:
    """What columns take in a line, with the gaps between them and a blank at either end."""
    return sum(widths) + GAP * (len(widths) - 1) + 2


def _wrapped(heading: str, width: int) -> str:
    longest = max(map(cell_len, heading.split()), default=0)
    lines = (wrap(line, max(width, longest, 1)) for line in heading.split("\n"))
    return "\n".join(chain.from_iterable(lines))


def _shared(part: Sequence[int], most: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of a part's columns: what is left goes to those that want more, evenly."""
    widths = {place: least[place] for place in part}
    left = room - _taken([*widths.values()])
    if left < 0:  # keys too long for any other column beside them: they fold
        longest = max(part, key=widths.__getitem__)
        widths[longest] = max(1, widths[longest] + left)
    while left > 0 and (short := [place for place in part if widths[place] < most[place]]):
        for place in short[:left]:
            widths[place] += 1
        left -= len(short[:left])
    return [*widths.values()]


def new_table(
    *headings: str,
    rows: Iterable[Iterable[str | Text]] = (),
    title: str | None = None,
    caption: str | None = None,
    right: Collection[str] = (),
    fold: Collection[str] = (),
    keys: int = 1,
) -> FittedTable:
    """A table in the house style; its first ``keys`` columns say what a row is."""
    table = FittedTable(headings, right=right, fold=fold, keys=keys, title=title, caption=caption)
    for row in rows:
        table.add_row(*row)
    return table


def record_table(
    records: Sequence[Record],
    names: Sequence[str],
    *,
    title: str | None = None,
    caption: str | None = None,
    keys: int = 1,
) -> FittedTable:
    """Records as a table of the named fields, the first ``keys`` of which name a row."""
    known = dict(type(records[0]).columns()) if records else {}
    fields = {name: known.get(name, {"title": name, "format": "text"}) for name in names}
    headings = {name: str(meta.get("title") or name) for name, meta in fields.items()}
    for name, meta in fields.items():
        # bytes, times and rates carry their unit in each cell, scaled to the value
        if meta.get("unit") and meta["format"] not in ("bytes", "time", "flops_rate"):
            headings[name] += f" [{meta['unit']}]"
    numeric = {headings[name] for name, meta in fields.items() if is_numeric(meta["format"])}
    rows = (
        [shown_value(getattr(record, name), meta["format"]) for name, meta in fields.items()]
        for record in records
    )
    return new_table(
        *headings.values(), rows=rows, title=title, caption=caption, right=numeric,
        fold={*headings.values()} - numeric, keys=keys,
    )  # fmt: skip


#: Quantities whose names are not read as they are written.
_QUANTITIES = {"flops": "FLOPs", "matmul_flops": "matmul FLOPs", "peak_bytes": "peak memory",
               "macs": "MACs"}  # fmt: skip


def quantity_text(name: str) -> str:
    """A quantity as one reads it."""
    return _QUANTITIES.get(name, name.replace("_", " "))


def quantity_value(value: Any, name: str) -> str:
    """A quantity's value, with its unit where it is bytes; short or exact as was asked for."""
    return shown_value(value, "bytes" if "bytes" in name else "count")


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
