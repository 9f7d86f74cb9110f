"""Linear attention and Performer: blocks of features, an O(m·d) state, frozen random features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnprof.blocks.core import AttentionCore, ModuleSizes, flat
from attnprof.blocks.features import FeatureMap
from attnprof.blocks.kernel_attention import kernel_attention
from attnprof.blocks.scan import State, absorb, empty_state
from attnprof.mechanisms.kernels.spec import BLOCK, CHUNK, KernelAttention, Performer


class KernelCore(AttentionCore):
    """out_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i)·Σ_j φ(k_j)."""

    projection: Tensor | None

    def __init__(self, spec: KernelAttention, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        self.projection = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Q (b, h, n, d), k (b, h, m, d), v (b, h, m, dv) → (b, h, n, dv)."""
        b, h, n, _ = q.shape
        out = kernel_attention(
            flat(q), flat(k), flat(v), self.projection, softmax=self.spec.softmax,
            causal=causal, rows=CHUNK if causal else BLOCK, floor=self.spec.floor,
        )  # fmt: skip
        return out.view(b, h, n, -1)

    def init_state(self, batch_size: int, like: Tensor) -> State:
        """Sums of no token: O(m·dv) numbers a head, however long the sequence becomes."""
        s = self.sizes
        width = self.spec.width(s.head_dim)
        return empty_state(
            batch_size * s.num_heads, width, s.value_head_dim, like, self.spec.softmax
        )

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """The new token enters the state, in place, and reads it."""
        b, h, _, _ = q.shape
        maps = FeatureMap(self.projection, self.spec.softmax, b * h)
        absorb(state, flat(k), flat(v), maps)
        queries = maps.values(flat(q))[0]
        sums = torch.bmm(queries, state.like(queries))
        total = sums[..., -1:]
        if self.spec.floor:
            total.add_(self.spec.floor)
        return (sums[..., :-1] / total).view(b, h, 1, -1), state


class PerformerCore(KernelCore):
    """Random features in a frozen buffer ``projection`` (head_dim, m), shared by all heads."""

    spec: Performer

    def __init__(self, spec: Performer, sizes: ModuleSizes) -> None:
        super().__init__(spec, sizes)
        del self.projection
        self.register_buffer("projection", self._drawn(None))

    def redraw(self, seed: int | None = None) -> None:
        """Draw the features again: with a seed of their own, or from torch's generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        assert self.projection is not None
        self.projection.copy_(self._drawn(generator))

    def _drawn(self, generator: torch.Generator | None) -> Tensor:
        d, m = self.sizes.head_dim, self.spec.width(self.sizes.head_dim)
        if self.spec.softmax:
            scaled: Tensor = orthogonal_features(d, m, generator).T.contiguous() * d**-0.25
            return scaled
        return torch.randn(d, m, generator=generator) / math.sqrt(m)


def orthogonal_features(d: int, m: int, generator: torch.Generator | None = None) -> Tensor:
    """(m, d) rows like Gaussian ones, orthogonal within each block of d.

    Each block is a random rotation, its rows as long as Gaussian rows are (chi with d degrees;
    Choromanski et al. 2021, Section 2.4).
    """
    blocks = []
    for _ in range(-(-m // d)):
        gaussian = torch.randn(d, d, generator=generator, dtype=torch.float64)
        rotation, upper = torch.linalg.qr(gaussian)
        blocks.append((rotation * upper.diagonal().sign()).T)  # signs make it uniform (Haar)
    gaussian = torch.randn(m, d, generator=generator, dtype=torch.float64)
    rows: Tensor = torch.cat(blocks)[:m] * gaussian.norm(dim=1, keepdim=True)
    return rows.to(torch.get_default_dtype())


CORES = {"linear": KernelCore, "performer": PerformerCore}
