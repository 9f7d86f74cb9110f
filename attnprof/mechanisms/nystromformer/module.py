"""Nystromformer in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.blocks.shifts import shifted_sum
from attnprof.errors import RequestError
from attnprof.mechanisms.nystromformer.spec import Nystromformer


class _SegmentMeans(torch.autograd.Function):
    """Means of m segments, the first n mod m one token longer; backward spreads them evenly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, m: int) -> Tensor:
        ctx.shape = x.shape
        longer, shorter = _segments(x, m)
        return torch.cat([longer.mean(2), shorter.mean(2)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = grad.new_empty(ctx.shape)
        longer, shorter = _segments(out, grad.shape[1])
        more = longer.shape[1]
        shares = grad[:, :more] / max(1, longer.shape[2]), grad[:, more:] / shorter.shape[2]
        longer.copy_(shares[0].unsqueeze(2))
        shorter.copy_(shares[1].unsqueeze(2))
        return out, None


def _segments(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """(b, n, d) as (b, n mod m, ⌊n/m⌋ + 1, d) and (b, the other segments, ⌊n/m⌋, d), views."""
    size, more = divmod(x.shape[1], m)
    longer, shorter = torch.split(x, [more * (size + 1), (m - more) * size], 1)
    return _rows(longer, more, size + 1), _rows(shorter, m - more, size)


def _rows(x: Tensor, segments: int, size: int) -> Tensor:
    """(b, segments·size, d) as (b, segments, size, d)."""
    return x.view(x.shape[0], segments, size, x.shape[2])


def segment_means(x: Tensor, m: int) -> Tensor:
    """(b, n, d) → (b, m, d): means of m segments, the first n mod m one token longer."""
    out: Tensor = _SegmentMeans.apply(x, m)  # type: ignore[no-untyped-call]  # torch
    return out


def softmax_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q kᵀ) of (b, n, d) scaled queries and (b, m, d) keys."""
    scores = torch.bmm(q, k.transpose(1, 2))
    return torch.softmax(scores, -1)


def iterated_inverse(a: Tensor, iterations: int) -> Tensor:
    """The pseudo-inverse of row-stochastic (b, m, m) matrices, each by itself."""
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    sevens, fifteens, thirteens = eye * -7, eye * 15, eye * -13
    del eye
    z = _start(a)
    for _ in range(iterations):
        z = _iterated(a, z, sevens, fifteens, thirteens)
    return z


def _start(a: Tensor) -> Tensor:
    """Aᵀ over its largest column sum; its largest row sum is one."""
    largest = a.sum(1).amax(1).view(-1, 1, 1)
    return a.transpose(1, 2) * largest.reciprocal()


def _iterated(a: Tensor, z: Tensor, sevens: Tensor, fifteens: Tensor, thirteens: Tensor) -> Tensor:
    az = torch.bmm(a, z)
    inner = az + sevens
    inner = torch.bmm(az, inner).add_(fifteens)
    inner = torch.bmm(az, inner).add_(thirteens)
    del az
    return torch.bmm(z, inner).mul_(-0.25)


class NystromformerCore(AttentionCore):
    """Landmark attention, with an optional convolution of the values."""

    spec: Nystromformer

    def __init__(self, spec: Nystromformer, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        if spec.conv_kernel is not None:
            kernel = torch.randn(sizes.num_heads, spec.conv_kernel) / math.sqrt(spec.conv_kernel)
            self.kernel = nn.Parameter(kernel)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        if causal:
            raise RequestError(f"nystromformer {self.spec.refusal('causal')}")
        out = self._landmarks(flat(q), flat(k), flat(v))
        if self.spec.conv_kernel is not None:
            out.add_(flat(shifted_sum(v, self.kernel)))
        return out.view(q.shape)

    def _landmarks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m = min(self.spec.num_landmarks, q.shape[1])
        q = q / math.sqrt(q.shape[-1])
        q_mean, k_mean = segment_means(q, m), segment_means(k, m)
        inverse = iterated_inverse(softmax_weights(q_mean, k_mean), self.spec.iterations)
        context = torch.bmm(softmax_weights(q_mean, k), v)
        short = torch.bmm(inverse, context)
        del inverse, context
        return torch.bmm(softmax_weights(q, k_mean), short)


CORES = {"nystromformer": NystromformerCore}
