"""Cores of Optimised, Efficient and Super Attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, ModuleSizes, causal_mask, flat
from attnprof.errors import RequestError
from attnprof.mechanisms.standard.module import KeyValueState, StandardCore, softmax_attention


class SharedRowsCore(StandardCore):
    """Standard attention whose keys and values are the same rows: decoding keeps one cache."""

    def init_state(self, batch_size: int, like: Tensor) -> KeyValueState:
        """One empty cache under both names."""
        rows = token_cache(self, batch_size, like)
        return KeyValueState(rows, rows)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState
    ) -> tuple[Tensor, KeyValueState]:
        """The new token attends to every token so far; ``v`` is ``k`` and is not kept again."""
        rows = state.keys.append(flat(k))
        return softmax_attention(flat(q), rows, rows, None).view(q.shape), state


@dataclass
class MixedState:
    """The input's rows and the mixed values of every token so far, (b·h, t, d) each."""

    rows: TokenCache
    mixed: TokenCache


class SuperCore(AttentionCore):
    """Attention over values that W^A has mixed over tokens.

    ``mixing`` (n, n), or (h, n, n) with ``per_head``; ``mixing_bias`` (n) or (h, n), zero at
    first. Only the lower triangle is used where causal.
    """

    def __init__(self, spec: Any, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        length = sizes.seq_len or 0
        maps = sizes.num_heads if spec.per_head else 1
        weights = torch.empty(maps, length, length)
        for weight in weights:
            nn.init.xavier_uniform_(weight)
        self.mixing = nn.Parameter(weights if spec.per_head else weights[0].clone())
        bias = torch.zeros(self.mixing.shape[:-1])
        self.mixing_bias = nn.Parameter(bias) if spec.bias else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q, k, v (b, h, n, d) → (b, h, n, d), for the length the core was built for."""
        columns = self._mixed(v, causal)
        mask = causal_mask(q.shape[2], q.device) if causal else None
        out = softmax_attention(flat(q), flat(k), columns.transpose(1, 2), mask)
        return out.view(q.shape)

    def _mixed(self, v: Tensor, causal: bool) -> Tensor:
        """W^A v + bias as columns, (b·h, d, n)."""
        b, h, n, d = v.shape
        self._check(n)
        weight = self.mixing.tril() if causal else self.mixing
        if not self.spec.per_head:
            columns = v.transpose(2, 3).clone(memory_format=torch.contiguous_format)
            mixed = F.linear(columns.view(-1, n), weight, self.mixing_bias)
            return mixed.view(b * h, d, n)
        columns = v.permute(1, 0, 3, 2).clone(memory_format=torch.contiguous_format)
        mixed = torch.bmm(columns.view(h, b * d, n), weight.transpose(1, 2))
        if self.mixing_bias is not None:
            mixed.add_(self.mixing_bias.unsqueeze(1))
        return mixed.view(h, b, d, n).transpose(0, 1).reshape(b * h, d, n)

    def _check(self, length: int) -> None:
        built = self.mixing.shape[-1]
        if length != built:
            raise _wrong_length(built, length)

    def init_state(self, batch_size: int, like: Tensor) -> MixedState:
        """Empty caches."""
        return MixedState(token_cache(self, batch_size, like), token_cache(self, batch_size, like))

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: MixedState) -> tuple[Tensor, MixedState]:
        """Mix the values so far into the token's own, then attend to all mixed values."""
        built = self.mixing.shape[-1]
        if state.rows.length == built:
            raise _wrong_length(built, built + 1)
        rows = state.rows.append(flat(k))
        mixed = state.mixed.append(self._mixed_row(rows, q.shape[0]))
        return softmax_attention(flat(q), rows, mixed, None).view(q.shape), state

    def _mixed_row(self, rows: Tensor, batch: int) -> Tensor:
        """Row t of W^A times the values so far, (b·h, 1, d)."""
        t = rows.shape[1]
        heads = rows.shape[0] // batch
        row = self.mixing.select(-2, t - 1)[..., :t].expand(batch, heads, t).reshape(-1, 1, t)
        mixed = torch.bmm(row, rows)
        if self.mixing_bias is not None:
            by_head = mixed.view(batch, heads, -1)
            by_head.add_(self.mixing_bias.select(-1, t - 1).view(-1, 1))
        return mixed


def _wrong_length(built: int, length: int) -> RequestError:
    return RequestError(
        f"super was built for {built} tokens and got {length}: its map over tokens has one size; "
        f"build it with seq_len={length}"
    )


def token_cache(core: AttentionCore, batch_size: int, like: Tensor) -> TokenCache:
    """An empty cache of one row a head and token."""
    sizes = core.sizes
    return TokenCache(batch_size * sizes.num_heads, sizes.head_dim, like, sizes.seq_len)


CORES = {"optimised": StandardCore, "efficient": SharedRowsCore, "super": SuperCore}
