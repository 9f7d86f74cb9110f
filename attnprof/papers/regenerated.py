"""Tables and figures made again: what is printed beside what comes out here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof.papers.agreement import Agree, exactly


@dataclass(frozen=True)
class Cell:
    """One value of a table: as printed and ours; None for ours where it is not recomputed.

    ``bound`` says that ours is a bound of what is printed, as "at least", not the same made again.
    """

    printed: Any
    ours: Any
    agree: Agree = exactly
    bound: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two say different things."""
        return self.ours is not None and not self.agree(self.printed, self.ours)


@dataclass(frozen=True)
class Table:
    """A document's table: plain values (row labels, inputs) and :class:`Cell` in named columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Described:
    """Something the document says of its figure, and what our data says to that."""

    what: str
    printed: str
    ours: str
    agrees: bool


@dataclass(frozen=True)
class FigureData:
    """What a figure is drawn from: rows (its CSV), and what the document describes beside ours.

    ``facts`` are further values the drawing needs (marks, fitted constants).
    """

    rows: Sequence[Mapping[str, Any]]
    described: Sequence[Described] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A document's figure: ``data`` computes what it shows.

    It is drawn by the drawing of the same key in ``render.plots.documents.<folder>.DRAWINGS``.

    ``measured`` says that the data are read from a measurement (``--measure`` makes it again).
    """

    title: str
    data: Callable[[], FigureData]
    measured: bool = False
