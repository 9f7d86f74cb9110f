"""TaylorShift's operations with their own backward: rows, boxes, maps, ratios.

Each saves less than autograd would.
"""

import math
from typing import Any

from attnprof.ops import functional
from attnprof.ops.function import Function


def _rows(x: Any, *, length: Any) -> tuple[Any, tuple[Any, ...]]:
    norm = x.norm(dim=-1, keepdim=True)
    norm.masked_fill_(norm.eq(0), math.inf)
    factor = norm.reciprocal_().mul_(length)
    # heads of one sequence are strided; one after the other, nothing later copies them
    out = x.new_empty(x.shape)
    functional.put_entries(out, "mul", x, factor)
    return out, (out, factor)


def _rows_grad(saved: tuple[Any, ...], grad: Any, *, length: Any) -> tuple[Any]:
    """What is left of the gradient across the row: (g - y (y·g) / length²) · factor."""
    y, factor = saved
    along = (grad * y).sum(-1, keepdim=True).div_(length**2)
    return ((y * along).neg_().add_(grad).mul_(factor),)


#: Rows of (…, d) scaled to a length; a zero row stays zero and passes no gradient.
rows_to_length = Function(_rows, _rows_grad)


def _map(scores: Any, *, causal: bool) -> tuple[Any, tuple[Any, ...]]:
    weights = (scores * scores).add_(1)
    return (weights.tril_() if causal else weights), (scores,)


def _map_grad(saved: tuple[Any, ...], grad: Any, *, causal: bool) -> tuple[Any]:
    out = (grad * saved[0]).mul_(2)
    return (out.tril_() if causal else out,)


#: s² + 1 of shifted scores (b, n, m), twice the Taylor map; zero above the diagonal if causal.
taylor_map = Function(_map, _map_grad)


def box_product(x: Any) -> Any:
    """X ⊠ x: (b, n, d) → (b, n, d²), every product of two entries of a row."""
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def box_grad(grad: Any, x: Any) -> Any:
    """(G + Gᵀ) x for the (d, d) gradient G of every row's box product."""
    b, n, d = x.shape
    square, row = grad.reshape(b * n, d, d), x.reshape(b * n, d, 1)
    out = square.bmm(row)
    out.add_(square.transpose(1, 2).bmm(row))
    return out.view(b, n, d)


#: The same, which saves x alone.
box = Function(lambda x: (box_product(x), (x,)), lambda saved, grad: (box_grad(grad, *saved),))


def _ratio(top: Any, bottom: Any, rows: Any, *, factor: Any) -> tuple[Any, tuple[Any, ...]]:
    scaled = bottom * (factor if rows is None else rows)
    out = top / scaled
    return out, (out, scaled, rows)


def _ratio_grads(saved: tuple[Any, ...], grad: Any, *, factor: Any) -> tuple[Any, Any, None]:
    """The nominator's is g / z, the denominator's -Σ g·out · scale / z."""
    out, scaled, rows = saved
    shared = (grad * out).sum(-1, keepdim=True)
    to_top = grad / scaled
    return to_top, shared.neg_().mul_(factor if rows is None else rows).div_(scaled), None


_scaled_ratio = Function(_ratio, _ratio_grads)


def ratio(top: Any, bottom: Any, scale: Any) -> Any:
    """Nominator (b, n, d) by denominator (b, n, 1) times a scale: rows (n, 1), or a number."""
    rows, factor = (scale, 1.0) if hasattr(scale, "unsqueeze") else (None, scale)
    return _scaled_ratio(top, bottom, rows, factor=factor)


def with_ones(v: Any) -> Any:
    """[1, v]: a column of ones gives the denominator with the nominator."""
    return functional.padded(v, before=1, value=1.0)


def row_scale(n: Any, like: Any) -> Any:
    """Rows sqrt(d / t) for t = 1 … n, (n, 1): the denominator's share of the output scale."""
    scale = functional.wide_positions(like, n).reciprocal_().mul_(like.shape[-1]).sqrt_()
    return functional.as_format_of(scale, like).unsqueeze(-1)


def weighted(weights: Any, v: Any, scale: Any) -> Any:
    """Rows of weights (b, n, m) normalised, times v (b, m, d), by sqrt(N / d)."""
    bottom = weights.sum(-1, keepdim=True)
    top = weights.bmm(v)
    return ratio(top, bottom, scale)


def boxed_sums(q: Any, k: Any, v: Any) -> Any:
    """Ŷ of Algorithm 1, (b, n, d + 1); one N × d² tensor alive at a time."""
    n, d = v.shape[1:]
    values = functional.padded(v, before=1, value=functional.square_root(d, over=n)).div_(n)
    total = values.sum(1, keepdim=True).mul_(d)
    boxed = box(k)
    mixed = values.transpose(1, 2).bmm(boxed)  # this way round its gradient needs no copy
    del boxed
    boxed = box(q)
    y = boxed.bmm(mixed.transpose(1, 2)).mul_(0.5)
    del boxed, mixed
    linear = k.transpose(1, 2).bmm(values)
    y.add_(q.bmm(linear).mul_(functional.square_root(d)))
    del linear
    return functional.add_row_(y, total)
