"""Reformer's rotations in torch: drawn from a seed, again for another number of buckets."""

from typing import Any

import torch
from torch import Tensor

from attnprof.blocks.core import TextCore
from attnprof.mechanisms.reformer.spec import Reformer
from attnprof.ops.layer import Weight


class ReformerCore(TextCore):
    """Hashed attention; ``rotations`` (rounds, buckets/2, d) are drawn from ``seed``.

    The seed comes from torch's generator and travels with the weights, where rotations of one
    length do not: they are the same in training, evaluation and after loading. Another number of
    buckets, where it follows the length, draws them again from the same seed.
    """

    spec: Reformer
    rotations: Tensor

    def add(self, name: str, weight: Weight | None) -> None:
        """Add the rotations, in torch's current default format and device."""
        self.seed = drawn_seed()
        drawn = self._drawn(self.spec.half_buckets(self.sizes.seq_len or 1))
        drawn = drawn.to(torch.get_default_device(), torch.get_default_dtype())
        self.register_buffer(name, drawn, persistent=False)

    def _drawn(self, half: int) -> Tensor:
        """Return numbers drawn as float32 on the CPU: equal for every format and device."""
        shape = (self.spec.num_hashes, half, self.sizes.head_dim)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)

    def redraw(self, seed: int | None = None) -> None:
        """Draw the rotations again: from this seed, or from one of torch's generator."""
        self.seed = drawn_seed() if seed is None else seed
        self.rotations = self._drawn(self.rotations.shape[1]).to(self.rotations)

    def get_extra_state(self) -> Tensor:
        """Return the seed, which ``state_dict`` saves."""
        return torch.tensor(self.seed)

    def set_extra_state(self, state: Tensor) -> None:
        """Take a saved layer's seed."""
        self.redraw(int(state))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **_: Any) -> Tensor:
        """Return (b, h, n, d) each → (b, h, n, d)."""
        half = self.spec.half_buckets(q.shape[2])
        if half and half != self.rotations.shape[1]:
            self.rotations = self._drawn(half).to(self.rotations)
        out: Tensor = super().forward(q, k, v, causal)
        return out


def drawn_seed() -> int:
    """Return a seed from torch's generator; 0 where tensors are fake and hold no numbers."""
    number = torch.randint(1 << 62, (), device="cpu")
    return int(number) if type(number) is Tensor else 0


CORES = {"reformer": ReformerCore}
