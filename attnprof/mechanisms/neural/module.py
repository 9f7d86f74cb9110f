"""Neural Attention in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, ModuleSizes, causal_mask, flat
from attnprof.blocks.pair_network import chunks, mapped, pair_network_attention
from attnprof.mechanisms.neural.spec import Neural


def _uniform(*shape: int, inputs: int) -> nn.Parameter:
    """A weight or bias as ``nn.Linear`` starts it: uniform within 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class NeuralCore(AttentionCore):
    """The down-projections and the scorer, shared by all heads and all pairs."""

    spec: Neural

    def __init__(self, spec: Neural, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        d = sizes.head_dim
        reduced, hidden, *deeper = spec.widths(d)
        if spec.down_dim is not None:
            for which in ("query", "key"):
                setattr(self, f"{which}_down", _uniform(d, reduced, inputs=d))
                setattr(self, f"{which}_down_bias", _uniform(reduced, inputs=d))
        self.hidden_weight = _uniform(hidden, 2 * reduced, inputs=2 * reduced)
        self.hidden_bias = _uniform(hidden, inputs=2 * reduced)
        if deeper:
            self.second_weight = _uniform(deeper[0], hidden, inputs=hidden)
            self.second_bias = _uniform(deeper[0], inputs=hidden)
        top = (hidden, *deeper)[-1]
        self.score_weight = _uniform(1, top, inputs=top)
        self.score_bias = _uniform(1, inputs=top)

    def _down(self, which: str, x: Tensor) -> Tensor:
        """(b·h, n, d) → (b·h, n, d'), where there is a down-projection."""
        if self.spec.down_dim is None:
            return x
        weight: Tensor = getattr(self, f"{which}_down")
        bias: Tensor = getattr(self, f"{which}_down_bias")
        return torch.bmm(x, weight.unsqueeze(0).expand(x.shape[0], -1, -1)).add_(bias)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        rows, keys = self._down("query", flat(q)), self._down("key", flat(k))
        run = self._naive if self.spec.impl == "naive" else self._factored
        return run(rows, keys, flat(v), causal).view(q.shape)

    def _factored(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        heads, n, d = v.shape
        todo = chunks(heads, n, *self.spec.chunk(heads, n, d), causal)
        weights = [self.hidden_weight, self.hidden_bias, self.score_weight, self.score_bias]
        if self.spec.depth == 2:
            weights += [self.second_weight, self.second_bias]
        return pair_network_attention(q, k, v, weights, todo, causal, math.sqrt(d))

    def _naive(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        """As Algorithm 1: C (b·h, n, n, 2d') is written out, and so is every layer."""
        heads, n, d = v.shape
        mask = causal_mask(n, q.device) if causal else None
        rows = q.unsqueeze(2).expand(-1, -1, n, -1)
        x = torch.cat([rows, k.unsqueeze(1).expand(-1, n, -1, -1)], -1).view(heads * n * n, -1)
        x = F.linear(x, self.hidden_weight, self.hidden_bias).relu_()
        if self.spec.depth == 2:
            x = F.linear(x, self.second_weight, self.second_bias).relu_()
        x = F.linear(x, self.score_weight, self.score_bias)
        x = x.view(heads, n, n) / math.sqrt(d)
        if mask is not None:
            x.masked_fill_(mask, float("-inf"))
        x = torch.softmax(x, -1)
        return torch.bmm(x, v)

    def init_state(self, batch_size: int, like: Tensor) -> TokenCache:
        """The keys' term of the hidden layer, and the values, of every token."""
        width = self.hidden_weight.shape[0] + self.sizes.head_dim
        return TokenCache(batch_size * self.sizes.num_heads, width, like, self.sizes.seq_len)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TokenCache) -> tuple[Tensor, TokenCache]:
        """The new token against every token so far; both forms decode without C."""
        rows, keys = self._down("query", flat(q)), self._down("key", flat(k))
        reduced, width = rows.shape[-1], self.hidden_weight.shape[0]
        rows = mapped(rows, self.hidden_weight[:, :reduced]).add_(self.hidden_bias)
        keys = mapped(keys, self.hidden_weight[:, reduced:])
        seen = state.append(torch.cat([keys, flat(v)], -1))
        last = (self.score_weight / math.sqrt(q.shape[-1])).t()
        x = (rows + seen[..., :width]).relu_().view(-1, width)
        if self.spec.depth == 2:
            x = torch.addmm(self.second_bias, x, self.second_weight.t()).relu_()
        x = torch.mm(x, last).view(seen.shape[0], 1, -1)
        x = torch.softmax(x, -1)
        return torch.bmm(x, seen[..., width:]).view(q.shape), state


CORES = {"neural": NeuralCore}
