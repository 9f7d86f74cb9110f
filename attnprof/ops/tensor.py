"""A tensor that counts: torch's names, shapes that may be symbols, no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnprof.costs import Cost, Number, maximum, more_than_one, same_size
from attnprof.ops.counter import Counter, Storage, variable
from attnprof.ops.gradients import Backward, Leaf, Node, play
from attnprof.ops.layout import Layout, Shape, as_flag, full_shape, is_literally, product

SOFTMAX = Cost(additions=2, exponentials=1, divisions=1, other=1)
#: (grad - sum(grad * p)) * p, an entry
SOFTMAX_BACKWARD = Cost(multiplications=2, additions=2)
#: Bytes of a number that autograd keeps as a tensor of its own.
_NUMBER = 8


def product_cost(rows: Number, inner: Number, columns: Number, times: Number = 1) -> Cost:
    """(rows × inner)(inner × columns), ``times`` over."""
    outputs = times * rows * columns
    count = outputs * inner
    return Cost(multiplications=count, additions=count, matmul_flops=2 * count, dot_outputs=outputs)


class Tensor:
    """A shape laid out over a storage. Its memory dies when Python drops the last tensor on it."""

    __slots__ = ("__weakref__", "counter", "held", "item_size", "layout", "node", "shape")

    def __init__(
        self,
        counter: Counter,
        shape: Shape,
        layout: Layout,
        held: Sequence[tuple[Storage, Number]],
        item_size: int,
    ) -> None:
        self.counter = counter
        self.shape = shape
        self.layout = layout
        self.held = tuple(held)
        self.item_size = item_size
        self.node: Node | None = None
        for storage, weight in self.held:
            storage.holders.append(weight)

    def __del__(self) -> None:
        for storage, weight in self.held:
            self.counter.release(storage, weight)

    # -- what it is ----------------------------------------------------------------------
    @property
    def count(self) -> Number:
        """Number of entries."""
        return product(self.shape)

    @property
    def size_bytes(self) -> Number:
        """Bytes of the entries."""
        return self.count * self.item_size

    @property
    def requires_grad(self) -> bool:
        """Whether the backward pass reaches it."""
        return self.node is not None

    @property
    def alone(self) -> bool:
        """Whether no other tensor lies in its memory, and the memory is the call's own."""
        return all(len(s.holders) == 1 and not s.external for s, _ in self.held)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    # -- how results are made --------------------------------------------------------------
    def result(
        self,
        name: str,
        shape: Shape,
        cost: Cost,
        reads: Sequence[Tensor],
        *,
        backward: Backward | None = None,
        layout: Layout | None = None,
        into: Tensor | None = None,
        item_size: int | None = None,
        keeps: Number = 0,
    ) -> Tensor:
        """One operation over ``reads``: bytes are counted, memory is taken, a node is recorded.

        ``into`` is overwritten and returned; ``backward`` gives a gradient for each of ``reads``
        that can have one; ``keeps`` are bytes of its own that autograd holds with the result.
        """
        counter = self.counter
        if into is None:
            into = made(counter, shape, layout, item_size or self.item_size)
            allocates = into.size_bytes
        else:
            allocates = 0
        moved = sum((tensor.size_bytes for tensor in reads), into.size_bytes)
        records = counter.grad and backward and any(t.requires_grad for t in reads)
        kept = keeps if records else 0
        cost = cost + Cost(bytes_moved=moved)
        counter.record(name, shape, cost, allocates + kept)
        if records:
            number = kept and Tensor(counter, (), Layout.rows(()), [(Storage(kept), 1)], 1)
            into._attach(reads, _keeping(backward, number) if number else backward)
        return into

    def _attach(self, inputs: Sequence[Tensor], backward: Backward | None) -> None:
        self.counter.nodes += 1
        self.node = Node(self.counter.nodes, [tensor.node for tensor in inputs], backward)

    def alias(self, shape: Shape, layout: Layout, backward: Backward | None = None) -> Tensor:
        """Another tensor on the same memory."""
        out = Tensor(self.counter, shape, layout, self.held, self.item_size)
        if self.counter.grad and backward and self.requires_grad:
            out._attach([self], backward)
        return out

    def detach(self) -> Tensor:
        """The same memory without a gradient."""
        return self.alias(self.shape, self.layout)

    def copied(
        self, name: str, shape: Shape, layout: Layout, flag: Number, cost: Cost | None = None
    ) -> Tensor:
        """Where the flag is 1, new memory (a copy, if no cost is given); else its own.

        The result has another shape and layout; where it is no copy, as many entries.
        """
        held, size = self.held, product(shape) * self.item_size * flag
        if not is_literally(flag, 0):
            cost = (cost or Cost(bytes_moved=2 * self.size_bytes)) * flag
            self.counter.record(name, shape, cost, size)
            shared = [(storage, as_flag(weight * (1 - flag))) for storage, weight in held]
            held = ((Storage(size), 1), *([] if is_literally(flag, 1) else shared))
        return Tensor(self.counter, shape, layout, held, self.item_size)

    # -- shapes ----------------------------------------------------------------------------
    def reshape(self, *shape: Any) -> Tensor:
        """Another shape; a copy where the layout does not allow a view."""
        return self._reshaped(variable("reshape"), _flat(shape))

    view = reshape

    def _reshaped(self, name: str, shape: Shape) -> Tensor:
        new = full_shape(shape, self.count)
        flag, layout = self.layout.reshaped(self.shape, new)
        out = self.copied(name, new, layout, flag)
        if self.counter.grad and self.requires_grad:
            old = self.shape
            out._attach([self], lambda grad: [grad._reshaped(f"{name}: grad", old)])
        return out

    def transpose(self, a: int, b: int) -> Tensor:
        """Two dimensions exchanged."""
        order = list(range(self.dim()))
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def unsqueeze(self, dim: int) -> Tensor:
        """One more dimension, of one entry."""
        shape = list(self.shape)
        shape.insert(dim % (self.dim() + 1), 1)
        return self._reshaped("unsqueeze", tuple(shape))

    def contiguous(self) -> Tensor:
        """Itself, or a copy where it is not laid out row by row."""
        name, rows = variable("contiguous"), Layout.rows(self.shape)
        flag = self.layout.differs(self.shape, rows.cases[0][1])
        out = self.copied(name, self.shape, rows, flag)
        if self.counter.grad and self.requires_grad:
            out._attach([self], lambda grad: [grad.detach()])
        return out

    def clone(self) -> Tensor:
        """A copy laid out row by row; the gradient passes as it is."""
        return self.result(
            variable("clone"), self.shape, Cost(), [self], backward=lambda grad: [grad.detach()]
        )

    def tril(self) -> Tensor:
        """Without what lies above the diagonal; the gradient is cut the same way."""
        name = variable("lower triangle")

        def backward(grad: Tensor) -> list[Tensor | None]:
            return [grad.result(f"{name}: grad", grad.shape, Cost(), [grad])]

        return self.result(name, self.shape, Cost(), [self], backward=backward)

    def select(self, dim: int, _index: Any) -> Tensor:
        """One entry of a dimension, which is gone then; no gradient."""
        place = dim % self.dim()
        order = [p for p in range(self.dim()) if p != place]
        layout = self.layout.permuted(order)
        return self.alias(tuple(self.shape[p] for p in order), layout)

    def __getitem__(self, places: Any) -> Tensor:
        """Slices from the start of some dimensions, ``x[..., :t]``; no gradient."""
        given = places if isinstance(places, tuple) else (places,)
        if Ellipsis in given:
            at = given.index(Ellipsis)
            rest = (slice(None),) * (self.dim() - len(given) + 1)
            given = (*given[:at], *rest, *given[at + 1 :])
        given = (*given, *(slice(None),) * (self.dim() - len(given)))
        ends = [size if part.stop is None else part.stop for size, part in zip(self.shape, given)]
        return self.alias(tuple(ends), self.layout)

    def expand(self, *sizes: Any) -> Tensor:
        """Stretched along new dimensions in front and those of one entry, without memory."""
        shape = _flat(sizes)
        added = len(shape) - self.dim()
        layout = self.layout.stretched(self.shape, shape)
        own = (1,) * added + self.shape
        full = tuple(b if is_literally(a, -1) else a for a, b in zip(shape, own, strict=True))
        old = self.shape
        return self.alias(full, layout, lambda grad: [grad._summed_to("expand: grad", old)])

    def permute(self, *dims: Any) -> Tensor:
        """The dimensions in another order."""
        order = [place % self.dim() for place in _flat(dims)]
        back = [order.index(place) for place in range(len(order))]
        return self.alias(
            tuple(self.shape[p] for p in order),
            self.layout.permuted(order),
            lambda grad: [grad.permute(*back)],
        )

    # -- products --------------------------------------------------------------------------
    def bmm(self, other: Tensor) -> Tensor:
        """Products of (batch, m, k) and (batch, k, n); backward: a product for each operand."""
        return self._bmm(variable("bmm"), other)

    def _bmm(self, name: str, other: Tensor) -> Tensor:
        batch, m, k = self.shape
        n = other.shape[2]
        a = self if other.requires_grad else None
        b = other if self.requires_grad else None

        def backward(grad: Tensor) -> list[Tensor | None]:
            to_a = grad._bmm(f"{name}: grad of the first", b.transpose(1, 2)) if b else None
            to_b = a.transpose(1, 2)._bmm(f"{name}: grad of the second", grad) if a else None
            return [to_a, to_b]

        cost = product_cost(m, k, n, batch)
        return self.result(name, (batch, m, n), cost, [self, other], backward=backward)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, k) times weight (n, k) transposed, plus bias: one addition a result."""
        name = variable("linear")
        n, k = weight.shape
        rows = self._reshaped(f"{name}: rows", (-1, k)) if self.dim() != 2 else self
        out = rows._addmm(name, weight, bias)
        return out._reshaped(name, (*self.shape[:-1], n)) if self.dim() != 2 else out

    def _addmm(self, name: str, weight: Tensor, bias: Tensor | None) -> Tensor:
        m, (n, k) = self.shape[0], weight.shape
        x = self if weight.requires_grad else None
        w = weight if self.requires_grad else None
        with_bias = bias is not None

        def backward(grad: Tensor) -> list[Tensor | None]:
            to_bias = to_x = to_weight = None
            if with_bias:
                cost = Cost(additions=m * n, reduction_outputs=n)
                to_bias = grad.result(f"{name}: grad of the bias", (n,), cost, [grad])
            if w:
                cost = product_cost(m, n, k)
                to_x = grad.result(f"{name}: grad of the input", (m, k), cost, [grad, w])
            if x:
                cost = product_cost(n, m, k)
                to_weight = grad.result(f"{name}: grad of the weight", (n, k), cost, [grad, x])
            return [to_x, to_weight, to_bias][: 2 + with_bias]

        cost = product_cost(m, k, n)
        if with_bias:
            cost = cost + Cost(additions=m * n)
        reads = [self, weight, bias] if bias is not None else [self, weight]
        return self.result(name, (m, n), cost, reads, backward=backward)

    # -- entry by entry --------------------------------------------------------------------
    def _scaled(self, name: str, divide: bool, into: Tensor | None = None) -> Tensor:
        count = self.count
        cost = Cost(divisions=count) if divide else Cost(multiplications=count)

        def backward(grad: Tensor) -> list[Tensor | None]:
            return [grad.result(f"{name}: grad", grad.shape, cost, [grad], layout=grad.layout)]

        number = _NUMBER if self.item_size > 1 else 1
        return self.result(
            name, self.shape, cost, [self], backward=backward, layout=self.layout, into=into,
            keeps=number,
        )  # fmt: skip

    def __truediv__(self, number: Any) -> Tensor:
        """Divided by a number."""
        return self._scaled(variable("divide"), divide=True)

    def __mul__(self, number: Any) -> Tensor:
        """Multiplied by a number."""
        return self._scaled(variable("multiply"), divide=False)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        """Overwritten where a mask is set: no FLOPs; the gradient is masked into a new tensor."""
        name = variable("masked fill")

        def backward(grad: Tensor) -> list[Tensor | None]:
            masked = grad.result(
                f"{name}: grad", grad.shape, Cost(), [grad, mask], layout=grad.layout
            )
            return [masked, None]

        return self.result(
            name, self.shape, Cost(), [self, mask], backward=backward, into=self
        )

    def softmax(self, dim: int) -> Tensor:
        """Softmax over an axis: max, shift, exponential, sum, division an entry."""
        name = variable("softmax")
        kept: list[Tensor] = []

        def backward(grad: Tensor) -> list[Tensor | None]:
            cost = SOFTMAX_BACKWARD * grad.count
            return [grad.result(f"{name}: grad", grad.shape, cost, [grad, kept[0]])]

        out = self.result(name, self.shape, SOFTMAX * self.count, [self], backward=backward)
        if out.requires_grad:
            kept.append(out.detach())
        return out

    def __add__(self, other: Tensor) -> Tensor:
        """The sum, with broadcasting of the second; its gradient is summed where it stretched."""
        return self._sum(variable("add"), other)

    def add_(self, other: Tensor) -> Tensor:
        """The same in place."""
        return self._sum(variable("add"), other, self)

    def _sum(self, name: str, other: Tensor, into: Tensor | None = None) -> Tensor:
        shape = other.shape

        def backward(grad: Tensor) -> list[Tensor | None]:
            return [grad.detach(), grad._summed_to(f"{name}: grad", shape)]

        cost = Cost(additions=self.count)
        return self.result(
            name, self.shape, cost, [self, other], backward=backward, layout=self.layout, into=into
        )

    def _summed_to(self, name: str, shape: Shape) -> Tensor:
        """A gradient summed over dimensions that were stretched; itself where none was."""
        added = self.dim() - len(shape)
        lines = zip(shape, self.shape[added:], strict=True)
        stretched = [large for small, large in lines if not same_size(small, large)]
        if not added and not stretched:
            return self.detach()
        happens = 1 if added else more_than_one(product(stretched))
        out = product(shape)
        cost = Cost(additions=self.count, reduction_outputs=out)
        moved = Cost(bytes_moved=self.size_bytes + out * self.item_size)
        return self.copied(name, shape, Layout.rows(shape), happens, cost + moved)

    # -- new tensors -----------------------------------------------------------------------
    def new_ones(self, *shape: Any, dtype: type | None = None) -> Tensor:
        """A tensor filled with ones; ``dtype=bool`` for a mask of a byte an entry."""
        size = 1 if dtype is bool else self.item_size
        return self.result(variable("ones"), _flat(shape), Cost(), [], item_size=size)

    def triu_(self, _diagonal: int = 0) -> Tensor:
        """Cut to a triangle in place."""
        return self.result(variable("triangle"), self.shape, Cost(), [self], into=self)

    def repeat(self, *times: Any) -> Tensor:
        """So many copies along each dimension."""
        shape = tuple(n * t for n, t in zip(self.shape, _flat(times), strict=True))
        return self.result(variable("repeat"), shape, Cost(), [self])

    def backward(self) -> None:
        """Play the backward pass from a gradient of ones that the caller holds."""
        counter = self.counter
        counter.grad, counter.part = False, "backward"
        root, self.node = self.node, None
        if root is not None:
            play(root, given(counter, self.shape, self.layout))


def _flat(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes given one by one, or as one sequence."""
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else tuple(shape)


def _keeping(backward: Backward | None, number: Any) -> Backward | None:
    """The same function, holding a tensor as long as itself is held."""
    if backward is None:
        return None
    run: Callable[[Any], Any] = backward
    return lambda grad, _number=number: run(grad)


def made(counter: Counter, shape: Shape, layout: Layout | None, item_size: int) -> Tensor:
    """A tensor in memory of its own, row by row unless a layout says otherwise."""
    storage = Storage(product(shape) * item_size)
    return Tensor(counter, shape, layout or Layout.rows(shape), [(storage, 1)], item_size)


def given(counter: Counter, shape: Shape, layout: Layout | None = None) -> Tensor:
    """A tensor the caller already holds: no memory of the call, no gradient."""
    held = [(Storage(0, external=True), 1)]
    return Tensor(counter, shape, layout or Layout.rows(shape), held, counter.item_size)


def leaf(counter: Counter, *shape: Number) -> Tensor:
    """An input or a weight: given, and with a gradient where autograd records."""
    tensor = given(counter, shape)
    if counter.grad:
        tensor.node = Leaf(tensor)
    return tensor


__all__ = ["Tensor", "given", "leaf", "made", "maximum", "more_than_one", "same_size"]
