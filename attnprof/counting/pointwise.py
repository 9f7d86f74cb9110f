"""Element-wise operations, reductions and moves, with the backward that torch runs for them."""

from __future__ import annotations

from collections.abc import Sequence

from attnprof.costs import Cost, Number, more_than_one, same_size
from attnprof.counting.engine import Engine, Shape, Tensor


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of an element-wise operation; sizes of literal 1 stretch."""
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    padded = (1,) * (len(long) - len(short)) + tuple(short)
    return tuple(y if _is_one(x) else x for x, y in zip(long, padded, strict=True))


def _is_one(size: Number) -> bool:
    return isinstance(size, int) and size == 1


class PointwiseOps(Engine):
    """One method an operation; each returns its result."""

    def pointwise(
        self,
        name: str,
        reads: Sequence[Tensor],
        per_entry: Cost,
        *,
        inplace: bool = False,
        shape: Shape | None = None,
    ) -> Tensor:
        """Any element-wise operation without a backward of its own (masks, inference only)."""
        shape = reads[0].shape if shape is None else shape
        into = reads[0] if inplace else None
        out_count: Number = 1
        for size in shape:
            out_count = out_count * size
        return self.emit(name, shape, per_entry * out_count, reads, into=into)

    def mul(self, name: str, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """A * b with broadcasting. Backward: one product an operand, summed where it stretched."""

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            to_a = self._product_grad(f"{name}: grad", grad, b, a) if a.requires_grad else None
            to_b = self._product_grad(f"{name}: grad", grad, a, b) if b.requires_grad else None
            return [(a, to_a), (b, to_b)]

        shape = broadcast(a.shape, b.shape)
        saves = [t for t, other in ((a, b), (b, a)) if other.requires_grad]
        cost = Cost(multiplications=_count(shape))
        into = a if inplace else None
        return self.emit(name, shape, cost, [a, b], backward=backward, saves=saves, into=into)

    def _product_grad(self, name: str, grad: Tensor, factor: Tensor, of: Tensor) -> Tensor:
        shape = broadcast(grad.shape, factor.shape)
        cost = Cost(multiplications=_count(shape))
        out = self.emit(name, shape, cost, [grad, factor])
        return self.sum_to(name, out, of.shape)

    def sum_to(self, name: str, tensor: Tensor, shape: Shape) -> Tensor:
        """Sum a gradient down to the shape that was stretched; nothing where it was not."""
        added = len(tensor.shape) - len(shape)
        stretched = [
            large
            for small, large in zip(shape, tensor.shape[added:], strict=True)
            if not same_size(small, large)
        ]
        if not added and not stretched:
            return tensor
        # an axis that turns out to be one long was not stretched; a new axis is summed anyway
        happens = 1 if added else more_than_one(_count(tuple(stretched)))
        with self.when(happens):
            cost = Cost(additions=tensor.count, reduction_outputs=_count(shape))
            out = self.emit(f"{name} (summed)", shape, cost, [tensor])
            self.free(tensor)
        return out

    def add(self, name: str, a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
        """A + b with broadcasting; in place if a may be overwritten."""

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            return [(t, self._passed(name, grad, t)) for t in (a, b) if t.requires_grad]

        shape = broadcast(a.shape, b.shape)
        into = a if inplace else None
        cost = Cost(additions=_count(shape))
        return self.emit(name, shape, cost, [a, b], backward=backward, into=into)

    def _passed(self, name: str, grad: Tensor, to: Tensor) -> Tensor:
        return self.sum_to(f"{name}: grad", self.view(grad, *grad.shape), to.shape)

    def shift(self, name: str, a: Tensor, *, inplace: bool = False) -> Tensor:
        """A + c for a constant c: one addition an entry; the gradient passes through."""
        cost = Cost(additions=a.count)
        into = a if inplace else None
        return self.emit(name, a.shape, cost, [a], backward=lambda g: _pass(self, a, g), into=into)

    def scale(self, name: str, a: Tensor, *, divide: bool = False, inplace: bool = False) -> Tensor:
        """A * c, or a / c, for a constant c; backward the same on the gradient."""
        count = a.count
        cost = Cost(divisions=count) if divide else Cost(multiplications=count)
        into = a if inplace else None

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            return [(a, self.emit(f"{name}: grad", a.shape, cost, [grad]))]

        out = self.emit(name, a.shape, cost, [a], backward=backward, into=into)
        if out.node:  # torch keeps the constant as a double
            out.node.saved = (*out.node.saved, self.held(8))
        return out

    def square(self, name: str, a: Tensor) -> Tensor:
        """a² as one multiplication an entry. Backward 2·a·grad: two."""

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            double = self.emit(f"{name}: 2a", a.shape, Cost(multiplications=a.count), [a])
            cost = Cost(multiplications=a.count)
            out = self.emit(f"{name}: grad", a.shape, cost, [grad, double])
            self.free(double)
            return [(a, out)]

        cost = Cost(multiplications=a.count)
        return self.emit(name, a.shape, cost, [a], backward=backward, saves=[a])

    def sum(self, name: str, a: Tensor, shape: Shape) -> Tensor:
        """Sum to a smaller shape; the gradient is stretched without work or memory."""
        cost = Cost(additions=a.count, reduction_outputs=_count(shape))

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            return [(a, self.view(grad, *a.shape))]

        return self.emit(name, shape, cost, [a], backward=backward)

    def move(self, name: str, a: Tensor, shape: Shape | None = None) -> Tensor:
        """A copy into fresh memory (``contiguous``, ``clone``); bytes only."""
        return self.emit(
            name,
            a.shape if shape is None else shape,
            Cost(),
            [a],
            backward=lambda g: [(a, self.view(g, *a.shape))],
        )

    def masked_fill(self, name: str, a: Tensor, mask: Tensor, *, inplace: bool = True) -> Tensor:
        """Overwrite where a mask is set: no FLOPs; the gradient is masked into a new tensor."""

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            return [(a, self.emit(f"{name}: grad", a.shape, Cost(), [grad, mask]))]

        into = a if inplace else None
        reads = [a, mask]
        return self.emit(name, a.shape, Cost(), reads, backward=backward, saves=[mask], into=into)


def _pass(tape: Engine, to: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    return [(to, tape.view(grad, *to.shape))]


def _count(shape: Shape) -> Number:
    count: Number = 1
    for size in shape:
        count = count * size
    return count
