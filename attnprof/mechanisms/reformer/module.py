"""Reformer in torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.blocks.core import AttentionCore
from attnprof.blocks.hashed_attention import ALONE, FLOOR, Attention
from attnprof.blocks.hashed_backward import hashed_attention
from attnprof.blocks.hashing import hashed
from attnprof.errors import RequestError
from attnprof.mechanisms.reformer.spec import Reformer
from attnprof.ops.layer import LayerSizes, flat


@dataclass
class BucketState:
    """The last two chunks' worth of keys and values of every bucket, and how many it has seen.

    ``rows`` (b·rounds·buckets, 2·bucket_size, 2d): the token of rank p stands at p modulo that.
    """

    rows: Tensor
    counts: Tensor

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, spread evenly, from a fresh state."""
        self.rows.normal_()
        self.counts.fill_(tokens // max(1, self.counts.shape[0]))


class ReformerCore(AttentionCore):
    """Hashed attention; queries are the keys too, so ``k`` is not read.

    ``rotations`` (rounds, buckets/2, d) are drawn from ``seed``, itself from torch's generator:
    the same in training, evaluation and after loading. Another number of buckets, where
    it follows the length, draws them again from the same seed.
    """

    spec: Reformer
    rotations: Tensor

    def __init__(self, spec: Reformer, sizes: LayerSizes) -> None:
        super().__init__(spec, sizes)
        self.seed = drawn_seed()
        half = spec.buckets_for(sizes.seq_len or 1) // 2
        drawn = self._drawn(half).to(torch.get_default_device(), torch.get_default_dtype())
        self.register_buffer("rotations", drawn, persistent=False)

    def _drawn(self, half: int) -> Tensor:
        """The same numbers in every format and on every device: float32 from the CPU."""
        shape = (self.spec.num_hashes, half, self.sizes.head_dim)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)

    def redraw(self, seed: int) -> None:
        """Draw the rotations again, from this seed."""
        self.seed = seed
        self.rotations = self._drawn(self.rotations.shape[1]).to(self.rotations)

    def get_extra_state(self) -> Tensor:
        """The seed: it travels with the weights, where rotations of one length do not."""
        return torch.tensor(self.seed)

    def set_extra_state(self, state: Tensor) -> None:
        """Take a saved layer's seed."""
        self.redraw(int(state))

    def _rotations(self, n: int) -> Tensor | None:
        half = self.spec.buckets_for(n) // 2
        if half and half != self.rotations.shape[1]:
            self.rotations = self._drawn(half).to(self.rotations)
        return self.rotations if half else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each → (b, h, n, d); keys are the normalised queries, k is not read."""
        n = q.shape[2]
        attention = Attention(
            self.spec.plan(n, causal), self.spec.self_attention, self._rotations(n),
            self.spec.num_hashes,
        )  # fmt: skip
        return hashed_attention(flat(q), flat(v), attention).view(q.shape)

    def init_state(self, batch_size: int, like: Tensor) -> BucketState:
        """Empty buckets; their number must not move with the length."""
        s, spec = self.sizes, self.spec
        if spec.num_buckets is None:
            raise RequestError(f"reformer {spec.refusal('decode')}")
        buckets = batch_size * s.num_heads * spec.num_hashes * spec.num_buckets
        rows = like.new_zeros(buckets, 2 * spec.bucket_size, 2 * s.head_dim)
        return BucketState(rows, torch.zeros(buckets, dtype=torch.int64, device=like.device))

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: BucketState
    ) -> tuple[Tensor, BucketState]:
        """The new token enters its bucket of every round and reads what stands there."""
        query, d = flat(q), q.shape[-1]
        bucket = self._bucket(query)
        rank = state.counts.index_select(0, bucket)
        state.counts.index_copy_(0, bucket, rank + 1)
        self._write(state, query, flat(v), bucket, rank)
        seen = state.rows.index_select(0, bucket).view(query.shape[0], -1, 2 * d)
        scores = torch.bmm(query, seen[..., :d].transpose(1, 2))
        self._hide(scores.view(len(rank), -1), rank.unsqueeze(1))
        return torch.bmm(torch.softmax(scores, -1), seen[..., d:]).view(q.shape), state

    def _bucket(self, query: Tensor) -> Tensor:
        """Place of the token's bucket in the state, (b·rounds)."""
        rounds, buckets = self.spec.num_hashes, self.spec.buckets_for(1)
        first = torch.arange(0, query.shape[0] * rounds * buckets, buckets, device=query.device)
        rotations = self._rotations(1)
        return first if rotations is None else first.add_(hashed(query[:, 0], rotations).view(-1))

    def _write(
        self, state: BucketState, query: Tensor, v: Tensor, bucket: Tensor, rank: Tensor
    ) -> None:
        length, d = state.rows.shape[1], v.shape[-1]
        norm = torch.linalg.vector_norm(query, dim=-1, keepdim=True).clamp_min_(FLOOR)
        row = torch.cat([query / norm.mul_(math.sqrt(d)), v], -1)
        rows = row.repeat(1, self.spec.num_hashes, 1).view(-1, 2 * d)
        state.rows.view(-1, 2 * d).index_copy_(0, bucket * length + rank % length, rows)

    def _hide(self, scores: Tensor, rank: Tensor) -> None:
        """Hide what stands before the chunk before the token's own; itself unless alone."""
        size = self.spec.bucket_size
        age = (rank - torch.arange(2 * size, device=rank.device)).remainder_(2 * size)
        reach = torch.minimum(rank, rank % size + size)
        scores.masked_fill_(age > reach, float("-inf"))
        if not self.spec.self_attention:
            scores.masked_fill_(age == 0, ALONE)


def drawn_seed() -> int:
    """A seed from torch's generator; 0 where tensors are fake and hold no numbers."""
    number = torch.randint(1 << 62, (), device="cpu")
    return int(number) if type(number) is Tensor else 0


CORES = {"reformer": ReformerCore}
