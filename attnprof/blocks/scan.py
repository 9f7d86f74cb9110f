"""Kernel attention by blocks of tokens: out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j).

Causal rows come from a chunked prefix scan: products inside a chunk, a state φ(K)ᵀ[V, 1] of
(m, dv + 1) across chunks. Backward recomputes the features: a forward rescan for queries, a
reverse scan for keys and values. Beside its inputs and output it saves a number or two a row.

Keys of softmax features carry a logarithmic scale s_j. As in online softmax, row i holds its
sums times exp(-max_{j≤i} s_j): a later token changes nothing before it, and the factor
cancels in the division.
"""

import math
from dataclasses import dataclass
from typing import Any

from attnprof.ops.functional import as_format_of, padded, square_root, wide_zeros

#: Added to a feature relative to the row's largest one, so that no row vanishes.
EPSILON = 1e-6


class FeatureMap:
    """φ of rows (batch, c, d), one of three kinds.

    - ``projection`` None: elu(x) + 1, written max(x, 0) + exp(min(x, 0)).
    - ``projection`` Ω (d, m): elu(xΩ) + 1 (003, the article's Performer).
    - Ω and ``softmax``: exp(xΩ - ‖x‖²/(2·sqrt d)), positive features of exp(q·k / sqrt d) where
      Ω already carries d^(-1/4) (FAVOR+, Choromanski et al. 2021, Eq 5). A row is divided by its
      own largest feature and EPSILON is added; for a query that cancels, for a key the
      logarithm of the divisor comes back as its *scale*. No other row has a say in it.
      Gradients hold the largest feature constant in the EPSILON term.
    """

    def __init__(self, projection: Any, softmax: bool, batch: Any) -> None:
        self.softmax = softmax
        self.projection = None if projection is None else projection.expand(batch, -1, -1)

    def width(self, rows: Any) -> Any:
        """Number of features m of rows (batch, c, d)."""
        return rows.shape[-1] if self.projection is None else self.projection.shape[-1]

    def values(self, rows: Any) -> tuple[Any, Any]:
        """(batch, c, m) features, and the logarithm (batch, c, 1) of what divided them."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            return z.sub_(top).exp_().add_(EPSILON), top
        positive = z.clamp(min=0)
        return positive.add_(self._falling(z)), None

    def slope(self, rows: Any) -> Any:
        """(batch, c, m): the derivative of a feature to its projected input."""
        z = self._projected(rows)
        if self.softmax:
            return z.sub_(z.amax(-1, keepdim=True)).exp_()
        return self._falling(z)

    def values_and_slope(self, rows: Any) -> tuple[Any, Any, Any]:
        """Both at once: features, slopes, logarithm of the divisor."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            slope = z.sub_(top).exp_()
            return slope + EPSILON, slope, top
        positive = z.clamp(min=0)
        slope = self._falling(z)
        return positive.add_(slope), slope, None

    def input_grad(self, grad: Any, slope: Any) -> Any:
        """(batch, c, d) gradient of the rows from that of their features, which it overwrites."""
        grad.mul_(slope)
        if self.projection is None:
            return grad
        return grad.bmm(self.projection.transpose(1, 2))

    def _projected(self, rows: Any) -> Any:
        return rows if self.projection is None else rows.bmm(self.projection)

    def _falling(self, z: Any) -> Any:
        """exp(min(z, 0)), over z unless z are the rows themselves."""
        return (z.clamp(max=0) if self.projection is None else z.clamp_(max=0)).exp_()


def key_scale(keys: Any, top: Any) -> Any:
    """The logarithm (batch, c, 1) a key's features are scaled by: top - ‖k‖²/(2·sqrt d)."""
    norm = (keys * keys).sum(-1, keepdim=True).mul_(0.5 / square_root(keys.shape[-1]))
    return top.sub_(norm)


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


def numerators(sums: Any, floor: float) -> tuple[Any, Any]:
    """Sums (batch, c, dv + 1) as those of values and those of weights, to which floor is added."""
    total = sums[..., -1:]
    if floor:
        total.add_(floor)
    return sums[..., :-1], total
