"""Document 004's two forms without their normalisation, in plain torch."""

from typing import Any

from torch import Tensor, cat, nn


class Direct(nn.Module):
    """Rows of 1 + s + s²/2 over their sum, s = q k^T; (b, h, n, d) each."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every pair of tokens."""
        scores = q @ k.transpose(-1, -2)
        weights = 1 + scores + scores * scores / 2
        return weights @ v / weights.sum(-1, keepdim=True)


class Efficient(nn.Module):
    """The same by sums over tokens of products of d² entries."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Linear in the number of tokens."""
        values = cat([v, v.new_ones((*v.shape[:-1], 1))], -1)
        squares = _pairs(q) @ (_pairs(k).transpose(-1, -2) @ values) / 2
        sums = squares + q @ (k.transpose(-1, -2) @ values) + values.sum(-2, keepdim=True)
        return sums[..., :-1] / sums[..., -1:]


def _pairs(x: Tensor) -> Any:
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
