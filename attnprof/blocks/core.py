"""The torch side of a mechanism: what happens between q, k, v and the heads' outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ModuleSizes:
    """The sizes a module is built for; ``seq_len`` only where it must be known."""

    num_heads: int
    head_dim: int
    num_kv_heads: int
    value_head_dim: int
    seq_len: int | None = None

    @property
    def d_model(self) -> int:
        """Model width."""
        return self.num_heads * self.head_dim


class AttentionCore(nn.Module):
    """Base of every core; parameters of the mechanism live here.

    ``forward`` takes q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) and returns
    (b, h, n, dv). Cores that decode write ``init_state`` and ``step``.
    """

    #: Whether heads must be laid out one after the other, so that (b·h, n, d) is a view.
    flat: bool = True

    def __init__(self, spec: Any, sizes: ModuleSizes) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = sizes

    def init_state(self, batch_size: int, like: Tensor) -> Any:
        """A fresh decoding state; ``like`` tells number format and device."""
        raise TypeError(f"{self.spec.name} {self.spec.refusal('decode')}")

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv), state."""
        raise TypeError(f"{self.spec.name} {self.spec.refusal('decode')}")


CoreFactory = Callable[[Any, ModuleSizes], AttentionCore]


def flat(x: Tensor) -> Tensor:
    """(b, h, n, d) → (b·h, n, d); a view where the layout allows it."""
    return x.reshape(-1, x.shape[-2], x.shape[-1])


def causal_mask(n: int, device: torch.device) -> Tensor:
    """(n, n) booleans, True above the diagonal: what a row must not see."""
    return torch.ones(n, n, dtype=torch.bool, device=device).triu_(1)
