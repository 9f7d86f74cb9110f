"""Tables and texts that fit the width they are drawn in; nothing is cut."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from textwrap import wrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attnprof.render.formulas import FormulaText

#: Characters between two columns.
GAP = 2
#: A column of texts folds down to this width.
FOLDED = 20
#: What the lines of a text begin with, but for the first.
INDENT = "  "


class FittedTable:
    """A table in as many parts as the width asks for, repeating the ``keys`` that name a row.

    Cells stay in one line and are never cut, but for the columns that fold. Where one part is not
    enough, columns that say the same in every row are told once, above.
    """

    def __init__(
        self, *headings: str, rows: Iterable[Iterable[str | Text]] = (), title: str | None = None,
        caption: str | None = None, right: Collection[str] = (), fold: Collection[str] = (),
        keys: int = 1,
    ) -> None:  # fmt: skip
        self._headings, self._title, self._caption = headings, title, caption
        self._right = [name in right for name in headings]
        self._fold = [name in fold for name in headings]
        self._keys = keys
        self._rows: list[list[Text] | None] = []
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: str | Text) -> None:
        """One cell a column; the last ones may be left out."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append(texts + [Text()] * (len(self._headings) - len(texts)))

    def add_section(self) -> None:
        """A blank line below the rows so far."""
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="bold")
        room, places = options.max_width, list(range(len(self._headings)))
        cells, _ = self._widths([""] * len(places))
        wrapped = list(map(_wrapped, self._headings, cells))
        parts = self._parts(places, room, wrapped)
        if len(parts) > 1 and (same := self._same()):
            told = (f"{self._headings[n]} {text}".replace("\n", " ") for n, text in same.items())
            yield Hanging(f"In every row: {', '.join(told)}.")
            parts = self._parts([n for n in places if n not in same], room, wrapped)
        for part in parts:
            most, least = self._widths(self._headings)
            fits = _taken([least[n] for n in part]) <= room
            headings = self._headings if fits else wrapped
            most, least = self._widths(headings)
            yield self._drawn(part, headings, _shared(part, most, least, room))
            yield Text()
        if self._caption:
            yield Text(self._caption, style="dim")

    def _same(self) -> dict[int, str]:
        """Columns with the same text in every row, and that text; a key at least is left."""
        rows = [row for row in self._rows if row]
        columns = ({row[n].plain for row in rows} for n in range(len(self._headings)))
        same = {n: texts.pop().strip() for n, texts in enumerate(columns) if len(texts) == 1}
        whole = len(rows) > 1 and not {*range(self._keys)} <= same.keys()
        return {n: text for n, text in same.items() if text} if whole else {}

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

    def _parts(self, places: list[int], room: int, headings: Sequence[str]) -> list[list[int]]:
        """The columns of each part: as few parts as there can be, of about the same width."""
        _, least = self._widths(headings)
        keys = [place for place in places if place < self._keys]

        def split(room: int) -> list[list[int]]:
            parts = [keys]
            for place in places[len(keys) :]:
                longer = [*parts[-1], place]
                if parts[-1] != keys and _taken([least[n] for n in longer]) > room:
                    parts.append([*keys, place])
                else:
                    parts[-1] = longer
            return parts

        fewest = len(split(room))
        narrow = range(1, room) if fewest > 1 else ()
        return next((parts for parts in map(split, narrow) if len(parts) == fewest), split(room))

    def _drawn(self, part: list[int], headings: Sequence[str], widths: Sequence[int]) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0),
            show_edge=False,
        )  # fmt: skip
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


class Hanging:
    """A text whose lines are indented, but for the first."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = wrap(
            self._text, options.max_width, subsequent_indent=INDENT, break_on_hyphens=False
        )
        yield Text("\n".join(lines), self._style)


def _taken(widths: Sequence[int]) -> int:
    """What columns take in a line, with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


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
