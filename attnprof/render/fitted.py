"""Tables and texts that fit the width they are drawn in; nothing is cut."""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from attnprof.render.formulas import FormulaText
from attnprof.units import MISSING

#: Characters between two columns.
GAP = 2
#: A column of texts folds down to this width.
FOLDED = 20
#: What the lines of a text begin with, but for the first.
INDENT = "  "
#: The gap between a number and its unit, at which no line ends.
_UNIT = re.compile(r"(?<=\d) (?=[KMGTPE](i?B)?\b)")


class FittedTable:
    """A table in as many parts as the width asks for, repeating the ``keys`` that name a row.

    Numbers, whose columns are ``right``, stay in one line; texts fold. Columns without a value are
    left out. Where one part is not enough, columns that say the same in every row are told once,
    above.
    """

    def __init__(
        self, *headings: str, rows: Iterable[Iterable[str | Text]] = (), title: str | None = None,
        caption: str | None = None, right: Collection[str] = (), keys: int = 1,
    ) -> None:  # fmt: skip
        self._headings, self._title, self._caption = headings, title, caption
        self._right = [name in right for name in headings]
        self._keys = keys
        self._rows: list[list[Text]] = []
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: str | Text) -> None:
        """One cell a column; the last ones may be left out, and all of them for a blank line."""
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        self._rows.append(texts + [Text()] * (len(self._headings) - len(texts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="bold")
        room, names = options.max_width, self._headings
        cells = [[row[n].plain for row in self._rows if any(row)] for n in range(len(names))]
        empty = (its != [] and {text.strip() for text in its} <= {"", MISSING} for its in cells)
        places = [place for place, none in enumerate(empty) if place < self._keys or not none]
        body = [max(map(_longest, column), default=0) for column in cells]
        wrapped = list(map(_wrapped, names, body))
        bounds, whole = self._bounds(body, wrapped, room), self._bounds(body, names)
        parts = self._parts(places, room, bounds[1])
        if len(parts) > 1 and (same := self._same({n: cells[n] for n in places})):
            told = (f"{names[n]} {text}".replace("\n", " ") for n, text in same.items())
            yield Hanging(f"In every row: {', '.join(told)}.")
            parts = self._parts([n for n in places if n not in same], room, bounds[1])
        for part in parts:
            fits = _taken([whole[1][n] for n in part]) <= room
            widths = _shared(part, *(whole if fits else bounds), room)
            yield from self._drawn(part, names if fits else wrapped, widths, console)
            yield Text()
        if self._caption:
            yield Text(f"{self._caption}\n", style="dim")

    def _same(self, cells: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Columns with the same text in every row, and that text; a key at least is left."""
        same = {n: column[0].strip() for n, column in cells.items() if len({*column}) == 1}
        whole = len(cells[0]) > 1 and not {*range(self._keys)} <= same.keys()
        return {n: text for n, text in same.items() if text} if whole else {}

    def _bounds(
        self, body: list[int], headings: Iterable[str], room: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The width each column would take, and the least that it must have.

        In a ``room`` the longest key folds, too, where it leaves none for a column beside it.
        """
        most = list(map(max, body, map(_longest, headings)))
        least = [
            width if place < self._keys or self._right[place] else min(width, FOLDED)
            for place, width in enumerate(most)
        ]
        *keys, longest = sorted(range(self._keys), key=least.__getitem__)
        others = [*(least[n] for n in keys), max(least[self._keys :], default=0)]
        if room and (left := room - _taken([*others, 0])) < least[longest]:
            least[longest] = max(room // 3, min(room // 2, left))
        return most, least

    def _parts(self, places: Sequence[int], room: int, least: Sequence[int]) -> list[list[int]]:
        """The columns of each part: as few parts as there can be, of about the same width."""
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
        return split(bisect_left(range(room), -fewest, key=lambda room: -len(split(room))))

    def _drawn(
        self, part: Sequence[int], headings: Sequence[str], widths: Sequence[int], console: Console
    ) -> Iterator[Segment]:
        """Headings, a rule, and the rows, whose texts fold to the widths of their columns."""
        high = max(headings[n].count("\n") for n in part)
        heads = [Text("\n" * (high - name.count("\n")) + name, "bold") for name in headings]
        for row in (heads, *self._rows):
            cells = (_lines(row[n], width, console) for n, width in zip(part, widths, strict=True))
            for texts in zip_longest(*cells, fillvalue=Text()):
                aligned = [text.copy() for text in texts]
                for place, text, width in zip(part, aligned, widths, strict=True):
                    pad = text.pad_left if self._right[place] else text.pad_right
                    pad(width - text.cell_len)
                line = Text(" " * GAP).join(aligned)
                line.rstrip()
                yield from line.render(console, end="\n")
            if row is heads:
                yield Segment("─" * _taken(widths) + "\n")


class Hanging:
    """A text whose lines are indented, but for the first."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _UNIT.sub("\xa0", self._text)
        lines = wrap(whole, options.max_width, subsequent_indent=INDENT, break_on_hyphens=False)
        yield Text("\n".join(lines).replace("\xa0", " "), self._style)


def _taken(widths: Sequence[int]) -> int:
    """What columns take in a line, with the gaps between them."""
    return sum(widths) + GAP * (len(widths) - 1)


def _longest(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _lines(cell: Text, width: int, console: Console) -> Iterable[Text]:
    """A cell in lines of this width."""
    if isinstance(cell, FormulaText):
        cell = cell.folded(width)
    if cell.cell_len <= width and "\n" not in cell.plain:
        return [cell]
    return cell.wrap(console, width, overflow="fold")


def _wrapped(heading: str, width: int) -> str:
    longest = max(map(cell_len, heading.split()), default=0)
    lines = (wrap(line, max(width, longest, 1)) for line in heading.split("\n"))
    return "\n".join(chain.from_iterable(lines))


def _shared(part: Sequence[int], most: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of a part's columns: what is left goes to those that want more, evenly."""
    widths = {place: least[place] for place in part}
    left = room - _taken([*widths.values()])
    while left > 0 and (short := [place for place in part if widths[place] < most[place]]):
        for place in short[:left]:
            widths[place] += 1
        left -= len(short[:left])
    return [*widths.values()]
