"""A tensor that counts: torch's names, shapes that may be symbols, no values."""

from __future__ import annotations

from typing import Any

from attnprof.costs import Cost
from attnprof.ops import pointwise, products, shapes
from attnprof.ops.base import Base
from attnprof.ops.counter import variable


class Tensor(Base):
    """What a mechanism's text is run with to be counted; methods do what torch's of the name do.

    A stage is called as the variable that its result is stored in, else as the operation.
    """

    __slots__ = ()

    # -- shapes ----------------------------------------------------------------------------
    def reshape(self, *shape: Any) -> Tensor:
        """Another shape; a copy where the layout does not allow a view."""
        return shapes.reshape(variable("reshape"), self, shapes.sizes(shape))

    view = reshape

    def unsqueeze(self, dim: int) -> Tensor:
        """One more dimension, of one entry."""
        shape = list(self.shape)
        shape.insert(dim % (self.dim() + 1), 1)
        return shapes.reshape("unsqueeze", self, tuple(shape))

    def permute(self, *dims: Any) -> Tensor:
        """The dimensions in another order."""
        return shapes.permute(self, shapes.sizes(dims))

    def transpose(self, a: int, b: int) -> Tensor:
        """Two dimensions exchanged."""
        order = list(range(self.dim()))
        order[a], order[b] = order[b], order[a]
        return shapes.permute(self, order)

    def expand(self, *sizes: Any) -> Tensor:
        """Stretched along new dimensions in front and those of one entry, without memory."""
        return shapes.expand(self, shapes.sizes(sizes))

    def select(self, dim: int, _index: Any) -> Tensor:
        """One entry of a dimension, which is gone then; no gradient."""
        return shapes.selected(self, dim)

    def __getitem__(self, places: Any) -> Tensor:
        """The first entries of some dimensions, ``x[..., :t]``; no gradient."""
        return shapes.sliced(self, places)

    # -- products --------------------------------------------------------------------------
    def bmm(self, other: Tensor) -> Tensor:
        """Products of (batch, m, k) and (batch, k, n)."""
        return products.bmm(variable("bmm"), self, other)

    def linear(self, weight: Tensor, bias: Tensor | None = None, name: str = "") -> Tensor:
        """(…, k) times weight (n, k) transposed, plus bias."""
        return products.linear(name or variable("linear"), self, weight, bias)

    # -- entry by entry --------------------------------------------------------------------
    def __truediv__(self, number: Any) -> Tensor:
        """Divided by a number."""
        return pointwise.scaled(variable("divide"), self, Cost(divisions=1))

    def div_(self, number: Any) -> Tensor:
        """The same in place."""
        return pointwise.scaled(variable("divide"), self, Cost(divisions=1), into=self)

    def __mul__(self, number: Any) -> Tensor:
        """Multiplied by a number."""
        return pointwise.scaled(variable("multiply"), self, Cost(multiplications=1))

    def __add__(self, other: Tensor) -> Tensor:
        """The sum, with the second stretched where it must be."""
        return pointwise.added(variable("add"), self, other)

    def add_(self, other: Tensor) -> Tensor:
        """The same in place."""
        return pointwise.added(variable("add"), self, other, into=self)

    def softmax(self, dim: int) -> Tensor:
        """Softmax along an axis."""
        return pointwise.softmax(variable("softmax"), self)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        """Overwritten where a mask is set."""
        return pointwise.masked(variable("masked fill"), self, mask)

    def tril(self) -> Tensor:
        """Without what lies above the diagonal."""
        return pointwise.triangle(variable("lower triangle"), self)

    def triu_(self, diagonal: int = 0) -> Tensor:
        """Cut to a triangle in place; no gradient."""
        return self.result(variable("triangle"), self.shape, Cost(), [self], into=self)

    # -- new tensors -----------------------------------------------------------------------
    def clone(self) -> Tensor:
        """A copy laid out row by row."""
        return pointwise.copied(variable("clone"), self)

    def new_ones(self, *shape: Any, dtype: type | None = None) -> Tensor:
        """A tensor filled with ones; ``dtype=bool`` for a mask of a byte an entry."""
        size = 1 if dtype is bool else self.item_size
        return self.result(variable("ones"), shapes.sizes(shape), Cost(), [], item_size=size)
