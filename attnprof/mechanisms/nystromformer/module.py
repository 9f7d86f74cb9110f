"""Nystromformer in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnprof.blocks.autocast import apply
from attnprof.blocks.band_convolution import band_convolution
from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.blocks.inverse_product import inverse_product
from attnprof.blocks.row_attention import row_attention
from attnprof.errors import RequestError
from attnprof.mechanisms.nystromformer.spec import Nystromformer


class _WithMeans(torch.autograd.Function):
    """The rows, and means of m segments, the first n mod m one token longer.

    Backward adds a mean's gradient to that of its rows, where the latter lies: the rows have one
    other reader, :func:`row_attention`, which leaves its gradient to nobody else.
    """

    @staticmethod
    def forward(_ctx: Any, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        longer, shorter = _segments(x, m)
        return x.view_as(x), torch.cat([longer.mean(3), shorter.mean(3)], 2)

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, grad: Tensor, to_means: Tensor) -> tuple[Tensor, None]:
        longer, shorter = _segments(grad, to_means.shape[2])
        more = longer.shape[2]
        shares = to_means[:, :, :more] / max(1, longer.shape[3])
        longer.add_(shares.unsqueeze(3))
        shares = to_means[:, :, more:] / shorter.shape[3]
        shorter.add_(shares.unsqueeze(3))
        return grad, None


def _segments(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """(b, h, n, d) as (b, h, n mod m, ⌊n/m⌋ + 1, d) and (b, h, the others, ⌊n/m⌋, d), views."""
    size = x.shape[2] // m
    more = x.shape[2] - m * size
    longer, shorter = torch.split(x, [more * (size + 1), (m - more) * size], 2)
    b, h, _, d = x.shape
    return longer.view(b, h, more, size + 1, d), shorter.view(b, h, m - more, size, d)


def with_means(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """(b, h, n, d) → itself and (b, h, m, d): means of m segments, the first ones longer."""
    out: tuple[Tensor, Tensor] = apply(_WithMeans, x, m)
    return out


class NystromformerCore(AttentionCore):
    """Landmark attention, with an optional convolution of the values."""

    spec: Nystromformer
    flat = False

    def __init__(self, spec: Nystromformer, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        if spec.conv_kernel is not None:
            kernel = torch.randn(sizes.num_heads, spec.conv_kernel) / math.sqrt(spec.conv_kernel)
            self.kernel = nn.Parameter(kernel)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        if causal:
            raise RequestError(f"nystromformer {self.spec.refusal('causal')}")
        out = self._landmarks(q, k, v)
        if self.spec.conv_kernel is not None:
            out.add_(band_convolution(v, self.kernel))
        return out

    def _landmarks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m, scale = min(self.spec.num_landmarks, q.shape[2]), math.sqrt(q.shape[3])
        q, q_mean = with_means(q, m)
        k, k_mean = with_means(k, m)
        q_mean = q_mean / scale
        inner = torch.softmax(torch.bmm(flat(q_mean), flat(k_mean).transpose(1, 2)), -1)
        context = row_attention(q_mean, k, v)
        short = inverse_product(inner, flat(context), self.spec.iterations)
        del inner, context
        return row_attention(q, k_mean / scale, short.view(q_mean.shape))


CORES = {"nystromformer": NystromformerCore}
