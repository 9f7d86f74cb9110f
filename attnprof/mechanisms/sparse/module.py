"""Sparse Transformer attention in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from attnprof.blocks.band import band_blocks
from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, flat
from attnprof.blocks.gathered import Block, gathered_attention, hidden
from attnprof.errors import RequestError
from attnprof.mechanisms.sparse.spec import Sparse
from attnprof.mechanisms.standard.module import KeyValueState, softmax_attention


class SparseCore(AttentionCore):
    """Strided or fixed pattern by gathered blocks."""

    spec: Sparse

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        n, stride = q.shape[2], self.spec.stride_for(q.shape[2])
        rows, strided = flat(q), self.spec.pattern == "strided"
        make = self.strided if strided else self.fixed
        blocks = make(n, stride, causal, rows)
        return gathered_attention(rows, flat(k), flat(v), blocks, merges=strided).view(q.shape)

    @staticmethod
    def strided(n: int, stride: int, causal: bool, like: Tensor) -> list[Block]:
        """A band nearer than a stride, then every residue class with itself."""
        near = stride - 1
        blocks = band_blocks(range(n), stride, near, 0 if causal else near, like)
        longest = -(-n // stride) - (1 if causal else 0)
        if n <= stride:
            return blocks
        ones = torch.ones(longest, longest, dtype=torch.bool, device=like.device)
        # causal rows start a stride later than their keys; else a token is in its own band
        mask = hidden(ones.triu_(1) if causal else ones.tril_().triu_(), like)
        for offset in range(min(stride, n - stride)):
            tokens = -(-(n - offset) // stride)
            count = tokens - 1 if causal else tokens
            rows = slice(offset + stride if causal else offset, n, stride)
            keys = slice(offset, n - stride if causal else n, stride)
            blocks.append(Block(rows, (keys,), mask[:count, :count], merges=True))
        return blocks

    @staticmethod
    def fixed(n: int, stride: int, causal: bool, like: Tensor) -> list[Block]:
        """Every block with itself and the last token of every other whole block."""
        own = min(stride, n)
        mask = None
        if causal:
            later = torch.ones(own, own, dtype=torch.bool, device=like.device).triu_(1)
            mask = hidden(later, like)
        full = n // stride
        blocks = []
        for start in range(0, n, stride):
            end, index = min(start + stride, n), start // stride
            before = slice(stride - 1, start, stride)
            after = slice(end + stride - 1, full * stride, stride)
            seen = None if mask is None else mask[: end - start, : end - start]
            keys = (
                before,
                slice(start, end),
                *(() if causal or end - start < stride else (after,)),
            )
            blocks.append(Block(slice(start, end), keys, seen, index))
        return blocks

    def init_state(self, batch_size: int, like: Tensor) -> KeyValueState:
        """Keys and values of every token: each may be seen again a multiple of the stride later."""
        if self.spec.stride is None:
            raise RequestError(f"sparse {self.spec.refusal('decode')}")
        batch, width, room = (
            batch_size * self.sizes.num_heads,
            self.sizes.head_dim,
            self.sizes.seq_len,
        )
        return KeyValueState(*(TokenCache(batch, width, like, room) for _ in range(2)))

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState
    ) -> tuple[Tensor, KeyValueState]:
        """The new token over those its pattern sees."""
        state.keys.append(flat(k))
        state.values.append(flat(v))
        keys, values = self._seen(state.keys), self._seen(state.values)
        return softmax_attention(flat(q), keys, values, None).view(q.shape), state

    def _seen(self, cache: TokenCache) -> Tensor:
        rows, stride = cache.seen, self.spec.stride or 1
        last = rows.shape[1] - 1
        if self.spec.pattern == "strided":
            near = max(0, last + 1 - stride)
            far = rows[:, last % stride : near : stride]
        else:
            near = last // stride * stride
            far = rows[:, stride - 1 : near : stride]
        return torch.cat([far, rows[:, near:]], 1)


CORES = {"sparse": SparseCore}
