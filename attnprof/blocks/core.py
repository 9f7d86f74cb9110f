"""The torch side of a mechanism: what happens between q, k, v and the heads' outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.cache import TokenCache
from attnprof.mechanism import Weight
from attnprof.ops.layer import LayerSizes


class AttentionCore(nn.Module):
    """Base of every core; parameters of the mechanism live here.

    ``forward`` takes q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) and returns
    (b, h, n, dv). Cores that decode write ``init_state`` and ``step``.
    """

    #: Whether heads must be laid out one after the other, so that (b·h, n, d) is a view.
    flat: bool = True

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes

    def init_state(self, batch_size: int, like: Tensor) -> Any:
        """A fresh decoding state; ``like`` tells number format and device."""
        raise TypeError(f"{self.spec.name} {self.spec.refusal('decode')}")

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv), state."""
        raise TypeError(f"{self.spec.name} {self.spec.refusal('decode')}")


CoreFactory = Callable[[Any, LayerSizes], AttentionCore]


class TextCore(AttentionCore):
    """A mechanism's own text on torch tensors, with the parameters that it declares."""

    def __init__(self, spec: Any, sizes: LayerSizes) -> None:
        super().__init__(spec, sizes)
        self.flat = spec.flat
        for name, weight in spec.core_weights(sizes).items():
            self.register_parameter(name, weight and _started(weight))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv)."""
        out: Tensor = self.spec.run(q, k, v, causal, self)
        return out

    def init_state(self, batch_size: int, like: Tensor) -> Any:
        """Empty caches."""

        def cache(heads: int, width: int) -> TokenCache:
            return TokenCache(batch_size * heads, width, like, self.sizes.seq_len)

        return self.spec.init_state(self.sizes, cache)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv), state."""
        out: tuple[Tensor, Any] = self.spec.step(q, k, v, state, self)
        return out


def _started(weight: Weight) -> nn.Parameter:
    """A parameter whose matrices are drawn one after the other."""
    values = torch.empty(weight.shape)
    draw = getattr(nn.init, f"{weight.start}_")
    for matrix in values if values.dim() > 2 else [values]:
        draw(matrix)
    return nn.Parameter(values)


def causal_mask(n: int, device: torch.device) -> Tensor:
    """(n, n) booleans, True above the diagonal: what a row must not see."""
    return torch.ones(n, n, dtype=torch.bool, device=device).triu_(1)
