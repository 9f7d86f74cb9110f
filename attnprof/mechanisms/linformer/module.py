"""Linformer in torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnprof.blocks.autocast import apply
from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.blocks.in_place import add_product
from attnprof.blocks.layer import AttentionLayer, merge_heads, split_heads
from attnprof.blocks.row_attention import row_attention
from attnprof.errors import RequestError
from attnprof.mechanisms.linformer.spec import Linformer


class _Compression(torch.autograd.Function):
    """E x for each map E (p, n): one gradient of x for all maps, gradients of maps in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *maps)
        return tuple(torch.bmm(e.unsqueeze(0).expand(x.shape[0], -1, -1), x) for e in maps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *maps = ctx.saved_tensors
        to_x, to_maps = None, []
        for grad, e in zip(grads, maps, strict=True):
            back = e.t().unsqueeze(0).expand(x.shape[0], -1, -1)
            if to_x is None:
                to_x = torch.bmm(back, grad)
            else:
                add_product(to_x, back, grad)
            to_maps.append(_over_samples(grad, x))
        return to_x, *to_maps


def _over_samples(grad: Tensor, x: Tensor) -> Tensor:
    """Σ over the batch of grad (b, p, w) times x (b, n, w) transposed, added where it is made."""
    out = torch.mm(grad[0], x[0].t())
    for sample in range(1, x.shape[0]):
        torch.addmm(out, grad[sample], x[sample].t(), out=out)
    return out


class LinformerCore(AttentionCore):
    """Learned maps E, F (proj_len, N_max) over the tokens of keys and values."""

    spec: Linformer
    flat = False

    def __init__(self, spec: Linformer, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        self.max_len = sizes.seq_len or 0
        shape = (spec.proj_len, self.max_len)
        self.key_map = nn.Parameter(torch.randn(shape) / math.sqrt(spec.proj_len))
        if not spec.shared:
            self.value_map = nn.Parameter(torch.randn(shape) / math.sqrt(spec.proj_len))

    def maps(self, n: int) -> tuple[Tensor, Tensor]:
        """E and F for n tokens, up to the length it was built for; the same one if shared."""
        if n > self.max_len:
            raise RequestError(
                f"linformer was built for at most {self.max_len} tokens and got {n}: "
                f"build it with seq_len={n}"
            )
        keys = self.key_map
        values = keys if self.spec.shared else self.value_map
        return (keys, values) if n == self.max_len else (keys[:, :n], values[:, :n])

    def compress(self, x: Tensor, *maps: Tensor) -> tuple[Tensor, ...]:
        """(batch, n, width) → (batch, proj_len, width) for each map."""
        out: tuple[Tensor, ...] = apply(_Compression, x, *maps)
        return out

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d)."""
        if causal:
            raise RequestError(f"linformer {self.spec.refusal('causal')}")
        shape = (*q.shape[:2], self.spec.proj_len, q.shape[3])
        e, f = self.maps(q.shape[2])
        k_short, v_short = self.compress(flat(k), e)[0], self.compress(flat(v), f)[0]
        k_short = k_short / math.sqrt(q.shape[3])
        return row_attention(q, k_short.view(shape), v_short.view(shape))


class LinformerLayer(AttentionLayer):
    """Compresses its input before it projects it to keys and values, where bias allows it."""

    core: LinformerCore

    def _keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        core, spec = self.core, self.core.spec
        maps = core.maps(x.shape[1])
        if spec.bias:
            k_short = core.compress(self.k_proj(x), maps[0])[0]
            return k_short, core.compress(self.v_proj(x), maps[1])[0]
        short = core.compress(x, *(maps[:1] if spec.shared else maps))
        return self.k_proj(short[0]), self.v_proj(short[-1])

    def _mixed(self, x: Tensor, causal: bool, context: Tensor | None) -> Tensor:
        if causal or context is not None:
            ability = "causal" if causal else "cross"
            raise RequestError(f"linformer {self.core.spec.refusal(ability)}")
        q = self._heads("q", x)
        k, v = self._keys_values(x)
        k = k / math.sqrt(q.shape[-1])
        k, v = (split_heads(t, self.sizes.num_heads, core_is_flat=False) for t in (k, v))
        return merge_heads(row_attention(q, k, v))


def _layer(spec: Linformer, sizes: ModuleSizes) -> LinformerLayer:
    return LinformerLayer(spec, LinformerCore(spec, sizes), sizes)


CORES: dict[str, Any] = {"linformer": LinformerCore}
LAYERS: dict[str, Any] = {"linformer": _layer}
