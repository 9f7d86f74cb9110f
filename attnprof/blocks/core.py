"""The torch side of a mechanism: its core, and the layer around it."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.cache import Caches, NewestFirst
from attnprof.ops.layer import CoreText, LayerSizes, LayerText, OwnText, Weight


class TextCore(CoreText, nn.Module):
    """A mechanism's own text on torch tensors, with the parameters that it declares."""

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        for name, weight in spec.core_weights(sizes).items():
            self.add(name, weight)

    def add(self, name: str, weight: Weight | None) -> None:
        """Register a parameter, or a buffer that is drawn."""
        if weight and weight.drawn:
            self.register_buffer(name, drawn(weight))
        else:
            self.register_parameter(name, started(weight) if weight else None)

    def redraw(self, seed: int | None = None) -> None:
        """Draw the buffers that are drawn again: with a seed, or from torch's generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for name, weight in self.spec.core_weights(self.sizes).items():
            if weight and weight.drawn:
                getattr(self, name).copy_(drawn(weight, generator))

    def init_state(self, batch_size: int, like: Tensor, room: int | None = None) -> Any:
        """A fresh decoding state; ``like`` tells number format and device.

        Caches that grow have ``room`` for so many tokens, by default those the core is built for.
        """
        room = self.sizes.seq_len if room is None else room
        return self.spec.init_state(self.sizes, Caches(batch_size, like, room))


def started(weight: Weight) -> nn.Parameter:
    """A parameter whose matrices are drawn one after the other."""
    if not isinstance(weight.start, str):
        return nn.Parameter(torch.full(weight.shape, weight.start))
    values = torch.empty(weight.shape)
    if weight.start == "uniform":
        return nn.Parameter(values.uniform_(-1 / weight.divisor, 1 / weight.divisor))
    draw = getattr(nn.init, f"{weight.start}_")
    for matrix in values if values.dim() > 2 else [values]:
        draw(matrix)
    return nn.Parameter(values / weight.divisor)


def drawn(weight: Weight, generator: torch.Generator | None = None) -> Tensor:
    """A buffer's random entries; of sizes that are torch's symbols without numbers."""
    if any(hasattr(size, "node") for size in weight.shape):
        return torch.empty(weight.shape)
    return _DRAWN[str(weight.start)](*weight.shape, generator)


def orthogonal_features(d: int, m: int, generator: torch.Generator | None) -> Tensor:
    """(d, m) columns like Gaussian ones times d^(-1/4), orthogonal within each block of d.

    Each block is a random rotation, its columns as long as Gaussian ones are (chi with d degrees;
    Choromanski et al. 2021, Section 2.4).
    """
    blocks = []
    for _ in range(-(-m // d)):
        gaussian = torch.randn(d, d, generator=generator, dtype=torch.float64)
        rotation, upper = torch.linalg.qr(gaussian)
        blocks.append((rotation * upper.diagonal().sign()).T)  # signs make it uniform (Haar)
    gaussian = torch.randn(m, d, generator=generator, dtype=torch.float64)
    rows = torch.cat(blocks)[:m] * gaussian.norm(dim=1, keepdim=True)
    scaled: Tensor = rows.to(torch.get_default_dtype()).T.contiguous() * d**-0.25
    return scaled


def gaussian_features(d: int, m: int, generator: torch.Generator | None) -> Tensor:
    """(d, m) Gaussian numbers over sqrt m."""
    return torch.randn(d, m, generator=generator) / math.sqrt(m)


_DRAWN: dict[str, Callable[..., Tensor]] = {
    "orthogonal_features": orthogonal_features,
    "gaussian_features": gaussian_features,
}


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
        _add_maps(self, spec.layer_maps(sizes))

    def init_state(self, batch_size: int) -> Any:
        """A fresh decoding state for this many sequences."""
        return self.core.init_state(batch_size, next(self.parameters()))

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        return _stepped(super().step, x_t, state)


class OwnLayer(OwnText, nn.Module):
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
        _add_maps(self, self.maps)

    def init_state(self, batch_size: int) -> Any:
        """Empty caches."""
        like, room = next(self.parameters()), self.sizes.seq_len or 0
        return self.spec.init_state(
            self.sizes, lambda heads, width: NewestFirst(batch_size * heads, width, like, room)
        )

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: (b, d_model) or (b, 1, d_model) → the same shape, and the new state."""
        return _stepped(super().step, x_t, state)


def _add_maps(layer: Any, maps: dict[str, tuple[int, int]]) -> None:
    for name, (inner, outer) in maps.items():
        setattr(layer, name, nn.Linear(inner, outer, bias=layer.spec.bias))


def _stepped(step: Callable[..., Any], x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
    """A step of (b, 1, d_model), for a token in this shape or in (b, d_model)."""
    if x_t.dim() == 3:
        y, state = step(x_t, state)
        return y, state
    y, state = step(x_t.unsqueeze(1), state)
    return y.squeeze(1), state
