"""TaylorShift's operations with their own backward: rows, boxes, maps, ratios, the causal scan.

Each saves less than autograd would, and runs as plain operations where no gradient is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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


def features(x: Tensor, linear: float) -> Tensor:
    """[x ⊠ x, linear·x, linear]: (b, c, d) → (b, c, d² + d + 1), filled in place."""
    b, c, d = x.shape
    out = x.new_empty(b, c, d * d + d + 1)
    squares = out[..., : d * d].view(b, c, d, d)
    squares.copy_(x.unsqueeze(-1).expand(b, c, d, d)).mul_(x.unsqueeze(-2))
    middle = out[..., d * d : -1].copy_(x)
    if linear != 1:
        middle.mul_(linear)
    out[..., -1:].fill_(linear)
    return out


def feature_gradient(grad: Tensor, x: Tensor, linear: float) -> Tensor:
    """The gradient of x from that of its features."""
    d = x.shape[-1]
    out = box_gradient(grad[..., : d * d], x)
    middle = grad[..., d * d : -1]
    return out.add_(middle * linear if linear != 1 else middle)


def chunks(n: int, size: int) -> Iterator[slice]:
    """Slices of the tokens, the last one shorter where it must be."""
    return (slice(low, min(low + size, n)) for low in range(0, n, size))


class Scan(Function):
    """Causal sums Σ_{s ≤ t} ((q_t·k_s + 1)² + 1) v_s, a chunk at a time.

    Within a chunk the scores, across chunks the state (d² + d + 1) × width. Backward scans
    again, forwards for q and backwards for k and v, so nothing of N × d² is ever kept.
    """

    @staticmethod
    def compute(q: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Tensor]:
        """Q, k (b, n, d), v (b, n, width) → (b, n, width)."""
        out, state = torch.empty_like(v), empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], size):
            weights = torch.bmm(q[:, here], k[:, here].transpose(1, 2)).add_(1)
            weights = weights.mul_(weights).add_(1).tril_()
            part = torch.bmm(weights, v[:, here])
            del weights
            part += torch.bmm(features(q[:, here], 2), state)
            out[:, here] = part
            del part
            if here.stop < q.shape[1]:  # nothing reads what the last chunk would add
                absorb(state, k[:, here], v[:, here])
        return (out,)

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
        """The sums; only the inputs are saved."""
        ctx.save_for_backward(q, k, v)
        ctx.size = size
        return Scan.compute(q, k, v, size)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k, v by two scans."""
        q, k, v = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        state = empty_state(q, v.shape[-1])
        for here in chunks(q.shape[1], ctx.size):
            part = torch.bmm(grad[:, here], state.transpose(1, 2))
            dq[:, here] = feature_gradient(part, q[:, here], 2)
            del part
            within(q, k, v, grad, dq, dk, dv, here)
            if here.stop < q.shape[1]:  # nothing reads what the last chunk would add
                absorb(state, k[:, here], v[:, here])
        state.zero_()
        for here in reversed(list(chunks(q.shape[1], ctx.size))):
            part = torch.bmm(v[:, here], state.transpose(1, 2))
            dk[:, here].add_(feature_gradient(part, k[:, here], 1))
            del part
            dv[:, here].add_(torch.bmm(features(k[:, here], 1), state))
            if here.start > 0:
                state += torch.bmm(features(q[:, here], 2).transpose(1, 2), grad[:, here])
        return dq, dk, dv, None


def within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    here: slice,
) -> None:
    """The gradients that stay within one chunk; dq is added to, dk and dv are set."""
    shifted = torch.bmm(q[:, here], k[:, here].transpose(1, 2)).add_(1)
    weights = (shifted * shifted).add_(1).tril_()
    dv[:, here] = torch.bmm(weights.transpose(1, 2), grad[:, here])
    del weights
    scores = torch.bmm(grad[:, here], v[:, here].transpose(1, 2)).tril_().mul_(2).mul_(shifted)
    del shifted
    dq[:, here].add_(torch.bmm(scores, k[:, here]))
    dk[:, here] = torch.bmm(scores.transpose(1, 2), q[:, here])


def empty_state(like: Tensor, width: int) -> Tensor:
    """Zeros (b, d² + d + 1, width)."""
    b, _, d = like.shape
    return like.new_zeros(b, d * d + d + 1, width)


def absorb(state: Tensor, k: Tensor, v: Tensor) -> None:
    """Add keys (b, c, d) with their values (b, c, width) to a state, in place."""
    state += torch.bmm(features(k, 1).transpose(1, 2), v)


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
