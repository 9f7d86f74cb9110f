"""Low-rank factorised attention in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.errors import RequestError
from attnprof.mechanisms.low_rank.spec import LowRank


class LowRankCore(AttentionCore):
    """softmax(q A) over the rank times softmax(k B) over the tokens, applied to v."""

    spec: LowRank

    def __init__(self, spec: LowRank, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        # scores of unit variance for queries of unit variance, once divided by sqrt d
        self.query_map = nn.Parameter(torch.randn(sizes.head_dim, spec.rank))
        self.key_map = nn.Parameter(torch.randn(sizes.head_dim, spec.rank))

    @staticmethod
    def factor(x: Tensor, weight: Tensor, over: int) -> Tensor:
        """softmax(x W / sqrt d) along the axis ``over``: (b·h, n, d) → (b·h, n, rank)."""
        stretched = weight.unsqueeze(0).expand(x.shape[0], -1, -1)
        scores = torch.bmm(x, stretched).div_(math.sqrt(x.shape[-1]))
        return torch.softmax(scores, over)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d), (b, h, m, d) twice → (b, h, n, d)."""
        if causal:
            raise RequestError(f"low-rank {self.spec.refusal('causal')}")
        weights = self.factor(flat(k), self.key_map, over=1)
        context = torch.bmm(weights.transpose(1, 2), flat(v))
        del weights
        rows = self.factor(flat(q), self.query_map, over=2)
        return torch.bmm(rows, context).view(*q.shape[:3], -1)


CORES = {"low-rank": LowRankCore}
