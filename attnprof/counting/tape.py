"""Matrix products, softmax and the reshapes of heads: the operations attention is made of."""

from __future__ import annotations

from attnprof.costs import Cost, Number, exact_div, maximum, more_than_one
from attnprof.counting.engine import Storage, Tensor, product
from attnprof.counting.pointwise import PointwiseOps


def product_cost(rows: Number, inner: Number, columns: Number, times: Number = 1) -> Cost:
    """(rows × inner)(inner × columns), ``times`` over."""
    outputs = times * rows * columns
    count = outputs * inner
    return Cost(multiplications=count, additions=count, matmul_flops=2 * count, dot_outputs=outputs)


SOFTMAX = Cost(additions=2, exponentials=1, divisions=1, other=1)
#: (grad - sum(grad * p)) * p, an entry
SOFTMAX_BACKWARD = Cost(multiplications=2, additions=2)


class Tape(PointwiseOps):
    """Everything a ``spec.py`` writes with."""

    def bmm(self, name: str, a: Tensor, b: Tensor, *, ta: bool = False, tb: bool = False) -> Tensor:
        """Products of (batch, m, k) and (batch, k, n); ``ta``, ``tb`` read one transposed.

        Backward: two more products of the same size, for the operands that need them.
        """
        batch, m, k = self._matrix(a, ta)
        _, _, n = self._matrix(b, tb)

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            return [
                (a, self._operand_grad(f"{name}: grad a", grad, b, a, ta, not tb, first=True)),
                (b, self._operand_grad(f"{name}: grad b", grad, a, b, tb, not ta, first=False)),
            ]

        saves = [t for t, other in ((a, b), (b, a)) if other.requires_grad]
        cost = product_cost(m, k, n, batch)
        return self.emit(name, (batch, m, n), cost, [a, b], backward=backward, saves=saves)

    def _operand_grad(
        self, name: str, grad: Tensor, other: Tensor, of: Tensor, flip: bool, t: bool, first: bool
    ) -> Tensor | None:
        if not of.requires_grad:
            return None
        out = self.bmm(name, grad, other, tb=t) if first else self.bmm(name, other, grad, ta=t)
        if flip:
            out.shape = of.shape
        return out

    @staticmethod
    def _matrix(tensor: Tensor, transposed: bool) -> tuple[Number, Number, Number]:
        batch, rows, columns = tensor.shape
        return (batch, columns, rows) if transposed else (batch, rows, columns)

    def linear(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """X (…, k) times weight (n, k) transposed, plus bias: one addition a result."""
        n, k = weight.shape
        rows = product(x.shape[:-1])
        cost = product_cost(rows, k, n)
        if bias is not None:
            cost = cost + Cost(additions=rows * n)

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            grads: list[tuple[Tensor, Tensor | None]] = []
            if bias is not None and bias.requires_grad:
                cost = Cost(additions=rows * n, reduction_outputs=n)
                grads.append((bias, self.emit(f"{name}: grad bias", bias.shape, cost, [grad])))
            back = product_cost(rows, n, k)
            if x.requires_grad:
                grads.append((x, self.emit(f"{name}: grad x", x.shape, back, [grad, weight])))
            if weight.requires_grad:
                cost = product_cost(n, rows, k)
                grads.append((weight, self.emit(f"{name}: grad W", (n, k), cost, [grad, x])))
            return grads

        reads = [x, weight] if bias is None else [x, weight, bias]
        saves = [t for t, other in ((x, weight), (weight, x)) if other.requires_grad]
        return self.emit(name, (*x.shape[:-1], n), cost, reads, backward=backward, saves=saves)

    def softmax(self, name: str, a: Tensor) -> Tensor:
        """Softmax over the last axis: max, shift, exponential, sum, division an entry."""
        holder: list[Tensor] = []

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            cost = SOFTMAX_BACKWARD * a.count
            return [(a, self.emit(f"{name}: grad", a.shape, cost, [grad, holder[0]]))]

        out = self.emit(name, a.shape, SOFTMAX * a.count, [a], backward=backward)
        holder.append(out)
        if out.node:
            out.node.saved = (out,)
            out.storage.holders += 1
        return out

    def expand(self, name: str, a: Tensor, times: Number) -> Tensor:
        """(1, …) stretched to (times, …) without memory; its gradient is summed back.

        The sum does not happen for one: the gradient passes as it is.
        """

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            many = more_than_one(times)
            added = many * grad.count
            cost = Cost(additions=added, reduction_outputs=many * a.count)
            moved = Cost(bytes_moved=many * (grad.size + a.size))
            allocates, frees = many * a.size, many * grad.size
            self.record(f"{name}: grad", a.shape, cost + moved, allocates, frees=frees)
            grad.storage.holders += 1
            grad.storage.size = a.size
            return [(a, Tensor(a.shape, grad.storage, a.item_size))]

        return self.alias(a, (times, *a.shape[1:]), backward)

    # -- reshapes that copy only where strides make them ---------------------------------
    def rearrange(
        self,
        name: str,
        a: Tensor,
        shape: tuple[Number, ...],
        copies: Number,
        grad_copies: Number | None = None,
    ) -> Tensor:
        """A reshape that copies where ``copies`` is 1 and is a view where it is 0.

        It takes over the memory of ``a``, which dies where it was copied (inputs stay).
        Backward copies where ``grad_copies`` is 1 (default: the same).
        """
        back = copies if grad_copies is None else grad_copies

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            grad.storage.holders += 1
            return [(a, self._rearranged(f"{name}: grad", grad, a.shape, back))]

        out = self._rearranged(name, a, shape, copies)
        if self.grad and a.requires_grad:
            self.attach(out, name, backward, ())
        return out

    def _rearranged(
        self, name: str, a: Tensor, shape: tuple[Number, ...], copies: Number
    ) -> Tensor:
        size = a.size * copies
        if isinstance(copies, int) and copies == 0:
            return Tensor(shape, a.storage, a.item_size)
        moved = Cost(bytes_moved=2 * size)
        if a.storage.external:
            self.record(name, shape, moved, size)
            return Tensor(shape, Storage(size), a.item_size)
        self.record(name, shape, moved, size, frees=size)
        return Tensor(shape, a.storage, a.item_size)

    def split_heads(
        self, name: str, x: Tensor, heads: Number, *, grouped: Number = 0, flipped: bool = False
    ) -> Tensor:
        """(b, n, h·d) → (b·h, n, d).

        A copy where heads and tokens exceed one and so does the batch, or ``grouped`` is 1:
        queries that share key heads. ``flipped``: the gradient arrives transposed, as that of
        keys.
        """
        b, n, width = x.shape
        many = more_than_one(heads) * more_than_one(n)
        alone = isinstance(grouped, int) and grouped == 0
        copies = many * (more_than_one(b) if alone else maximum(more_than_one(b), grouped))
        back = more_than_one(b) * more_than_one(n) if flipped else many
        return self.rearrange(name, x, (b * heads, n, exact_div(width, heads)), copies, back)

    def merge_heads(self, name: str, y: Tensor, batch: Number, heads: Number) -> Tensor:
        """(b·h, n, d) → (b, n, h·d); copies where heads and tokens exceed one."""
        _, n, d = y.shape
        copies = more_than_one(heads) * more_than_one(n)
        back = more_than_one(batch) * copies
        return self.rearrange(name, y, (batch, n, heads * d), copies, back)
