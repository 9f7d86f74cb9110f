"""Tables on the terminal: sober, numbers right-aligned, units in the header.

:func:`record_table` makes a :class:`FittedTable`, :func:`print_tables` writes tables to stdout.
"""

import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from itertools import accumulate, chain, zip_longest
from math import isfinite
from typing import Any, TypeAlias

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment, Segments
from rich.text import Text

from attnprof.record import Record
from attnprof.record.escapes import visible
from attnprof.units import MISSING, format_value, is_numeric, plural

#: Characters between two columns.
GAP = 2
#: A column of texts folds down to this width.
FOLDED = 20
#: A word with the space after it; a number is one with its unit.
_WORD = re.compile(r"\s*(?:\S|(?<=\d) (?=[KMGTPE](?:i?B)?\b))*\s*")
#: The parts of a word that is longer than a line; they begin with a capital, a dot, after a sign.
_PART = re.compile(r"\.?(?:[A-Z]+[^\W_A-Z]*|[^\W_A-Z]+)(?:[^\w.]|_)*|[\W_]+")
#: The cells of a column: the name of a field, or a function from a record to a text.
Cell: TypeAlias = str | Callable[[Any], str | Text]
#: Width of tables that go to a file or a pipe, where nothing says how wide it may be.
FILE_WIDTH = 160
#: Least width of a table.
LEAST_WIDTH = 20
#: Formats of which all digits can be shown, with the unit that stands in each cell.
_UNITS = {"bytes": " B", "time": " s", "flops_rate": " FLOP/s", "bytes_rate": " B/s",
          "number": "", "ratio": "", "length": ""}  # fmt: skip
#: Whether the report that is drawn shows numbers with all digits (``--exact``).
EXACT = ContextVar("exact", default=False)
#: Floats from here on are further apart than hundredths.
TWO_DECIMALS = 2**53 / 100


