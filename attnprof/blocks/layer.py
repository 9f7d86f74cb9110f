"""A whole attention layer: projections, head split, a core, head merge, output map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attnprof.blocks.core import AttentionCore, ModuleSizes


def split_heads(x: Tensor, heads: int, core_is_flat: bool, grouped: bool = False) -> Tensor:
    """(b, n, h·d) → (b, h, n, d), laid out so that (b·h, n, d) is a view if the core wants it."""
    b, n, width = x.shape
    y = x.view(b, n, heads, width // heads).transpose(1, 2)
    if not core_is_flat:
        return y
    if grouped:
        return y.contiguous()
    return y.reshape(b * heads, n, width // heads).view(b, heads, n, width // heads)


def merge_heads(y: Tensor) -> Tensor:
    """(b, h, n, d) → (b, n, h·d)."""
    b, h, n, d = y.shape
    return y.transpose(1, 2).reshape(b, n, h * d)


class AttentionLayer(nn.Module):
    """A mechanism as a layer: ``forward(x, causal=False, context=None)`` on (b, n, d_model).

    ``context`` (b, m, d_model) gives keys and values where the mechanism has cross-attention.
    ``init_state(batch_size)`` and ``step(x_t, state)`` decode one token at a time; x_t is
    (b, d_model) or (b, 1, d_model), and y_t comes back in the same shape.
    """

    #: The linear maps the mechanism has; the others are absent.
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear

    def __init__(self, spec: Any, core: AttentionCore, sizes: ModuleSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.core = core
        width, s = sizes.d_model, sizes
        outputs = {
            "q": width,
            "k": s.num_kv_heads * s.head_dim,
            "v": s.num_kv_heads * s.value_head_dim,
        }
        for letter, out in outputs.items():
            if letter in spec.projections:
                setattr(self, f"{letter}_proj", nn.Linear(width, out, bias=spec.bias))
        if "o" in spec.projections:
            inner = s.num_heads * s.value_head_dim
            self.o_proj = nn.Linear(inner, width, bias=spec.bias)

    def _heads(self, letter: str, x: Tensor, *, decoding: bool = False) -> Tensor:
        heads = self.sizes.num_heads if letter == "q" else self.sizes.num_kv_heads
        grouped = letter == "q" and self.sizes.num_kv_heads != heads and not decoding
        projection = getattr(self, f"{letter}_proj", None)
        if projection is not None:
            x = projection(x)
        return split_heads(x, heads, self.core.flat, grouped)

    def _mixed(self, x: Tensor, causal: bool, context: Tensor | None) -> Tensor:
        source = x if context is None else context
        q = self._heads("q", x)
        k = q if self.spec.shares_queries else self._heads("k", source)
        v = k if self.spec.shares_rows else self._heads("v", source)
        return merge_heads(self.core(q, k, v, causal))

    def forward(self, x: Tensor, causal: bool = False, context: Tensor | None = None) -> Tensor:
        """(b, n, d_model) → (b, n, d_model)."""
        y = self._mixed(x, causal, context)
        return self.o_proj(y) if "o" in self.spec.projections else y

    def _mixed_step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        q = self._heads("q", x, decoding=True)
        k = q if self.spec.shares_queries else self._heads("k", x, decoding=True)
        v = self._heads("v", x, decoding=True)
        y, state = self.core.step(q, k, v, state)
        return merge_heads(y), state

    def init_state(self, batch_size: int) -> Any:
        """A fresh decoding state for this many sequences."""
        return self.core.init_state(batch_size, next(self.parameters()))

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        x = x_t.unsqueeze(1) if x_t.dim() == 2 else x_t
        y, state = self._mixed_step(x, state)
        if "o" in self.spec.projections:
            y = self.o_proj(y)
        return (y.squeeze(1) if x_t.dim() == 2 else y), state
