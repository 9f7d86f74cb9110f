"""Linformer in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.blocks.layer import AttentionLayer, merge_heads, split_heads
from attnprof.errors import RequestError
from attnprof.mechanisms.linformer.spec import Linformer
from attnprof.mechanisms.standard.module import softmax_attention


class LinformerCore(AttentionCore):
    """Learned maps E, F (proj_len, N_max) over the tokens of keys and values."""

    spec: Linformer

    def __init__(self, spec: Linformer, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        self.max_len = sizes.seq_len or 0
        shape = (spec.proj_len, self.max_len)
        self.key_map = nn.Parameter(torch.randn(shape) / math.sqrt(spec.proj_len))
        if not spec.shared:
            self.value_map = nn.Parameter(torch.randn(shape) / math.sqrt(spec.proj_len))

    def compress(self, which: str, x: Tensor) -> Tensor:
        """(batch, n, width) → (batch, proj_len, width); n up to the length it was built for."""
        n = x.shape[1]
        if n > self.max_len:
            raise RequestError(
                f"linformer was built for at most {self.max_len} tokens and got {n}: "
                f"build it with seq_len={n}"
            )
        own = which == "keys" or self.spec.shared
        weight: Tensor = self.key_map if own else self.value_map
        if n < self.max_len:
            weight = weight[:, :n]
        return torch.bmm(weight.unsqueeze(0).expand(x.shape[0], -1, -1), x)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        if causal:
            raise RequestError(f"linformer {self.spec.refusal('causal')}")
        k_short = self.compress("keys", flat(k))
        v_short = self.compress("values", flat(v))
        return softmax_attention(flat(q), k_short, v_short, None).view(q.shape)


class LinformerLayer(AttentionLayer):
    """Compresses its input before it projects it to keys and values, where bias allows it."""

    core: LinformerCore

    def _keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        core, spec = self.core, self.core.spec
        if spec.bias:
            return core.compress("keys", self.k_proj(x)), core.compress("values", self.v_proj(x))
        x_k = core.compress("keys", x)
        x_v = x_k if spec.shared else core.compress("values", x)
        return self.k_proj(x_k), self.v_proj(x_v)

    def _short_heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._keys_values(x)
        heads = self.sizes.num_heads
        return split_heads(k, heads, core_is_flat=True), split_heads(v, heads, core_is_flat=True)

    def _mixed(self, x: Tensor, causal: bool, context: Tensor | None) -> Tensor:
        if causal or context is not None:
            ability = "causal" if causal else "cross"
            raise RequestError(f"linformer {self.core.spec.refusal(ability)}")
        q = self._heads("q", x)
        k, v = self._short_heads(x)
        return merge_heads(softmax_attention(flat(q), flat(k), flat(v), None).view(q.shape))


def _layer(spec: Linformer, sizes: ModuleSizes) -> LinformerLayer:
    return LinformerLayer(spec, LinformerCore(spec, sizes), sizes)


CORES: dict[str, Any] = {"linformer": LinformerCore}
LAYERS: dict[str, Any] = {"linformer": _layer}
