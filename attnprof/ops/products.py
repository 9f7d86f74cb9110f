"""Products of matrices, with the products that make up their backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from attnprof.costs import Cost, Number
from attnprof.errors import RequestError
from attnprof.ops.base import Base
from attnprof.ops.shapes import expand, permute, reshape, stretched

T = TypeVar("T", bound=Base)


def product_cost(rows: Number, inner: Number, columns: Number, times: Number = 1) -> Cost:
    """(rows × inner)(inner × columns), ``times`` over."""
    outputs = times * rows * columns
    count = outputs * inner
    return Cost(multiplications=count, additions=count, matmul_flops=2 * count, dot_outputs=outputs)


def bmm(name: str, a: T, b: T) -> T:
    """Products of (batch, m, k) and (batch, k, n)."""
    (batch, m, k), n = a.shape, b.shape[2]
    first = a if b.requires_grad else None  # what autograd saves
    second = b if a.requires_grad else None

    def backward(grad: T) -> list[T | None]:
        to_a = bmm(f"{name}: grad of the first", grad, _turned(second)) if second else None
        to_b = bmm(f"{name}: grad of the second", _turned(first), grad) if first else None
        return [to_a, to_b]

    cost = product_cost(m, k, n, batch)
    return a.result(name, (batch, m, n), cost, [a, b], backward=backward)


def mm(name: str, a: T, b: T) -> T:
    """The product of (m, k) and (k, n)."""
    (m, k), n = a.shape, b.shape[1]
    first = a if b.requires_grad else None
    second = b if a.requires_grad else None

    def backward(grad: T) -> list[T | None]:
        to_a = mm(f"{name}: grad of the first", grad, permute(second, (1, 0))) if second else None
        to_b = mm(f"{name}: grad of the second", permute(first, (1, 0)), grad) if first else None
        return [to_a, to_b]

    return a.result(name, (m, n), product_cost(m, k, n), [a, b], backward=backward)


def matmul(name: str, a: T, b: T) -> T:
    """Products of the last two dimensions; those before broadcast, which copies what stretches.

    A matrix on the right takes the rows of all of the left at once, as torch does, where they lie
    one after the other or it needs a gradient.
    """
    if a.dim() == b.dim() == 2:
        return mm(name, a, b)
    if a.dim() == 1 or b.dim() == 1:
        raise RequestError(f"{name}: the counter multiplies matrices, not vectors; unsqueeze them")
    needs_grad = b.counter.grad and b.requires_grad
    if b.dim() == 2 and (needs_grad or a.layout.folds(a.shape)):
        rows = mm(name, reshape(f"{name}: rows", a, (-1, a.shape[-1])), b)
        return reshape(name, rows, (*a.shape[:-1], b.shape[1]))
    before = stretched(a.shape[:-2], b.shape[:-2])
    left, right = (
        reshape(f"{name}: operand", expand(x, (*before, *x.shape[-2:])), (-1, *x.shape[-2:]))
        for x in (a, b)
    )
    return reshape(name, bmm(name, left, right), (*before, a.shape[-2], b.shape[-1]))


def into(name: str, to: T, a: T, b: T, *, add: bool = False, factors: int = 0) -> T:
    """The same put, or added, where ``to`` lies; no gradient.

    ``factors`` numbers multiply an entry of what is there, or of the product.
    """
    (batch, m, k), n = a.shape, b.shape[2]
    entries = Cost(additions=1 if add else 0, multiplications=factors) * to.count
    cost = product_cost(m, k, n, batch) + entries
    return to.result(name, to.shape, cost, [to, a, b] if add else [a, b], into=to)


def baddbmm(name: str, x: T, a: T, b: T) -> T:
    """The same added to what broadcasts to their shape, in new memory; no gradient."""
    (batch, m, k), n = a.shape, b.shape[2]
    cost = product_cost(m, k, n, batch) + Cost(additions=batch * m * n)
    return a.result(name, (batch, m, n), cost, [x, a, b])


def _turned(x: T) -> T:
    return permute(x, (0, 2, 1))


def linear(name: str, x: T, weight: T, bias: T | None) -> T:
    """(…, k) times weight (n, k) transposed, plus bias: one addition a result."""
    if x.dim() == 2:
        return _with_bias(name, x, weight, bias)
    n, k = weight.shape
    out = _with_bias(name, reshape(f"{name}: rows", x, (-1, k)), weight, bias)
    return reshape(name, out, (*x.shape[:-1], n))


def _with_bias(name: str, x: T, weight: T, bias: T | None) -> T:
    m, (n, k), has_bias = x.shape[0], weight.shape, bias is not None
    saved = x if weight.requires_grad else None
    saved_weight = weight if x.requires_grad else None

    def backward(grad: T) -> Sequence[T | None]:
        to_bias = to_x = to_weight = None
        if has_bias:
            cost = Cost(additions=m * n, reduction_outputs=n)
            to_bias = grad.result(f"{name}: grad of the bias", (n,), cost, [grad])
        if saved_weight:
            reads = [grad, saved_weight]
            cost = product_cost(m, n, k)
            to_x = grad.result(f"{name}: grad of the input", (m, k), cost, reads)
        if saved:
            reads = [grad, saved]
            cost = product_cost(n, m, k)
            to_weight = grad.result(f"{name}: grad of the weight", (n, k), cost, reads)
        return [to_x, to_weight, to_bias] if has_bias else [to_x, to_weight]

    cost = product_cost(m, k, n) + Cost(additions=m * n if has_bias else 0)
    reads = [x, weight] if bias is None else [x, weight, bias]
    return x.result(name, (m, n), cost, reads, backward=backward)
