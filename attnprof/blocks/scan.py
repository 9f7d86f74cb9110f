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
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.features import FeatureMap, key_scale
from attnprof.ops.functional import as_format_of, padded, wide_zeros
from attnprof.ops.loops import in_blocks


@dataclass
class State:
    """Sums (batch, m, dv + 1) over tokens; times exp(-top), top (batch, 1, 1), if scaled."""

    sums: Any
    top: Any

    def add(self, features: Any, rows: Any) -> None:
        """Add featuresᵀ rows: (batch, c, m) and (batch, c, dv + 1)."""
        self.sums.add_(features.transpose(1, 2).bmm(rows))

    def advance(self, tokens: int) -> None:
        """As after so many tokens, from a fresh state: it does not grow."""
        self.sums.uniform_(0.5, 1.5)
        if self.top is not None:
            self.top.zero_()

    def like(self, rows: Any) -> Any:
        """The sums in the number format of the rows."""
        return as_format_of(self.sums, rows)


def empty_state(q: Any, v: Any, maps: FeatureMap, scaled: bool) -> State:
    """A state before the first token, long sums in float32 at least."""
    sums = wide_zeros(v, q.shape[0], maps.width(q), v.shape[-1] + 1)
    return State(sums, v.new_full((q.shape[0], 1, 1), -math.inf) if scaled else None)


def with_ones(values: Any) -> Any:
    """(batch, c, dv) → (batch, c, dv + 1): the last column sums the weights."""
    return padded(values, after=1, value=1.0)


def keys_of(k: Any, maps: FeatureMap) -> tuple[Any, Any]:
    """Features of keys and their scale, None where the kind has none."""
    features, top = maps.values(k)
    return features, None if top is None else key_scale(k, top)


def decay(scale: Any, tops: Any) -> Any:
    """(batch, c, c): exp(s_j - max_{l≤i} s_l) at or below the diagonal, 0 above."""
    return (scale.transpose(1, 2) - tops).exp_().tril_()


def masked(weights: Any, factors: Any) -> Any:
    """Weights a row may see, times their factors, in place."""
    return weights.tril_() if factors is None else weights.mul_(factors)


def push(state: State, features: Any, rows: Any, scale: Any, top: Any) -> None:
    """Add keys to a state whose largest scale becomes ``top``; overwrites ``rows``."""
    if scale is not None:
        state.sums.mul_((state.top - top).exp_())
        rows.mul_((scale - top).exp_())
        state.top.copy_(top)
    state.add(features, rows)


def absorb(state: State, k: Any, v: Any, maps: FeatureMap) -> None:
    """Add a block of keys and values (batch, c, ·) to a state."""
    features, scale = keys_of(k, maps)
    top = None if scale is None else scale.amax(1, keepdim=True).maximum(state.top)
    push(state, features, with_ones(v), scale, top)


def read(state: State, q: Any, maps: FeatureMap) -> Any:
    """Sums (batch, c, dv + 1) of a block's rows over all keys of the state."""
    queries = maps.values(q)[0]
    return queries.bmm(state.like(queries))


def causal_sums(q: Any, k: Any, v: Any, maps: FeatureMap, state: State) -> tuple[Any, Any]:
    """Sums (batch, c, dv + 1) of a chunk's rows and their scales; moves the state past it."""
    queries = maps.values(q)[0]
    keys, scale = keys_of(k, maps)
    rows = with_ones(v)
    weights = queries.bmm(keys.transpose(1, 2))
    sums = queries.bmm(state.like(queries))
    del queries
    tops = factors = None
    if scale is not None:
        tops = scale.cummax(1).values.maximum(state.top)
        factors = decay(scale, tops)
        sums.mul_((state.top - tops).exp_())
    sums.add_(masked(weights, factors).bmm(rows))
    del weights, factors
    push(state, keys, rows, scale, None if tops is None else tops[:, -1:])
    return sums, tops


@dataclass
class Result:
    """Output rows, and what a backward pass needs of them: their sums' divisor, their scale."""

    out: Any
    floor: float
    totals: Any
    tops: Any

    def put(self, part: slice, sums: Any) -> None:
        """Divide sums (batch, c, dv + 1) by their last column and keep them as rows."""
        rows, total = numerators(sums, self.floor)
        if self.totals is not None:
            self.totals[:, part] = total
        self.out[:, part] = rows.div_(total)


def numerators(sums: Any, floor: float) -> tuple[Any, Any]:
    """Sums (batch, c, dv + 1) as those of values and those of weights, to which floor is added."""
    total = sums[..., -1:]
    if floor:
        total.add_(floor)
    return sums[..., :-1], total


def empty_result(q: Any, v: Any, floor: float, keep: bool, scaled: bool) -> Result:
    """Room for the rows, and for their totals and scales if a backward pass may come."""
    b, n, _ = q.shape
    out = v.new_empty(b, n, v.shape[-1])
    totals = v.new_empty(b, n, 1) if keep else None
    return Result(out, floor, totals, v.new_empty(b, n, 1) if keep and scaled else None)


def causal_forward(
    q: Any, k: Any, v: Any, maps: FeatureMap, rows: int, floor: float, keep: bool
) -> tuple[Result, None]:
    """All rows by the chunked scan."""
    result = empty_result(q, v, floor, keep, maps.softmax)
    state = empty_state(q, v, maps, maps.softmax)
    for part in in_blocks(q, q.shape[1], rows):
        sums, tops = causal_sums(q[:, part], k[:, part], v[:, part], maps, state)
        if result.tops is not None:
            result.tops[:, part] = tops
        result.put(part, sums)
        del sums, tops
    return result, None


def full_forward(
    q: Any, k: Any, v: Any, maps: FeatureMap, rows: int, floor: float, keep: bool
) -> tuple[Result, State]:
    """All rows against all keys: one pass over keys, one over queries."""
    result = empty_result(q, v, floor, keep, False)
    state = empty_state(q, v, maps, maps.softmax)
    for part in in_blocks(q, k.shape[1], rows):
        absorb(state, k[:, part], v[:, part], maps)
    for part in in_blocks(q, q.shape[1], rows):
        result.put(part, read(state, q[:, part], maps))
    return result, state
