"""Whole numbers, and entries picked by their places, under torch's names.

Whole numbers are 8 bytes each unless said otherwise, masks one; work on them is no FLOP.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from attnprof.costs import Cost
from attnprof.errors import RequestError
from attnprof.ops.counter import variable
from attnprof.ops.layout import Layout
from attnprof.ops.shaped import Shaped

#: Bytes of a place.
PLACE = 8


class Ordered(NamedTuple):
    """Entries in another order, or the largest ones, and the places where they stood."""

    values: Any
    indices: Any


class Indexed(Shaped):
    """None of these has a gradient."""

    __slots__ = ()

    def long(self) -> Self:
        """In whole numbers of 8 bytes: a copy of what is not."""
        if self.whole and self.item_size == PLACE:
            return self
        size, name = self.counter.bytes_of(PLACE), variable("whole")
        return self.result(
            name, self.shape, Cost(), [self], layout=self.layout, item_size=size, whole=True
        )

    def _places(self, name: str, shape: Any) -> Self:
        size = self.counter.bytes_of(PLACE)
        return self.result(name, shape, Cost(), [], item_size=size, whole=True)

    def sort(self, *, dim: int, stable: bool = False) -> Ordered:
        """Whole numbers in order along an axis, and where they stood."""
        if not self.whole:
            raise RequestError("the counter sorts whole numbers only")
        line, name = self.shape[dim] * self.counter.bytes_of(PLACE), variable("sort")
        values = self.result(name, self.shape, Cost(), [self], workspace=line)
        return Ordered(values, self._places(f"{name}: places", self.shape))

    def max(self, dim: int, keepdim: bool = False) -> Ordered:
        """The largest entry along an axis, and where it stands."""
        dim, name = dim % self.dim(), variable("largest")
        shape = (*self.shape[:dim], *[1] * keepdim, *self.shape[dim + 1 :])
        values = self.result(name, shape, Cost(other=self.count), [self])
        return Ordered(values, self._places(f"{name}: places", shape))

    def gather(self, dim: int, index: Self) -> Self:
        """An entry for each place of ``index`` along an axis."""
        return self.result(variable("gathered"), index.shape, Cost(), [self, index])

    def index_select(self, dim: int, index: Self) -> Self:
        """Rows at these places of an axis: only they are read."""
        dim = dim % self.dim()
        shape = (*self.shape[:dim], index.count, *self.shape[dim + 1 :])
        out = self.result(variable("selected"), shape, Cost(), [index])
        self.counter.add(Cost(bytes_moved=out.size_bytes))
        return out

    def index_copy_(self, dim: int, index: Self, rows: Self) -> Self:
        """Rows put to these places of an axis: only they are written."""
        written = self.alias(rows.shape, Layout.rows(rows.shape))
        written.result(variable("stored"), rows.shape, Cost(), [rows, index], into=written)
        return self

    def scatter_(self, dim: int, index: Self, entries: Self) -> Self:
        """Entries put to these places along an axis."""
        return self.result(
            variable("scattered"), self.shape, Cost(), [self, index, entries], into=self
        )
