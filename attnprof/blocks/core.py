"""The torch side of a mechanism: what happens between q, k, v and the heads' outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.cache import Caches
from attnprof.ops.layer import LayerSizes, Weight


class TextCore(nn.Module):
    """A mechanism's own text on torch tensors, with the parameters that it declares."""

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes
        self.flat = spec.flat
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

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv)."""
        out: Tensor = self.spec.run(q, k, v, causal, self)
        return out

    def init_state(self, batch_size: int, like: Tensor) -> Any:
        """A fresh decoding state; ``like`` tells number format and device."""
        return self.spec.init_state(self.sizes, Caches(batch_size, like, self.sizes.seq_len))

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv), state."""
        out: tuple[Tensor, Any] = self.spec.step(q, k, v, state, self)
        return out


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
    """A buffer's random entries."""
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
