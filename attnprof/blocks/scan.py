"""Kernel attention by blocks of tokens: out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j).

Causal rows come from a chunked prefix scan: products inside a chunk, a state φ(K)ᵀ[V, 1] of
(m, dv + 1) across chunks. Backward recomputes the features: a forward rescan for queries, a
reverse scan for keys and values. Beside its inputs and output it saves a number or two a row.

Keys of softmax features carry a logarithmic scale s_j. As in online softmax, row i holds its
sums times exp(-max_{j≤i} s_j): a later token changes nothing before it, and the factor
cancels in the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnprof.blocks.features import FeatureMap, key_scale


def parts(n: int, length: int) -> Iterator[slice]:
    """Slices of at most this many rows."""
    return (slice(start, min(start + length, n)) for start in range(0, n, length))


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Long sums are kept in float32 where the inputs have fewer digits."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass
class State:
    """Sums (batch, m, dv + 1) over tokens; times exp(-top), top (batch, 1, 1), if scaled."""

    sums: Tensor
    top: Tensor | None

    def add(self, features: Tensor, rows: Tensor) -> None:
        """Add featuresᵀ rows: (batch, c, m) and (batch, c, dv + 1)."""
        self.sums.add_(torch.bmm(features.transpose(1, 2), rows))

    def advance(self, tokens: int) -> None:
        """As after so many tokens, from a fresh state: it does not grow."""
        self.sums.uniform_(0.5, 1.5)
        if self.top is not None:
            self.top.zero_()

    def like(self, rows: Tensor) -> Tensor:
        """The sums in the number format of the rows."""
        return self.sums.to(rows.dtype)


def empty_state(batch: int, features: int, width: int, like: Tensor, scaled: bool) -> State:
    """A state before the first token; ``width`` is the values' dv."""
    sums = like.new_zeros(batch, features, width + 1, dtype=state_dtype(like.dtype))
    return State(sums, like.new_full((batch, 1, 1), -math.inf) if scaled else None)


def with_ones(values: Tensor) -> Tensor:
    """(batch, c, dv) → (batch, c, dv + 1): the last column sums the weights."""
    return F.pad(values, (0, 1), value=1.0)


def keys_of(k: Tensor, maps: FeatureMap) -> tuple[Tensor, Tensor | None]:
    """Features of keys and their scale, None where the kind has none."""
    features, top = maps.values(k)
    return features, None if top is None else key_scale(k, top)


def decay(scale: Tensor, tops: Tensor) -> Tensor:
    """(batch, c, c): exp(s_j - max_{l≤i} s_l) at or below the diagonal, 0 above."""
    return (scale.transpose(1, 2) - tops).exp_().tril_()


def masked(weights: Tensor, factors: Tensor | None) -> Tensor:
    """Weights a row may see, times their factors, in place."""
    return weights.tril_() if factors is None else weights.mul_(factors)


def push(
    state: State, features: Tensor, rows: Tensor, scale: Tensor | None, top: Tensor | None
) -> None:
    """Add keys to a state whose largest scale becomes ``top``; overwrites ``rows``."""
    if scale is not None and top is not None and state.top is not None:
        state.sums.mul_((state.top - top).exp_())
        rows.mul_((scale - top).exp_())
        state.top.copy_(top)
    state.add(features, rows)


def absorb(state: State, k: Tensor, v: Tensor, maps: FeatureMap) -> None:
    """Add a block of keys and values (batch, c, ·) to a state."""
    features, scale = keys_of(k, maps)
    top = None
    if scale is not None and state.top is not None:
        top = torch.maximum(scale.amax(1, keepdim=True), state.top)
    push(state, features, with_ones(v), scale, top)


@dataclass
class Result:
    """Output rows, and what a backward pass needs of them: their sums' divisor, their scale."""

    out: Tensor
    floor: float
    totals: Tensor | None
    tops: Tensor | None

    def put(self, part: slice, sums: Tensor) -> None:
        """Divide sums (batch, c, dv + 1) by their last column and keep them as rows."""
        width = self.out.shape[-1]
        total = sums[..., width:]
        if self.floor:
            total.add_(self.floor)
        if self.totals is not None:
            self.totals[:, part] = total
        self.out[:, part] = sums[..., :width].div_(total)


def empty_result(q: Tensor, v: Tensor, floor: float, keep: bool, scaled: bool) -> Result:
    """Room for the rows, and for their totals and scales if a backward pass may come."""
    rows = (q.shape[0], q.shape[1])
    out = v.new_empty(*rows, v.shape[-1])
    totals = v.new_empty(*rows, 1) if keep else None
    return Result(out, floor, totals, v.new_empty(*rows, 1) if keep and scaled else None)


def causal_sums(
    q: Tensor, k: Tensor, v: Tensor, maps: FeatureMap, state: State
) -> tuple[Tensor, Tensor | None]:
    """Sums (batch, c, dv + 1) of a chunk's rows and their scales; moves the state past it."""
    queries = maps.values(q)[0]
    keys, scale = keys_of(k, maps)
    rows = with_ones(v)
    weights = torch.bmm(queries, keys.transpose(1, 2))
    sums = torch.bmm(queries, state.like(queries))
    del queries
    tops = factors = None
    if scale is not None and state.top is not None:
        tops = torch.maximum(scale.cummax(1).values, state.top)
        factors = decay(scale, tops)
        sums.mul_((state.top - tops).exp_())
    sums.add_(torch.bmm(masked(weights, factors), rows))
    del weights, factors
    push(state, keys, rows, scale, None if tops is None else tops[:, -1:])
    return sums, tops


def causal_forward(
    q: Tensor, k: Tensor, v: Tensor, maps: FeatureMap, rows: int, floor: float, keep: bool
) -> tuple[Result, None]:
    """All rows by the chunked scan."""
    result = empty_result(q, v, floor, keep, maps.softmax)
    state = empty_state(q.shape[0], maps.width(q), v.shape[-1], v, maps.softmax)
    for part in parts(q.shape[1], rows):
        sums, tops = causal_sums(q[:, part], k[:, part], v[:, part], maps, state)
        if result.tops is not None and tops is not None:
            result.tops[:, part] = tops
        result.put(part, sums)
        del sums, tops
    return result, None


def full_forward(
    q: Tensor, k: Tensor, v: Tensor, maps: FeatureMap, rows: int, floor: float, keep: bool
) -> tuple[Result, State]:
    """All rows against all keys: one pass over keys, one over queries."""
    result = empty_result(q, v, floor, keep, False)
    state = empty_state(q.shape[0], maps.width(q), v.shape[-1], v, maps.softmax)
    for part in parts(k.shape[1], rows):
        absorb(state, k[:, part], v[:, part], maps)
    for part in parts(q.shape[1], rows):
        queries = maps.values(q[:, part])[0]
        result.put(part, torch.bmm(queries, state.like(queries)))
        del queries
    return result, state
