"""Standard attention written out, and torch's fused kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, causal_mask, flat


@dataclass
class KeyValueState:
    """What softmax attention keeps: keys and values of every token so far, (b·g, t, d)."""

    keys: TokenCache
    values: TokenCache


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Rows of softmax((q / sqrt d) kᵀ) v; q (b, r·n, d), k (b, m, d), v (b, m, dv).

    ``mask`` (r·n, m) is True where a row must not look. Queries are scaled and not scores: d
    entries a row, forward and backward, where scores would be m.
    """
    scaled = q / math.sqrt(q.shape[-1])
    scores = torch.bmm(scaled, k.transpose(1, 2))
    del scaled
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    weights = torch.softmax(scores, -1)
    del scores
    return torch.bmm(weights, v)


class StandardCore(AttentionCore):
    """Scaling, scores, softmax and values, one tensor operation each; grouped key heads."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv)."""
        b, h, n, d = q.shape
        group = h // k.shape[1]
        mask = causal_mask(n, q.device) if causal else None
        if mask is not None and group > 1:  # masking a view would make autograd copy it
            mask = mask.repeat(group, 1)
        rows = q.reshape(b * k.shape[1], -1, d)
        out = softmax_attention(rows, flat(k), flat(v), mask)
        return out.view(b, h, n, -1)

    def init_state(self, batch_size: int, like: Tensor) -> KeyValueState:
        """Empty caches."""
        batch, room = batch_size * self.sizes.num_kv_heads, self.sizes.seq_len
        return KeyValueState(
            TokenCache(batch, self.sizes.head_dim, like, room),
            TokenCache(batch, self.sizes.value_head_dim, like, room),
        )

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState
    ) -> tuple[Tensor, KeyValueState]:
        """The new token attends to every token so far, itself included."""
        b, h, _, d = q.shape
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        rows = q.reshape(b * k.shape[1], -1, d)
        return softmax_attention(rows, keys, values, None).view(b, h, 1, -1), state


class SdpaCore(StandardCore):
    """The same function through ``scaled_dot_product_attention``."""

    flat = False

    @property
    def _grouped(self) -> bool:
        # from the sizes, not from shapes: a tracer makes tensors of those
        return bool(self.sizes.num_kv_heads != self.sizes.num_heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q (b, h, n, d), k and v (b, g, m, d) → (b, h, n, d)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=self._grouped)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState
    ) -> tuple[Tensor, KeyValueState]:
        """The new token through the fused kernel."""
        b, g = k.shape[:2]
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        k_all, v_all = (x.view(b, g, -1, x.shape[-1]) for x in (keys, values))
        out = F.scaled_dot_product_attention(q, k_all, v_all, enable_gqa=self._grouped)
        return out, state


CORES = {"standard": StandardCore, "sdpa": SdpaCore}
