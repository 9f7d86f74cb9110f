"""Products of matrices, with the products that make up their backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from attnprof.costs import Cost, Number
from attnprof.ops.base import Base
from attnprof.ops.shapes import permute, reshape

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
