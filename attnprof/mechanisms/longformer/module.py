"""Longformer in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.blocks.band import band_blocks
from attnprof.blocks.core import AttentionCore, flat
from attnprof.blocks.gathered import Block, gathered_attention, hidden
from attnprof.mechanisms.longformer.spec import Longformer, block_rows
from attnprof.mechanisms.standard.module import softmax_attention


@dataclass
class WindowState:
    """Keys and values still in sight: the first tokens, then a ring of the latest ones."""

    keys: Tensor
    values: Tensor
    seen: int = 0

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, from a fresh state."""
        self.keys.normal_()
        self.values.normal_()
        self.seen = tokens


class LongformerCore(AttentionCore):
    """Window and global tokens, by blocks or as the document's masked dense product."""

    spec: Longformer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        q_rows, keys, values = flat(q), flat(k), flat(v)
        if self.spec.impl == "dense-mask":
            mask = self.dense_mask(q.shape[2], causal, q.device)
            return softmax_attention(q_rows, keys, values, mask).view(q.shape)
        blocks = self.blocks(q.shape[2], causal, q_rows)
        return gathered_attention(q_rows, keys, values, blocks).view(q.shape)

    def dense_mask(self, n: int, causal: bool, device: torch.device) -> Tensor:
        """(n, n): True where a row must not look."""
        window, g = self.spec.window, self.spec.global_tokens
        mask = torch.ones(n, n, dtype=torch.bool, device=device).triu_(1 if causal else window + 1)
        mask.logical_or_(torch.ones(n, n, dtype=torch.bool, device=device).tril_(-window - 1))
        if g:
            mask[:g] = False
            mask[:, :g] = False
            if causal:
                mask[:g, :g] = torch.ones(g, g, dtype=torch.bool, device=device).triu_(1)[:n, :n]
                mask[:g, g:] = True
        return mask

    def blocks(self, n: int, causal: bool, like: Tensor) -> list[Block]:
        """Rows after the global ones in blocks; a block sees its neighbours and the globals."""
        window, g = self.spec.window, min(self.spec.global_tokens, n)
        after = 0 if causal else window
        found = [self._global_rows(n, g, causal, like)] if g else []
        band = band_blocks(range(g, n), block_rows(window), window, after, like, g)
        return found + band

    @staticmethod
    def _global_rows(n: int, g: int, causal: bool, like: Tensor) -> Block:
        if not causal:
            return Block(slice(0, g), (slice(0, n),))
        mask = torch.ones(g, g, dtype=torch.bool, device=like.device).triu_(1)
        return Block(slice(0, g), (slice(0, g),), hidden(mask, like))

    def init_state(self, batch_size: int, like: Tensor) -> WindowState:
        """Room for the global tokens and one window."""
        room = self.spec.global_tokens + self.spec.window + 1
        shape = (batch_size * self.sizes.num_heads, room, self.sizes.head_dim)
        return WindowState(like.new_empty(shape), like.new_empty(shape))

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: WindowState
    ) -> tuple[Tensor, WindowState]:
        """The new token over what is still in sight; the order of keys does not matter."""
        place, first = state.seen, self.spec.global_tokens
        if place >= first:
            place = first + (place - first) % (self.spec.window + 1)
        state.keys[:, place : place + 1] = flat(k)
        state.values[:, place : place + 1] = flat(v)
        state.seen += 1
        inside = min(state.seen, state.keys.shape[1])
        keys, values = state.keys[:, :inside], state.values[:, :inside]
        return softmax_attention(flat(q), keys, values, None).view(q.shape), state


CORES = {"longformer": LongformerCore}
