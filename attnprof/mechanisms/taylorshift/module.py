"""TaylorShift's cores: both forms, the one that switches, and decoding (004, Algorithm 1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnprof.blocks.boxed import BOXED
from attnprof.blocks.cache import TokenCache
from attnprof.blocks.core import AttentionCore, flat
from attnprof.blocks.symmetric import SYMMETRIC
from attnprof.blocks.taylor import (
    Map,
    Ratio,
    Rows,
    apply,
    boxed_sums,
    row_scale,
    weighted,
    with_ones,
)
from attnprof.blocks.taylor_scan import RowFeatures, Scan, Sums, chunks
from attnprof.mechanisms.taylorshift.symmetric import AT_ONCE, SCANNED
from attnprof.workload import Workload


class TaylorCore(AttentionCore):
    """What both forms share: a temperature a head, and normalised rows."""

    #: the features of the sums, and how many chunks the scan takes at once
    features: RowFeatures = BOXED
    scanned: int = 1

    def __init__(self, spec: Any, sizes: Any) -> None:
        super().__init__(spec, sizes)
        self.temperature = nn.Parameter(torch.full((sizes.num_heads,), float(spec.temperature)))

    def normalised(self, q: Tensor, k: Tensor, length: float = 1.0) -> tuple[Tensor, Tensor]:
        """Rows of length ``length``, queries times their temperature; (b·h, n, d) each."""
        rows = apply(Rows, q, length) * self.temperature.view(-1, 1, 1)
        return flat(rows), apply(Rows, flat(k), length)

    def direct(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(x + 1)² + 1 of every score (twice the Taylor map), row by row normalised."""
        b, h, n, d = q.shape
        scale = row_scale(n, q) if causal else math.sqrt(d / n)
        queries, keys = self.normalised(q, k)
        scores = torch.bmm(queries, keys.transpose(1, 2)).add_(1)
        del queries, keys
        weights = apply(Map, scores, causal)
        del scores
        return weighted(weights, flat(v), scale).view(b, h, n, d)

    def efficient(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """Algorithm 1; where causal a scan."""
        b, h, n, d = q.shape
        if causal:
            return self.scan(q, k, v)
        queries, keys = self.normalised(q, k, d**0.25)
        y = boxed_sums(queries, keys, flat(v))
        del queries, keys
        bottom, top = torch.split(y, [1, d], -1)
        return apply(Ratio, top, bottom, 1.0).view(b, h, n, d)

    def scan(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal sums by chunks, with N := t in row t."""
        b, h, n, d = q.shape
        queries, keys = self.normalised(q, k)
        size = self.scanned * self.spec.chunk
        y = apply(Scan, queries, keys, with_ones(flat(v)), size, self.features)
        del queries, keys
        bottom, top = torch.split(y, [1, d], -1)
        return apply(Ratio, top, bottom, row_scale(n, q)).view(b, h, n, d)

    def init_state(self, batch_size: int, like: Tensor) -> TaylorState:
        """Nothing seen yet."""
        batch, d = batch_size * self.sizes.num_heads, self.sizes.head_dim
        return TaylorState(batch, d, like, self.features, self.sizes.seq_len)

    def direct_step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> Tensor:
        """The new token against the cached normalised keys and values."""
        queries, keys = self.normalised(q, k)
        keys, values = state.cache(keys, flat(v))
        scale = math.sqrt(q.shape[-1] / state.length)
        scores = torch.bmm(queries, keys.transpose(1, 2)).add_(1)
        del queries
        weights = apply(Map, scores, False)
        del scores
        return weighted(weights, values, scale).view(q.shape)

    def efficient_step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> Tensor:
        """The new token joins the sums and reads them: O(d³), whatever the length."""
        sums = state.built(self.spec.chunk)
        state.length += 1
        queries, keys = self.normalised(q, k)
        self.features.absorb(sums, keys, with_ones(flat(v)))
        y = self.features.read(queries, sums, True)
        scale = math.sqrt(q.shape[-1] / state.length)
        return apply(Ratio, y[..., 1:], y[..., :1], scale).view(q.shape)


@dataclass
class TaylorState:
    """What a decoder keeps: normalised keys and values, or, once built, their sums."""

    batch: int
    head_dim: int
    like: Tensor
    features: RowFeatures
    room: int | None = None
    length: int = 0
    keys: TokenCache | None = None
    values: TokenCache | None = None
    sums: Tensor | None = None
    #: whether the token of this number is decoded directly, where that changes on the way
    direct: Callable[[int], bool] | None = None

    def advance(self, tokens: int) -> None:
        """As after so many tokens with random rows, from a fresh state."""
        if self.sums is None and self.direct and tokens and not self.direct(tokens):
            self.built(1)
        if self.sums is not None:
            self.sums.uniform_(0.5, 1.5)
        else:
            for cache in self._caches():
                cache.advance(tokens)
        self.length = tokens

    def cache(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token (b·h, 1, d); all keys and values so far."""
        keys, values = self._caches()
        self.length += 1
        return keys.append(k), values.append(v)

    def _caches(self) -> tuple[TokenCache, TokenCache]:
        """Both caches, made when the first token needs them."""
        if self.keys is None or self.values is None:
            self.keys = TokenCache(self.batch, self.head_dim, self.like, self.room)
            self.values = TokenCache(self.batch, self.head_dim, self.like, self.room)
        return self.keys, self.values

    def built(self, size: int) -> Tensor:
        """The sums (b·h, features, d + 1); built once from the cache, which is let go."""
        if self.sums is None:
            d, like = self.head_dim, self.like.detach()
            self.sums = like.new_zeros(self.batch, self.features.width(d), d + 1)
            if self.keys is not None and self.values is not None:
                keys, values = self.keys.seen, self.values.seen
                for here in chunks(self.length, size):
                    self.features.absorb(self.sums, keys[:, here], with_ones(values[:, here]))
            self.keys = self.values = None
        return self.sums


class DirectCore(TaylorCore):
    """Forms the N × N scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each."""
        return self.direct(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each."""
        return self.direct_step(q, k, v, state), state


class EfficientCore(TaylorCore):
    """Forms N × d² box products, never N × N."""

    def init_state(self, batch_size: int, like: Tensor) -> TaylorState:
        """Sums of nothing."""
        state = super().init_state(batch_size, like)
        state.built(self.spec.chunk)
        return state

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each."""
        return self.efficient(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each."""
        return self.efficient_step(q, k, v, state), state


class SymmetricCore(EfficientCore):
    """Each pair of entries once, in chunks, never N × d²."""

    features = SYMMETRIC
    scanned = SCANNED

    def efficient(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """All tokens' sums, or those of a scan."""
        if causal:
            return self.scan(q, k, v)
        b, h, n, d = q.shape
        queries, keys = self.normalised(q, k)
        size = AT_ONCE * self.spec.chunk
        y = apply(Sums, queries, keys, with_ones(flat(v)), size, self.features)
        del queries, keys
        bottom, top = torch.split(y, [1, d], -1)
        return apply(Ratio, top, bottom, math.sqrt(d / n)).view(b, h, n, d)


def efficient_core(spec: Any, sizes: Any) -> TaylorCore:
    """The efficient form as ``impl`` says."""
    return (SymmetricCore if spec.impl == "symmetric" else EfficientCore)(spec, sizes)


def _size(size: Any) -> int:
    """A plain number, also of a compiler's; of a symbolic run the symbol, to be compared itself."""
    symbolic = isinstance(size, torch.SymInt) and not torch.compiler.is_compiling()
    return size if symbolic else operator.index(size)


class SwitchingCore(TaylorCore):
    """The direct form while it is not dearer."""

    def _direct(self, seq_len: int, batch: int, causal: bool, phase: str) -> bool:
        """Whether the direct form is taken; a compiler asks once a shape and does not trace it."""
        s = self.sizes
        workload = Workload(seq_len, s.num_heads, s.head_dim, batch, causal=causal, phase=phase)
        chosen: bool = self.spec.takes_direct(workload)
        return chosen

    # all that torch.compiler.assume_constant_result does, without its import of the compiler
    _direct._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001

    def init_state(self, batch_size: int, like: Tensor) -> TaylorState:
        """Sums of nothing where even the first token takes the efficient form."""
        state = super().init_state(batch_size, like)
        state.direct = lambda token: self._direct(token, batch_size, True, "decode")
        if not state.direct(1):
            state.built(self.spec.chunk)
        return state

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        """(b, h, n, d) each; in training the whole step decides."""
        phase = "train" if torch.is_grad_enabled() else "forward"
        direct = self._direct(_size(q.shape[2]), _size(q.shape[0]), causal, phase)
        return self.direct(q, k, v, causal) if direct else self.efficient(q, k, v, causal)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: TaylorState) -> tuple[Tensor, Any]:
        """One token, (b, h, 1, d) each; once the sums are built they are kept."""
        token, batch = state.length + 1, q.shape[0]
        direct = state.sums is None and self._direct(token, batch, True, "decode")
        return (self.direct_step if direct else self.efficient_step)(q, k, v, state), state


CORES = {
    "taylor-direct": DirectCore,
    "taylor-efficient": efficient_core,
    "taylorshift": SwitchingCore,
}
