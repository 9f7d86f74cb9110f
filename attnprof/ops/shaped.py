"""Methods of counting tensors for reshaping, making tensors, and indexing.

Integers take 8 bytes each by default, masks one byte; operations on them count no FLOPs.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Self

from attnprof.costs import Cost, exact_div, floor_div
from attnprof.ops import shapes
from attnprof.ops.base import Base
from attnprof.ops.counter import variable
from attnprof.ops.layout import Layout, Shape, is_literally, product

#: Bytes of an index.
PLACE = 8


class Ordered(NamedTuple):
    """Sorted or largest entries, and the places where they stood."""

    values: Any
    indices: Any = None


class Shaped(Base):
    """Views and copies under torch's names."""

    __slots__ = ()

    # -- shapes ----------------------------------------------------------------------------
    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one size of it."""
        return self.shape if dim is None else self.shape[dim]

    def reshape(self, *shape: Any) -> Self:
        """Return the tensor in another shape; a copy if the layout allows no view."""
        return shapes.reshape(variable("reshape"), self, shapes.sizes(shape))

    view = reshape

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Return the tensor with some dimensions as one."""
        start, end = start % self.dim(), end % self.dim()
        shape = (*self.shape[:start], -1, *self.shape[end + 1 :])
        return shapes.reshape(variable("flatten"), self, shape)

    def contiguous(self) -> Self:
        """Return it laid out row by row: itself, or a copy."""
        return shapes.in_rows(variable("contiguous"), self, 2)

    def unsqueeze(self, dim: int) -> Self:
        """Return the tensor with one more dimension, of one entry; its gradient has one fewer."""
        dim = dim % (self.dim() + 1)
        shape = (*self.shape[:dim], 1, *self.shape[dim:])

        def strides(old: Shape) -> Shape:
            return (*old[:dim], shape[dim + 1] * old[dim] if dim < len(old) else 1, *old[dim:])

        layout = self.layout.with_strides(strides)
        return self.alias(shape, layout, lambda grad: [grad.squeeze(dim)])

    def squeeze(self, dim: int) -> Self:
        """Return the tensor without a dimension of one entry."""
        dim = dim % self.dim()
        kept = [place for place in range(self.dim()) if place != dim]
        shape = tuple(self.shape[place] for place in kept)
        return self.alias(shape, self.layout.permuted(kept), lambda grad: [grad.unsqueeze(dim)])

    def permute(self, *dims: Any) -> Self:
        """Return the dimensions in another order."""
        order = [place % self.dim() for place in shapes.sizes(dims)]
        back = [order.index(place) for place in range(len(order))]
        shape = tuple(self.shape[place] for place in order)
        return self.alias(shape, self.layout.permuted(order), lambda grad: [grad.permute(back)])

    def transpose(self, a: int, b: int) -> Self:
        """Return two dimensions exchanged."""
        order = list(range(self.dim()))
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def t(self) -> Self:
        """Return a matrix transposed."""
        return self.transpose(0, 1)

    @property
    def mT(self) -> Self:  # noqa: N802 - torch's name
        """The last two dimensions exchanged."""
        return self.transpose(-2, -1)

    def expand(self, *sizes: Any) -> Self:
        """Return it expanded, without memory, along new dimensions and dimensions of one entry."""
        old, shape = self.shape, shapes.sizes(sizes)
        padded = (1,) * (len(shape) - self.dim()) + old
        full = tuple(b if is_literally(a, -1) else a for a, b in zip(shape, padded, strict=True))
        layout = self.layout.stretched(old, shape)
        return self.alias(
            full, layout, lambda grad: [shapes.summed_to("stretched: grad", grad, old)]
        )

    def select(self, dim: int, _index: Any) -> Self:
        """Return one entry of a dimension, which is then gone."""
        return self[(slice(None),) * (dim % self.dim()) + (0, ...)]

    def diagonal(self, _offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """Return the entries at equal places of two dimensions, as the last one; no gradient.

        Or ``offset`` further in the second one, which reaches as far: it is as long as the first.
        """
        gone = dim1 % self.dim(), dim2 % self.dim()
        kept = [place for place in range(self.dim()) if place not in gone]

        def lines(old: Shape) -> Shape:
            return (*(old[place] for place in kept), sum(old[place] for place in gone))

        shape = (*(self.shape[place] for place in kept), self.shape[gone[0]])
        return self.alias(shape, self.layout.with_strides(lines))

    def unfold(self, dim: int, size: Any, step: Any) -> Self:
        """Return windows of a dimension, each as a last dimension; no gradient."""
        dim = dim % self.dim()
        before, after = self.shape[:dim], self.shape[dim + 1 :]
        shape = (*before, floor_div(self.shape[dim] - size, step) + 1, *after, size)
        layout = self.layout.with_strides(
            lambda old: (*old[:dim], old[dim] * step, *old[dim + 1 :], old[dim])
        )
        return self.alias(shape, layout)

    def as_strided(self, shape: Any, strides: Any, _offset: Any = 0) -> Self:
        """Return the same memory under other strides; no gradient."""
        return self.alias(tuple(shape), Layout((((), tuple(strides)),)))

    def split(self, lengths: Any, dim: int = 0) -> tuple[Self, ...]:
        """Return parts of a dimension of these lengths; their gradients are joined."""
        dim, whole = dim % self.dim(), self.shape
        layout = replace(self.layout, cut=1, whole=None)
        parts = [self.alias((*whole[:dim], n, *whole[dim + 1 :]), layout) for n in lengths]
        if self.counter.grad and self.requires_grad:
            parts[0].attach(
                [self],
                lambda *grads: [grads[0].result("split: grad", whole, Cost(), grads)],
                *parts[1:],
            )
        return tuple(parts)

    def chunk(self, parts: int, dim: int = 0) -> tuple[Self, ...]:
        """Return a dimension cut into ``parts`` equal parts."""
        return self.split([exact_div(self.shape[dim], parts)] * parts, dim)

    def __getitem__(self, index: Any) -> Self:
        """Return part of some dimensions, ``x[..., a:b]``, or one entry of them, ``x[0]``."""
        parts = list(index) if isinstance(index, tuple) else [index]
        for at in [at for at, part in enumerate(parts) if part is Ellipsis]:
            parts[at : at + 1] = [slice(None)] * (self.dim() - len(parts) + 1)
        out, place = self, 0
        for part in parts:
            out = shapes.select(out, place, part)
            place += isinstance(part, slice)
        return out

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write entries, or one number, to a part."""
        part = self[index]
        if isinstance(value, Base):
            part.result(variable("put"), part.shape, Cost(), [value], into=part)
        else:  # a tensor of one entry to torch
            one = Cost(bytes_moved=part.item_size)
            part.result(variable("fill"), part.shape, one, [], into=part)

    # -- new tensors -----------------------------------------------------------------------
    def copy_(self, other: Self) -> Self:
        """Write another tensor's entries, in place."""
        return self.result(variable("copy"), self.shape, Cost(), [other], into=self)

    def fill_(self, value: float) -> Self:
        """Write one number everywhere, in place."""
        return self.result(variable("fill"), self.shape, Cost(), [], into=self)

    def zero_(self) -> Self:
        """Return zeros, in place."""
        return self.result(variable("zero"), self.shape, Cost(), [], into=self)

    def clone(self) -> Self:
        """Return a copy laid out row by row; the gradient passes as it is."""
        name = variable("clone")
        return self.result(name, self.shape, Cost(), [self], backward=lambda grad: [grad])

    def flip(self, _dim: int) -> Self:
        """Return a copy with the places of a dimension turned around; no gradient."""
        return self.result(variable("flipped"), self.shape, Cost(), [self], layout=self.layout)

    def repeat(self, *times: Any) -> Self:
        """Return a copy repeated in each dimension, of which new ones are in front; no gradient."""
        padded = (1,) * (len(times) - self.dim()) + self.shape
        shape = tuple(many * size for many, size in zip(times, padded, strict=True))
        return self.result(variable("repeated"), shape, Cost(), [self])

    def new_empty(self, *shape: Any) -> Self:
        """Return memory of this shape, written by nobody yet."""
        return shapes.empty(variable("empty"), self, shapes.sizes(shape))

    def new_zeros(self, *shape: Any) -> Self:
        """Return a tensor of zeros."""
        return self.result(variable("zeros"), shapes.sizes(shape), Cost(), [])

    def new_full(self, shape: Any, value: float) -> Self:
        """Return a tensor of one number."""
        return self.result(variable("constant"), shapes.sizes([shape]), Cost(), [])

    def new_ones(self, *shape: Any, dtype: type | None = None) -> Self:
        """Return a tensor filled with ones; ``dtype=bool`` for a mask of a byte an entry."""
        mask = dtype is bool
        return self.result(
            variable("ones"), shapes.sizes(shape), Cost(), [],
            item_size=1 if mask else self.item_size, whole=mask or self.whole,
        )  # fmt: skip

    # -- whole numbers and places; none of these has a gradient -------------------------------
    def long(self) -> Self:
        """Return the tensor in whole numbers of 8 bytes: a copy if it had others."""
        if self.whole and self.item_size == PLACE:
            return self
        size, name = self.counter.bytes_of(PLACE), variable("whole")
        return self.result(
            name, self.shape, Cost(), [self], layout=self.layout, item_size=size, whole=True
        )

    def _positions(self, name: str, shape: Any, workspace: Any = 0) -> Self:
        size = self.counter.bytes_of(PLACE)
        return self.result(name, shape, Cost(), [], item_size=size, whole=True, workspace=workspace)

    def sort(self, *, dim: int, stable: bool = False, descending: bool = False) -> Ordered:
        """Return numbers in order along an axis, and where they stood: comparisons, no FLOPs."""
        line = self.shape[dim] * self.counter.bytes_of(PLACE)
        name = variable("sort")
        values = self.result(name, self.shape, Cost(), [self])
        return Ordered(values, self._positions(f"{name}: places", self.shape, line))

    def max(self, dim: int, keepdim: bool = False) -> Ordered:
        """Return the largest entry along an axis, and where it stands."""
        dim, name = dim % self.dim(), variable("largest")
        shape = (*self.shape[:dim], *[1] * keepdim, *self.shape[dim + 1 :])
        values = self.result(name, shape, Cost(other=self.count), [self])
        return Ordered(values, self._positions(f"{name}: places", shape))

    def gather(self, dim: int, index: Self) -> Self:
        """Return an entry for each place of ``index`` along an axis."""
        return self.result(variable("gathered"), index.shape, Cost(), [self, index])

    def index_select(self, dim: int, index: Self) -> Self:
        """Return rows at these places of an axis: only they are read."""
        dim = dim % self.dim()
        shape = (*self.shape[:dim], index.count, *self.shape[dim + 1 :])
        read = Cost(bytes_moved=product(shape) * self.item_size)
        return self.result(variable("selected"), shape, read, [index])

    def index_copy_(self, dim: int, index: Self, rows: Self) -> Self:
        """Return rows put to these places of an axis: only they are written."""
        written = self.alias(rows.shape, Layout.rows(rows.shape))
        written.result(variable("stored"), rows.shape, Cost(), [rows, index], into=written)
        return self

    def index_add_(self, dim: int, index: Self, rows: Self) -> Self:
        """Add rows to the ones at these places of an axis; only these are read and written."""
        written = self.alias(rows.shape, Layout.rows(rows.shape))
        cost = Cost(additions=rows.count)
        written.result(variable("added"), rows.shape, cost, [rows, written, index], into=written)
        return self

    def scatter_(self, dim: int, index: Self, entries: Self | float) -> Self:
        """Return entries, or one number, put to these places along an axis."""
        reads = [self, index, *([entries] if isinstance(entries, Base) else [])]
        return self.result(variable("scattered"), self.shape, Cost(), reads, into=self)
