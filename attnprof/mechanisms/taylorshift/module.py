"""TaylorShift in torch: both forms, the causal scan, and decoding (004, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, flat
from attnprof.workload import Workload


def apply(function: type[Function], *args: Any) -> Tensor:
    """A function with its own backward; plain operations where none is needed (or traced)."""
    if torch.is_grad_enabled() and not torch.jit.is_tracing():
        out: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]  # torch's own
        return out
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
        return x * factor, factor

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
        ctx.save_for_backward(out, scaled)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """g / z for the nominator, -Σ g·out · scale / z for the denominator."""
        out, scaled = ctx.saved_tensors
        shared = (grad * out).sum(-1, keepdim=True)
        return grad / scaled, shared.neg_().mul_(ctx.scale).div_(scaled), None


def features(x: Tensor, linear: float) -> Tensor:
    """[x ⊠ x, linear·x, linear]: (b, c, d) → (b, c, d² + d + 1), filled in place."""
    b, c, d = x.shape
    out = x.new_empty(b, c, d * d + d + 1)
    squares = out[..., : d * d].unflatten(-1, (d, d))
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
            absorb(state, k[:, here], v[:, here])
        state.zero_()
        for here in reversed(list(chunks(q.shape[1], ctx.size))):
            part = torch.bmm(v[:, here], state.transpose(1, 2))
            dk[:, here] += feature_gradient(part, k[:, here], 1)
            del part
            dv[:, here] += torch.bmm(features(k[:, here], 1), state)
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
    dq[:, here] += torch.bmm(scores, k[:, here])
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
    dtype = torch.promote_types(like.dtype, torch.float32)
    tokens = torch.arange(1, n + 1, device=like.device, dtype=dtype)
    scale = tokens.reciprocal_().mul_(like.shape[-1]).sqrt_()
    return scale.to(like.dtype).unsqueeze(-1)


class TaylorCore(AttentionCore):
    """What both forms share: a temperature a head, and normalised rows."""

    def __init__(self, spec: Any, sizes: Any) -> None:
        super().__init__(spec, sizes)
        self.temperature = nn.Parameter(torch.full((sizes.num_heads,), float(spec.temperature)))

    def normalised(self, q: Tensor, k: Tensor, length: float = 1.0) -> tuple[Tensor, Tensor]:
        """Rows of length ``length``, queries times their temperature; (b·h, n, d) each."""
        rows = apply(Rows, q, length) * self.temperature.view(-1, 1, 1)
        return flat(rows), apply(Rows, flat(k), length)

    def direct(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(x + 1)² + 1 of every score (twice the Taylor map), row by row normalised."""
        b, h, n, d = q.shape
        scale = row_scale(n, q) if causal else math.sqrt(d / n)
        queries, keys = self.normalised(q, k)
        out = direct_rows(queries, keys, flat(v), scale, causal)
        return out.view(b, h, n, -1)

    def efficient(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Algorithm 1; where causal a scan over chunks, with N := t in row t."""
        b, h, n, d = q.shape
        if causal:
            queries, keys = self.normalised(q, k)
            y = apply(Scan, queries, keys, with_ones(flat(v)), self.spec.chunk)
            del queries, keys
            bottom, top = y.split([1, d], -1)
            return apply(Ratio, top, bottom, row_scale(n, q)).view(b, h, n, d)
        queries, keys = self.normalised(q, k, d**0.25)
        y = boxed_sums(queries, keys, flat(v))
        del queries, keys
        bottom, top = y.split([1, d], -1)
        return apply(Ratio, top, bottom, 1.0).view(b, h, n, d)

    def init_state(self, batch_size: int, like: Tensor) -> TaylorState:
        """Nothing seen yet."""
        batch, d = batch_size * self.sizes.num_heads, self.sizes.head_dim
        return TaylorState(batch, d, like, self.sizes.seq_len)

    def direct_step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> Tensor:
        """The new token against the cached normalised keys and values."""
        queries, keys = self.normalised(q, k)
        keys, values = state.cache(keys, flat(v))
        scale = math.sqrt(q.shape[-1] / state.length)
        return direct_rows(queries, keys, values, scale, causal=False).view(q.shape)

    def efficient_step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> Tensor:
        """The new token joins the sums and reads them: O(d³), whatever the length."""
        sums = state.built(self.spec.chunk)
        state.length += 1
        queries, keys = self.normalised(q, k)
        absorb(sums, keys, with_ones(flat(v)))
        y = torch.bmm(features(queries, 2), sums)
        scale = math.sqrt(q.shape[-1] / state.length)
        return apply(Ratio, y[..., 1:], y[..., :1], scale).view(q.shape)


def direct_rows(
    q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float, causal: bool
) -> Tensor:
    """Rows of the normalised Taylor map times v, by sqrt(d / N); (b, n, d) each."""
    scores = torch.bmm(q, k.transpose(1, 2)).add_(1)
    del q, k
    weights = (scores * scores).add_(1)
    del scores
    if causal:
        weights = weights.tril_()
    bottom = weights.sum(-1, keepdim=True)
    return apply(Ratio, torch.bmm(weights, v), bottom, scale)


def boxed_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ŷ of Algorithm 1, (b, n, d + 1); one N × d² tensor alive at a time."""
    n, d = v.shape[1:]
    values = F.pad(v, (1, 0), value=math.sqrt(d / n)).div_(n)
    box = apply(Box, k)
    mixed = torch.bmm(box.transpose(1, 2), values)
    del box
    box = apply(Box, q)
    y = torch.bmm(box, mixed).mul_(0.5)
    del box, mixed
    linear = torch.bmm(k.transpose(1, 2), values)
    y += torch.bmm(q, linear).mul_(math.sqrt(d))
    y += values.sum(1, keepdim=True).mul_(d)
    return y


@dataclass
class TaylorState:
    """What a decoder keeps: normalised keys and values, or, once built, their sums."""

    batch: int
    head_dim: int
    like: Tensor
    room: int | None = None
    length: int = 0
    keys: TokenCache | None = None
    values: TokenCache | None = None
    sums: Tensor | None = None

    def cache(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token (b·h, 1, d); all keys and values so far."""
        if self.keys is None or self.values is None:
            self.keys = TokenCache(self.batch, self.head_dim, self.like, self.room)
            self.values = TokenCache(self.batch, self.head_dim, self.like, self.room)
        self.length += 1
        return self.keys.append(k), self.values.append(v)

    def built(self, size: int) -> Tensor:
        """The sums (b·h, d² + d + 1, d + 1); built once from the cache, which is let go."""
        if self.sums is None:
            d = self.head_dim
            self.sums = self.like.new_zeros(self.batch, d * d + d + 1, d + 1)
            if self.keys is not None and self.values is not None:
                keys, values = self.keys.seen, self.values.seen
                for here in chunks(self.length, size):
                    absorb(self.sums, keys[:, here], with_ones(values[:, here]))
            self.keys = self.values = None
        return self.sums


class DirectCore(TaylorCore):
    """Forms the N × N scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each."""
        return self.direct(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each."""
        return self.direct_step(q, k, v, state), state


class EfficientCore(TaylorCore):
    """Forms N × d² box products, never N × N."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each."""
        return self.efficient(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each."""
        return self.efficient_step(q, k, v, state), state


class SwitchingCore(TaylorCore):
    """The direct form while it is not dearer."""

    def _direct(self, seq_len: int, batch: int, *, causal: bool, phase: str) -> bool:
        s = self.sizes
        workload = Workload(seq_len, s.num_heads, s.head_dim, batch, causal=causal, phase=phase)
        chosen: bool = self.spec.takes_direct(workload)
        return chosen

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each; in training the whole step decides."""
        phase = "train" if torch.is_grad_enabled() else "forward"
        direct = self._direct(q.shape[2], q.shape[0], causal=causal, phase=phase)
        return self.direct(q, k, v, causal) if direct else self.efficient(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each; once the sums are built they are kept."""
        token, batch = state.length + 1, q.shape[0]
        direct = state.sums is None and self._direct(token, batch, causal=True, phase="decode")
        return (self.direct_step if direct else self.efficient_step)(q, k, v, state), state


CORES = {"taylor-direct": DirectCore, "taylor-efficient": EfficientCore, "taylorshift": SwitchingCore}
