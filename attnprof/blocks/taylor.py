"""TaylorShift's operations with their own backward: rows, boxes, maps, ratios.

Each saves less than autograd would, and runs as plain operations where no gradient is wanted.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


def apply(function: type[Function], *args: Any) -> Tensor:
    """A function with its own backward; plain operations where none is needed (or traced)."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]  # torch's own
    if torch.is_grad_enabled() and not tracing:
        out: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]  # torch's own
        return out
    with torch.no_grad():  # a tracer may want gradients nevertheless
        plain: Tensor = function.compute(*args)[0]  # type: ignore[attr-defined]  # every class below
    return plain


class Rows(Function):
    """Rows of (b, n, d) scaled to a length; a zero row stays zero and passes no gradient."""

    @staticmethod
    def compute(x: Tensor, length: float) -> tuple[Tensor, Tensor]:
        """The scaled rows, and length / norm of each (0 for a zero row)."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        norm.masked_fill_(norm == 0, math.inf)
        factor = norm.reciprocal_().mul_(length)
        # heads of one sequence are strided; one after the other, nothing later copies them
        out = x.new_empty(x.shape)
        return torch.mul(x, factor, out=out), factor

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: float) -> Tensor:
        """The scaled rows."""
        y, factor = Rows.compute(x, length)
        ctx.save_for_backward(y, factor)
        ctx.length = length
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """What is left of the gradient across the row: (g - y (y·g) / length²) · factor."""
        y, factor = ctx.saved_tensors
        along = (grad * y).sum(-1, keepdim=True).div_(ctx.length**2)
        return (y * along).neg_().add_(grad).mul_(factor), None


class Map(Function):
    """s² + 1 of shifted scores (b, n, m), twice the Taylor map; zero above the diagonal."""

    @staticmethod
    def compute(scores: Tensor, causal: bool) -> tuple[Tensor]:
        """The weights."""
        weights = (scores * scores).add_(1)
        return (weights.tril_() if causal else weights,)

    @staticmethod
    def forward(ctx: Any, scores: Tensor, causal: bool) -> Tensor:
        """The weights."""
        ctx.save_for_backward(scores)
        ctx.causal = causal
        return Map.compute(scores, causal)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """2·s·g."""
        out = (grad * ctx.saved_tensors[0]).mul_(2)
        return out.tril_() if ctx.causal else out, None


class Box(Function):
    """x ⊠ x: (b, n, d) → (b, n, d²), every product of two entries of a row."""

    @staticmethod
    def compute(x: Tensor) -> tuple[Tensor]:
        """Its N·d² products."""
        return ((x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2),)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Its N·d² products."""
        ctx.save_for_backward(x)
        return Box.compute(x)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """(G + Gᵀ) x a row."""
        return box_gradient(grad, *ctx.saved_tensors)


def box_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """(G + Gᵀ) x for the (d, d) gradient G of every row's box product."""
    b, n, d = x.shape
    square, row = grad.reshape(b * n, d, d), x.reshape(b * n, d, 1)
    out = torch.bmm(square, row)
    out += torch.bmm(square.transpose(1, 2), row)
    return out.view(b, n, d)


class Ratio(Function):
    """Nominator (b, n, d) by denominator (b, n, 1) times a scale: a number, or (n, 1)."""

    @staticmethod
    def compute(top: Tensor, bottom: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        """The quotients and the scaled denominator."""
        scaled = bottom * scale
        return top / scaled, scaled

    @staticmethod
    def forward(ctx: Any, top: Tensor, bottom: Tensor, scale: Tensor | float) -> Tensor:
        """The quotients."""
        out, scaled = Ratio.compute(top, bottom, scale)
        tensors = (scale,) if isinstance(scale, Tensor) else ()
        ctx.save_for_backward(out, scaled, *tensors)
        ctx.factor = None if tensors else scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients: g / z for the nominator, -Σ g·out · scale / z for the denominator."""
        out, scaled, *tensors = ctx.saved_tensors
        scale = tensors[0] if tensors else ctx.factor
        shared = (grad * out).sum(-1, keepdim=True)
        return grad / scaled, shared.neg_().mul_(scale).div_(scaled), None


def with_ones(v: Tensor) -> Tensor:
    """[1, v]: a column of ones gives the denominator with the nominator."""
    return F.pad(v, (1, 0), value=1.0)


def row_scale(n: int, like: Tensor) -> Tensor:
    """Rows sqrt(d / t) for t = 1 … n, (n, 1): the denominator's share of the output scale."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    tokens = torch.arange(1, n + 1, device=like.device, dtype=dtype)
    scale = tokens.reciprocal_().mul_(like.shape[-1]).sqrt_()
    return scale.to(like.dtype).unsqueeze(-1)


def weighted(weights: Tensor, v: Tensor, scale: Tensor | float) -> Tensor:
    """Rows of weights (b, n, m) normalised, times v (b, m, d), by sqrt(N / d)."""
    bottom = weights.sum(-1, keepdim=True)
    top = torch.bmm(weights, v)
    return apply(Ratio, top, bottom, scale)


def boxed_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ŷ of Algorithm 1, (b, n, d + 1); one N × d² tensor alive at a time."""
    n, d = v.shape[1:]
    values = F.pad(v, (1, 0), value=math.sqrt(d / n)).div_(n)
    total = values.sum(1, keepdim=True).mul_(d)
    box = apply(Box, k)
    mixed = torch.bmm(values.transpose(1, 2), box)  # this way round its gradient needs no copy
    del box
    box = apply(Box, q)
    y = torch.bmm(box, mixed.transpose(1, 2)).mul_(0.5)
    del box, mixed
    linear = torch.bmm(k.transpose(1, 2), values)
    y += torch.bmm(q, linear).mul_(math.sqrt(d))
    del linear
    y += total
    return y