class FittedTable:
    """A table in as many parts as the width needs, each with the first ``keys`` columns.

    Numbers, whose columns are ``right``, stay on one line; texts fold. Columns without a text are
    left out, those without a value with a note. If one part is not enough, columns with the same
    text in every row become a sentence above.
    """

    def __init__(
        self, *headings: str, rows: Iterable[Iterable[str | Text]] = (), title: str | None = None,
        caption: str | None = None, right: Collection[str] = (), keys: int = 1,
    ) -> None:  # fmt: skip
        self.headings, self.title, self.caption = headings, title, caption
        self.right = [name in right for name in headings]
        self.keys = keys
        self.rows: list[list[Text]] = []
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: str | Text) -> None:
        """Add one cell a column; missing cells at the end are blank."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self.rows.append(texts + [Text()] * (len(self.headings) - len(texts)))

    def texts(self) -> list[list[str]]:
        """Return the plain texts of each column, without blank rows."""
        return [[row[n].plain for row in self.rows if any(row)] for n in range(len(self.headings))]

    def shown_columns(self) -> list[int]:
        """Return the places of the keys, and of the columns that have a text."""
        filled = (not texts or {t.strip() for t in texts} - {"", MISSING} for texts in self.texts())
        return [place for place, has_text in enumerate(filled) if place < self.keys or has_text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Hanging(Text(self.title, "bold"), 0)
        room, names = options.max_width, self.headings
        cells, places = self.texts(), self.shown_columns()
        body = [max(map(_widest_line, column), default=0) for column in cells]
        wrapped = list(map(_wrap_heading, names, body))
        bounds, whole = self._bounds(body, wrapped, room), self._bounds(body, names)
        parts = self._split_columns(places, room, bounds[1])
        if len(parts) > 1 and (same := self._constant_columns({n: cells[n] for n in places})):
            texts = (f"{names[n]} {text}".replace("\n", " ") for n, text in same.items())
            yield Hanging(f"In every row: {', '.join(texts)}.")
            parts = self._split_columns([n for n in places if n not in same], room, bounds[1])
        for part in parts:
            fits = _total_width([whole[1][n] for n in part]) <= room
            widths = _share_width(part, *(whole if fits else bounds), room)
            for line in self._draw_part(part, names if fits else wrapped, widths):
                yield from line.render(console, end="\n")
            yield Text()
        if empty := [names[n] for n, x in enumerate(cells) if n not in places and MISSING in x]:
            yield Hanging(Text(f"No row has a value for {', '.join(empty)}.\n", "dim"), 0)
        if self.caption:
            yield Hanging(Text(f"{self.caption}\n", "dim"), 0)

    def _constant_columns(self, cells: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Return the columns with one text in all rows, and it; empty if no key would be left."""
        same = {n: column[0].strip() for n, column in cells.items() if len({*column}) == 1}
        whole = len(cells[0]) > 1 and not {*range(self.keys)} <= same.keys()
        return {n: text for n, text in same.items() if text} if whole else {}

    def _bounds(
        self, body: list[int], headings: Iterable[str], room: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the widths that columns would take, and the least that they must have.

        In a ``room`` the longest key folds, too, if it leaves no width for a column beside it.
        """
        most = list(map(max, body, map(_widest_line, headings)))
        least = [
            width if place < self.keys or self.right[place] else min(width, FOLDED)
            for place, width in enumerate(most)
        ]
        *keys, longest = sorted(range(self.keys), key=least.__getitem__)
        others = [*(least[n] for n in keys), max(least[self.keys :], default=0)]
        if room and (left := room - _total_width([*others, 0])) < least[longest]:
            least[longest] = max(room // 3, min(room // 2, left))
        return most, least

    def _split_columns(
        self, places: Sequence[int], room: int, least: Sequence[int]
    ) -> list[list[int]]:
        """Return the columns of each part: as few parts as possible, about equally wide."""
        keys = [place for place in places if place < self.keys]

        def split(room: int) -> list[list[int]]:
            parts = [keys]
            for place in places[len(keys) :]:
                longer = [*parts[-1], place]
                if parts[-1] != keys and _total_width([least[n] for n in longer]) > room:
                    parts.append([*keys, place])
                else:
                    parts[-1] = longer
            return parts

        fewest = len(split(room))
        return split(bisect_left(range(room), -fewest, key=lambda room: -len(split(room))))

    def _draw_part(
        self, part: Sequence[int], headings: Sequence[str], widths: Sequence[int]
    ) -> Iterator[Text]:
        """Yield headings, a rule, and the rows, whose texts fold to their columns' widths."""
        high = max(headings[n].count("\n") for n in part)
        heads = [Text("\n" * (high - name.count("\n")) + name, "bold") for name in headings]
        for row in (heads, *self.rows):
            cells = (lines_of(row[n], width) for n, width in zip(part, widths, strict=True))
            for texts in zip_longest(*cells, fillvalue=Text()):
                aligned = [text.copy() for text in texts]
                for place, text, width in zip(part, aligned, widths, strict=True):
                    pad = text.pad_left if self.right[place] else text.pad_right
                    pad(width - text.cell_len)
                line = Text(" " * GAP).join(aligned)
                line.rstrip()
                yield line
            if row is heads:
                yield Text("─" * _total_width(widths))


class Hanging:
    """A text whose lines after the first are indented."""

    def __init__(self, text: str | Text, indent: int = 2) -> None:
        self.text, self._indent = Text(text) if isinstance(text, str) else text, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = lines_of(self.text, options.max_width, self._indent)
        yield Text("\n" + " " * self._indent).join(lines)


def lines_of(text: Text, width: int, indent: int = 0) -> list[Text]:
    """Return a text in lines of this width, less ``indent`` after the first; long words break."""
    if isinstance(text, FormulaText):
        text = text.folded(width)
    if text.cell_len <= width and "\n" not in text.plain:
        return [text]
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        begin = end = 0
        cuts = list[int]()
        for piece in _breakable_pieces(line.plain, width - indent):
            at, end = end, end + len(piece)
            room = width - indent * bool(lines or cuts)
            if at > begin and cell_len(line.plain[begin:end].rstrip()) > room:
                cuts.append(begin := at)
        lines += line.divide(cuts)
    for line in lines:
        line.rstrip()
    return lines


def _breakable_pieces(line: str, width: int) -> Iterator[str]:
    """Yield words with the space after them; a word longer than a line in parts."""
    for word in _WORD.findall(line):
        parts = _PART.findall(word) if cell_len(word.rstrip()) > width else [word]
        yield from chain.from_iterable(chop_cells(part, width) for part in parts)


def _total_width(widths: Sequence[int]) -> int:
    """Return the width of columns in a line, with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _widest_line(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _wrap_heading(heading: str, width: int) -> str:
    longest = max(map(cell_len, heading.split()), default=0)
    return "\n".join(line.plain for line in lines_of(Text(heading), max(width, longest)))


def _share_width(
    part: Sequence[int], most: Sequence[int], least: Sequence[int], room: int
) -> list[int]:
    """Return the widths of a part's columns; spare room goes evenly to columns that want more."""
    widths = {place: least[place] for place in part}
    left = room - _total_width([*widths.values()])
    while left > 0 and (short := [place for place in part if widths[place] < most[place]]):
        for place in short[:left]:
            widths[place] += 1
        left -= len(short[:left])
    return [*widths.values()]


class FormulaText(Text):
    """A formula that breaks into lines at its terms and arguments."""

    def folded(self, width: int) -> Text:
        """Return the formula in lines of this width."""
        lines = (_broken_at_terms(line, width) for line in self.plain.split("\n"))
        return Text("\n".join(chain.from_iterable(lines)))

    @classmethod
    def brief(cls, formula: str, most: int) -> "FormulaText":
        """Return as many of its first terms as fit in ``most`` characters, then ``…``."""
        first, *rest = _broken_at_terms(formula, most)
        return cls(f"{first[:most]} …" if rest or len(first) > most else first)


def _broken_at_terms(line: str, width: int) -> Iterator[str]:
    """Yield a formula's lines, broken before a sign or after a comma.

    Of several places the one in the fewest brackets is taken, then the last. A term that is longer
    than a line is broken between its factors.
    """
    indent = " " * (len(line) - len(re.sub(r"^(Max\((?=.*,$))?\s*", "", line)))
    while cell_len(line) > width > len(indent):
        depths = list(accumulate((sign in "([{") - (sign in ")]}") for sign in line))
        ends = [matched.end() for matched in re.finditer(r" (?=[+-] )|, ", line[: width + 1])]
        ends = [end for end in ends if end > len(indent) + width // 4]
        factors = [matched.end() for matched in re.finditer(r"(?<!\*)\*(?!\*)|[/(]", line[:width])]
        last = factors[-1] if factors else width
        end = min(ends, key=lambda at: (depths[at - 1], -at), default=last)
        yield line[:end].rstrip()
        line = indent + line[end:]
    yield line


@contextmanager
def digits(*, exact: bool) -> Iterator[None]:
    """Show counts and bytes of the body with all digits, or short: ``39.3 G``, ``1.01 GiB``."""
    token = EXACT.set(exact)
    try:
        yield
    finally:
        EXACT.reset(token)


def shown_value(value: Any, fmt: str) -> str:
    """Return a value by its column's format, short or exact as :func:`digits` says."""
    if isinstance(value, (int, float)) and isfinite(value):
        if EXACT.get() and fmt in _UNITS:
            return f"{value:,}{_UNITS[fmt]}"
        if fmt == "length":
            return f"{value:,.2f}" if abs(value) < TWO_DECIMALS else f"{value:,}"
    return format_value(value, fmt, short=not EXACT.get())


def record_table(
    records: Sequence[Record], columns: Sequence[str] | Mapping[str, Cell],
    right: Iterable[str] = (), **options: Any,
) -> FittedTable:  # fmt: skip
    """Return records as a table of fields, under their titles or a mapping's headings.

    A mapping's values are fields or functions that write a cell. Numeric fields and the headings
    in ``right`` are right-aligned; ``options`` are options of the table.
    """
    fields = {name: meta for one in records[:1] for name, meta in one.columns()}
    if not isinstance(columns, Mapping):
        columns = {_title(fields[name]): name for name in columns if name in fields}
    numeric = {
        title for title, cell in columns.items()
        if isinstance(cell, str) and is_numeric(fields[cell]["format"])
        and not any(isinstance(getattr(record, cell), str) for record in records)
    }  # fmt: skip
    rows = ([field_text(r, cell) if isinstance(cell, str) else cell(r) for cell in columns.values()]
            for r in records)  # fmt: skip
    return FittedTable(*columns, rows=rows, right=numeric.union(right), **options)


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


def bounded(row: Any) -> str:
    """Return the value of a record's quantity after its bound; a dash without a record."""
    if row is None or row.value is None:
        return MISSING
    return f"{floor(row.bound)}{quantity_value(row.value, row.quantity)}"


#: Words for sizes that a summary has beside those of its records.
_SIZES = {"num_kv_heads": "key heads", "kv_seq_len": "keys", "value_head_dim": "value width"}


def workload_text(row: Any, summary: Mapping[str, Any] | None = None) -> str:
    """Return the workload of a record: scope, phase, sizes and number format."""
    typed = (summary or {}).get("sizes", {})
    more = [f"{_SIZES[name]} {size:,}, " for name, size in typed.items() if name in _SIZES]
    return (
        f"{row.scope}, {row.phase}{', causal' * row.causal}, batch {row.batch_size}, "
        f"seq {row.seq_len:,}, d_model {row.d_model:,}, {plural(row.num_heads, 'head')} of "
        f"{row.head_dim}, {''.join(more)}{row.dtype}"
    )


def print_tables(renderables: Iterable[RenderableType]) -> None:
    """Write to stdout; colour only on a terminal and never where NO_COLOR is set.

    A plain string is a line to be copied: it is never wrapped.
    """
    has_width = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    _draw(new_console(width=None if has_width else FILE_WIDTH), renderables)


def render_text(renderables: Iterable[RenderableType], width: int = FILE_WIDTH) -> str:
    """Return the text that :func:`print_tables` would write, without colour, for a file."""
    stream = StringIO()
    _draw(new_console(file=stream, width=width, color_system=None), renderables)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle a reader that left; rich would end the program."""
        raise BrokenPipeError


def new_console(**options: Any) -> Console:
    """Return a console that shows text verbatim: brackets are no markup, ``:name:`` no emoji."""
    console = _Terminal(highlight=False, markup=False, emoji=False, **options)
    if console.width < LEAST_WIDTH:  # noqa: PLR1730 - else it follows a terminal that is resized
        console.width = LEAST_WIDTH
    return console


def _draw(console: Console, renderables: Iterable[RenderableType]) -> None:
    """Draw items without the control characters of their texts; only rich sets colours."""
    for item in renderables:
        if isinstance(item, str):
            console.print(Text(visible(item)), soft_wrap=True)
            continue
        drawn = console.render(Hanging(item, 0) if isinstance(item, Text) else item)
        parts = (
            part if part.control else Segment(visible(part.text, lines=True), part.style)
            for part in drawn
        )
        console.print(Segments(parts), crop=False)
