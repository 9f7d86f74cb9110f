"""Tables on the terminal: sober, numbers right-aligned, units in the header."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from math import isfinite
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from attnprof.record import Record, Report
from attnprof.record.escapes import visible
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.units import format_value, is_numeric, plural

#: The cells of a column: the name of a field, or a function from a record to a text.
Cell: TypeAlias = str | Callable[[Any], str | Text]
#: Width of tables that go to a file or a pipe, where nothing says how wide it may be.
FILE_WIDTH = 160
#: Least width of a table.
LEAST_WIDTH = 20
#: Formats of which all digits can be shown, with the unit that stands in each cell.
_UNITS = {"bytes": " B", "time": " s", "flops_rate": " FLOP/s", "bytes_rate": " B/s",
          "number": "", "ratio": "", "length": ""}  # fmt: skip
#: Whether numbers are shown with all their digits, while a report is drawn.
_exact = ContextVar("exact", default=False)


@contextmanager
def digits(*, exact: bool) -> Iterator[None]:
    """Show counts and bytes of the body with all digits, or short: ``39.3 G``, ``1.01 GiB``."""
    token = _exact.set(exact)
    try:
        yield
    finally:
        _exact.reset(token)


def shown_value(value: Any, fmt: str) -> str:
    """Return a value by its column's format, short or exact as :func:`digits` says."""
    if isinstance(value, (int, float)) and isfinite(value):
        if _exact.get() and fmt in _UNITS:
            return f"{value:,}{_UNITS[fmt]}"
        if fmt == "length":
            return f"{value:,.2f}"
    return format_value(value, fmt, short=not _exact.get())


def record_table(
    records: Sequence[Record], columns: Sequence[str] | Mapping[str, Cell],
    right: Iterable[str] = (), **how: Any,
) -> FittedTable:  # fmt: skip
    """Return records as a table of fields, under their titles or a mapping's headings.

    A mapping's values are fields or functions that write a cell. Numeric fields and the headings
    in ``right`` are right-aligned; ``how`` are options of the table.
    """
    fields = {name: meta for one in records[:1] for name, meta in one.columns()}
    if not isinstance(columns, Mapping):
        columns = {_title(fields[name]): name for name in columns if name in fields}
    numeric = {
        title for title, cell in columns.items()
        if isinstance(cell, str) and is_numeric(fields[cell]["format"])
        and not any(isinstance(getattr(record, cell), str) for record in records)
    }  # fmt: skip
    rows = (
        [field_text(r, cell) if isinstance(cell, str) else cell(r) for cell in columns.values()]
        for r in records
    )
    return FittedTable(*columns, rows=rows, right=numeric.union(right), **how)


def _title(field: Mapping[str, Any]) -> str:
    """Return a field's title, with its unit where cells have none."""
    unit = field["unit"] and not _UNITS.get(field["format"])
    return f"{field['title']} [{field['unit']}]" if unit else str(field["title"])


def field_text(record: Record, name: str) -> str:
    """Return a field's value by its format, short or exact as :func:`digits` says."""
    return shown_value(getattr(record, name), dict(record.columns())[name]["format"])


def quantity_value(value: Any, name: str) -> str:
    """Return a quantity's value, with its unit if it is bytes; short or exact."""
    return shown_value(value, "bytes" if "bytes" in name else "count")


def floor(bound: str) -> str:
    """Return ``at least `` before a number or formula that is a lower bound, else ""."""
    return "at least " if bound == "at least" else ""


def workload_text(row: Any) -> str:
    """Return the workload of a record: scope, phase, sizes and number format."""
    return (
        f"{row.scope}, {row.phase}{', causal' * row.causal}, batch {row.batch_size}, "
        f"seq {row.seq_len:,}, d_model {row.d_model:,}, {plural(row.num_heads, 'head')} of "
        f"{row.head_dim}, {row.dtype}"
    )


def answer_line(report: Report) -> Iterator[RenderableType]:
    """Yield the answer in a sentence and a blank line, if there is an answer."""
    if answer := report.summary.get("answer"):
        yield Text(f"{answer}\n", style="bold")


def print_tables(renderables: Iterable[RenderableType]) -> None:
    """Write to stdout; colour only on a terminal and never where NO_COLOR is set.

    A plain string is a line to be copied: it is never wrapped.
    """
    known = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    _draw(new_console(width=None if known else FILE_WIDTH), renderables)


def render_text(renderables: Iterable[RenderableType], width: int = FILE_WIDTH) -> str:
    """Return the text that :func:`print_tables` would write, without colour, for a file."""
    stream = StringIO()
    _draw(new_console(file=stream, width=width, color_system=None), renderables)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle a reader that left; rich would end the program."""
        raise BrokenPipeError


def new_console(**how: Any) -> Console:
    """Return a console that shows text verbatim: brackets are no markup, ``:name:`` no emoji."""
    console = _Terminal(highlight=False, markup=False, emoji=False, **how)
    if console.width < LEAST_WIDTH:  # noqa: PLR1730 - else it follows a terminal that is resized
        console.width = LEAST_WIDTH
    return console


class _Shown:
    """An item to draw without control characters in its texts; only rich may set colours."""

    def __init__(self, item: RenderableType) -> None:
        self._item = item

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        item = Hanging(self._item, 0) if isinstance(self._item, Text) else self._item
        for part in console.render(item, options):
            yield part if part.control else Segment(visible(part.text, lines=True), part.style)


def _draw(console: Console, renderables: Iterable[RenderableType]) -> None:
    for item in renderables:
        if isinstance(item, str):
            console.print(Text(visible(item)), soft_wrap=True)
        else:
            console.print(_Shown(item), crop=False)
