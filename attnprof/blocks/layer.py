"""A whole attention layer: projections, head split, a core, head merge, output map."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attnprof.blocks.cache import NewestFirst
from attnprof.blocks.core import TextCore, started
from attnprof.ops.layer import LayerSizes, LayerText


class AttentionLayer(LayerText, nn.Module):
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

    def __init__(self, spec: Any, core: TextCore, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.core = core
        for letter, (inner, outer) in sizes.maps().items():
            if letter in spec.projections:
                setattr(self, f"{letter}_proj", nn.Linear(inner, outer, bias=spec.bias))

    def init_state(self, batch_size: int) -> Any:
        """A fresh decoding state for this many sequences."""
        return self.core.init_state(batch_size, next(self.parameters()))

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        x = x_t.unsqueeze(1) if x_t.dim() == 2 else x_t
        y, state = super().step(x, state)
        return (y.squeeze(1) if x_t.dim() == 2 else y), state


class OwnLayer(nn.Module):
    """A mechanism without queries, keys and values: ``forward(x, causal=False)``.

    Causal by nature: ``causal`` changes nothing.
    """

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        for name, weight in spec.core_weights(sizes).items():
            self.register_parameter(name, weight and started(weight))
        self.maps = spec.layer_maps(sizes)
        for name, (inner, outer) in self.maps.items():
            setattr(self, name, nn.Linear(inner, outer, bias=spec.bias))

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """(b, n, d_model) → (b, n, d_model)."""
        out: Tensor = self.spec.layer(self, x)
        return out

    def init_state(self, batch_size: int) -> Any:
        """Empty caches."""
        like, room = next(self.parameters()), self.sizes.seq_len or 0
        return self.spec.init_state(
            self.sizes, lambda heads, width: NewestFirst(batch_size * heads, width, like, room)
        )

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        x = x_t.unsqueeze(1) if x_t.dim() == 2 else x_t
        y, state = self.spec.layer_step(self, x, state)
        return (y.squeeze(1) if x_t.dim() == 2 else y), state
