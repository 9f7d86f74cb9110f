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

from attnprof.ops.function import Function
from attnprof.ops.functional import as_format_of, empty_like, join, padded, square_root, wide_zeros
from attnprof.ops.loops import in_blocks

#: Two tensors: of keys and values, or of weights and rows.
Pair = tuple[Any, Any]
#: Added to a feature relative to the row's largest one, so that no row vanishes.
EPSILON = 1e-6


class FeatureMap:
    """φ of rows (batch, c, d), one of three kinds.

    - ``projection`` None: elu(x) + 1, written max(x, 0) + exp(min(x, 0)).
    - ``projection`` Ω (d, m): elu(xΩ) + 1 (003, the article's Performer).
    - Ω and ``softmax``: exp(xΩ - ‖x‖²/(2·sqrt d)), positive features of exp(q·k / sqrt d) where
      Ω already carries d^(-1/4) (FAVOR+, Choromanski et al. 2021, Eq 5). A row is divided by its
      own largest feature and EPSILON is added; for a query that cancels, for a key the
      logarithm of the divisor comes back as its *scale*. Features do not depend on other rows.
      Gradients hold the largest feature constant in the EPSILON term.
    """

    def __init__(self, projection: Any, softmax: bool, batch: Any) -> None:
        self.softmax = softmax
        self.projection = None if projection is None else projection.expand(batch, -1, -1)

    def width(self, rows: Any) -> Any:
        """Return the number of features m of rows (batch, c, d)."""
        return rows.shape[-1] if self.projection is None else self.projection.shape[-1]

    def values(self, rows: Any) -> tuple[Any, Any]:
        """Return (batch, c, m) features, and the logarithm (batch, c, 1) of their divisor."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            return z.sub_(top).exp_().add_(EPSILON), top
        positive = z.clamp(min=0)
        return positive.add_(self._falling(z)), None

    def slope(self, rows: Any) -> Any:
        """Return (batch, c, m): the derivative of a feature to its projected input."""
        z = self._projected(rows)
        if self.softmax:
            return z.sub_(z.amax(-1, keepdim=True)).exp_()
        return self._falling(z)

    def values_and_slope(self, rows: Any) -> tuple[Any, Any, Any]:
        """Return features, their slopes, and the logarithm of the divisor."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            slope = z.sub_(top).exp_()
            return slope + EPSILON, slope, top
        positive = z.clamp(min=0)
        slope = self._falling(z)
        return positive.add_(slope), slope, None

    def input_grad(self, grad: Any, slope: Any) -> Any:
        """Return the rows' gradient (batch, c, d) from that of their features; overwrites that."""
        grad.mul_(slope)
        if self.projection is None:
            return grad
        return grad.bmm(self.projection.transpose(1, 2))

    def _projected(self, rows: Any) -> Any:
        return rows if self.projection is None else rows.bmm(self.projection)

    def _falling(self, z: Any) -> Any:
        """Return exp(min(z, 0)), over z unless z are the rows themselves."""
        return (z.clamp(max=0) if self.projection is None else z.clamp_(max=0)).exp_()


def key_scale(keys: Any, top: Any) -> Any:
    """Return the logarithm (batch, c, 1) a key's features are scaled by: top - ‖k‖²/(2·sqrt d)."""
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
        """Count ``tokens`` tokens; the state's size does not depend on them."""
        self.sums.uniform_(0.5, 1.5)
        if self.top is not None:
            self.top.zero_()

    def like(self, rows: Any) -> Any:
        """Return the sums in the number format of the rows."""
        return as_format_of(self.sums, rows)


def with_ones(values: Any) -> Any:
    """Return (batch, c, dv) → (batch, c, dv + 1): the last column sums the weights."""
    return padded(values, after=1, value=1.0)


def keys_of(k: Any, maps: FeatureMap) -> tuple[Any, Any]:
    """Return features of keys and their scale, None where the kind has none."""
    features, top = maps.values(k)
    return features, None if top is None else key_scale(k, top)


def decay(scale: Any, tops: Any) -> Any:
    """Return (batch, c, c): exp(s_j - max_{l≤i} s_l) at or below the diagonal, 0 above."""
    return (scale.transpose(1, 2) - tops).exp_().tril_()


def masked(weights: Any, factors: Any) -> Any:
    """Return weights a row may see, times their factors, in place."""
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
    """Return sums (batch, c, dv + 1) of a block's rows over all keys of the state."""
    queries = maps.values(q)[0]
    return queries.bmm(state.like(queries))


def causal_sums(q: Any, k: Any, v: Any, maps: FeatureMap, state: State) -> tuple[Any, Any]:
    """Return a chunk's sums (batch, c, dv + 1) and their scales; add the chunk to the state."""
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
    """Split sums (batch, c, dv + 1) into sums of values and, plus ``floor``, sums of weights."""
    total = sums[..., -1:]
    if floor:
        total.add_(floor)
    return sums[..., :-1], total


@dataclass
class KernelRows:
    """Inputs, output rows, their sums' divisors and scales (None where no one needs them)."""

    q: Any
    k: Any
    v: Any
    out: Any
    totals: Any
    tops: Any
    maps: FeatureMap
    rows: int
    floor: float = 0.0

    def fresh_state(self, scaled: bool) -> State:
        """Return a state before the first token, long sums in float32 at least."""
        b, v = self.q.shape[0], self.v
        sums = wide_zeros(v, b, self.maps.width(self.q), v.shape[-1] + 1)
        return State(sums, v.new_full((b, 1, 1), -math.inf) if scaled else None)

    def put(self, part: slice, sums: Any) -> None:
        """Divide sums (batch, c, dv + 1) by their last column and keep them as rows."""
        rows, total = numerators(sums, self.floor)
        if self.totals is not None:
            self.totals[:, part] = total
        self.out[:, part] = rows.div_(total)

    def sums_grad(self, grad: Any, part: slice) -> Any:
        """Return (batch, c, dv + 1): gradient of a row's sums from that of the row."""
        share = grad[:, part] / self.totals[:, part]
        against = (share * self.out[:, part]).sum(-1, keepdim=True).mul_(-1.0)
        return join((share, against), -1)

    def top_before(self, part: slice, first: Any) -> Any:
        """Return the scale of the last row before a chunk; ``first`` before the first row."""
        if self.tops is None or part.start == 0:
            return first
        return self.tops[:, part.start - 1 : part.start]


def causal_rows(s: KernelRows) -> tuple[Any, Any]:
    """Compute all rows by the chunked scan; no state is left."""
    state = s.fresh_state(s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        sums, tops = causal_sums(s.q[:, part], s.k[:, part], s.v[:, part], s.maps, state)
        if s.tops is not None:
            s.tops[:, part] = tops
        s.put(part, sums)
        del sums, tops
    return None, None


def full_rows(s: KernelRows) -> tuple[Any, Any]:
    """Return rows over all keys (a pass over keys, one over queries), and the state's tensors."""
    state = s.fresh_state(s.maps.softmax)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        absorb(state, s.k[:, part], s.v[:, part], s.maps)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        s.put(part, read(state, s.q[:, part], s.maps))
    return state.sums, state.top


def put_key_grads(s: KernelRows, part: slice, grads: Pair, rows: Any, into: Pair) -> None:
    """Keep a block's gradients of keys and of [V, 1] rows; a key's scale pulls on it too."""
    keys_grad, rows_grad = grads
    into[1][:, part] = rows_grad[..., :-1]
    if s.maps.softmax:
        k = s.k[:, part]
        scale_grad = rows.mul_(rows_grad).sum(-1, keepdim=True).mul_(1 / square_root(k.shape[-1]))
        keys_grad.sub_(k * scale_grad)
    into[0][:, part] = keys_grad


def causal_grads(s: KernelRows, grad: Any) -> tuple[Any, Any, Any]:
    """Return gradients (batch, n, ·): of q by a forward scan, of k and v by a reverse one."""
    to_q = empty_like(s.q, in_rows=True)
    state = s.fresh_state(s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        to_q[:, part] = _causal_query_chunk(s, grad, part, state)
    del state
    into = empty_like(s.k, in_rows=True), empty_like(s.v, in_rows=True)
    later = s.fresh_state(s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows, backwards=True):
        _causal_key_chunk(s, grad, part, later, into)
    return to_q, *into


def _causal_query_chunk(s: KernelRows, grad: Any, part: slice, state: State) -> Any:
    keys, scale = keys_of(s.k[:, part], s.maps)
    rows = with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops: Any = None if s.tops is None else s.tops[:, part]
    factors = None if scale is None else decay(scale, tops)
    weights_grad = masked(sums_grad.bmm(rows.transpose(1, 2)), factors)
    del factors
    features_grad = weights_grad.bmm(keys)
    del weights_grad
    if scale is not None:
        sums_grad.mul_((state.top - tops).exp_())
    features_grad.add_(sums_grad.bmm(state.like(keys).transpose(1, 2)))
    push(state, keys, rows, scale, None if scale is None else tops[:, -1:])
    del keys, rows, sums_grad
    return s.maps.input_grad(features_grad, s.maps.slope(s.q[:, part]))


def _causal_key_chunk(s: KernelRows, grad: Any, part: slice, later: State, into: Pair) -> None:
    queries = s.maps.values(s.q[:, part])[0]
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    scale = None if top is None else key_scale(s.k[:, part], top)
    rows = with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops: Any = None if s.tops is None else s.tops[:, part]
    before = s.top_before(part, later.top)
    sums = later.like(rows)
    rows_grad = keys.bmm(sums)
    factors, scaled_rows = None, rows
    if scale is not None:
        factors = decay(scale, tops)
        share = (scale - tops[:, -1:]).exp_()
        rows_grad.mul_(share)
        scaled_rows = rows * share
    weights = masked(queries.bmm(keys.transpose(1, 2)), factors)
    del keys
    rows_grad.add_(weights.transpose(1, 2).bmm(sums_grad))
    del weights
    weights_grad = masked(sums_grad.bmm(rows.transpose(1, 2)), factors)
    del factors
    features_grad = weights_grad.transpose(1, 2).bmm(queries)
    del weights_grad
    features_grad.add_(scaled_rows.bmm(sums.transpose(1, 2)))
    del scaled_rows, sums
    if scale is not None:
        sums_grad.mul_((before - tops).exp_())
        later.sums.mul_((before - tops[:, -1:]).exp_())
    later.add(queries, sums_grad)
    del queries, sums_grad
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def full_grads(s: KernelRows, grad: Any, state: State) -> tuple[Any, Any, Any]:
    """Return gradients of queries, keys and values: one pass over queries, one over keys."""
    to_q, to_k, to_v = (empty_like(x, in_rows=True) for x in (s.q, s.k, s.v))
    grads = s.fresh_state(False)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        to_q[:, part] = _full_query_block(s, grad, part, state, grads)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        _full_key_block(s, part, state, grads, (to_k, to_v))
    return to_q, to_k, to_v


def _full_query_block(s: KernelRows, grad: Any, part: slice, state: State, grads: State) -> Any:
    queries, slope = s.maps.values_and_slope(s.q[:, part])[:2]
    sums_grad = s.sums_grad(grad, part)
    grads.add(queries, sums_grad)
    del queries
    features_grad = sums_grad.bmm(state.like(sums_grad).transpose(1, 2))
    del sums_grad
    return s.maps.input_grad(features_grad, slope)


def _full_key_block(s: KernelRows, part: slice, state: State, grads: State, into: Pair) -> None:
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    rows = with_ones(s.v[:, part])
    sums = grads.like(rows)
    rows_grad = keys.bmm(sums)
    del keys
    scaled_rows = rows
    if top is not None:
        share = (key_scale(s.k[:, part], top) - state.top).exp_()
        rows_grad.mul_(share)
        scaled_rows = rows * share
    features_grad = scaled_rows.bmm(sums.transpose(1, 2))
    del scaled_rows, sums
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def _forward(
    q: Any, k: Any, v: Any, projection: Any, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, floor: float = 0.0, keep: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    maps, (b, n, _) = FeatureMap(projection, softmax, q.shape[0]), q.shape
    out = v.new_empty(b, n, v.shape[-1])
    totals = v.new_empty(b, n, 1) if keep else None
    scales = keep and softmax and causal
    s = KernelRows(
        q, k, v, out, totals, v.new_empty(b, n, 1) if scales else None, maps, rows, floor
    )
    state = causal_rows(s) if causal else full_rows(s)
    return out, (q, k, v, projection, out, totals, s.tops, *state)


def _grads(
    saved: tuple[Any, ...], grad: Any, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    q, k, v, projection, out, totals, tops, sums, top = saved
    maps = FeatureMap(projection, softmax, q.shape[0])
    s = KernelRows(q, k, v, out, totals, tops, maps, rows)
    grads = causal_grads(s, grad) if causal else full_grads(s, grad, State(sums, top))
    return *grads, None


#: Rows (batch, n, dv) of kernel attention; q (batch, n, d), k (batch, m, d), v (batch, m, dv).
#:
#: The fourth operand, a projection (d, features) or None, and ``softmax`` choose the features
#: (:class:`FeatureMap`), ``rows`` the tokens of a block, ``floor`` is added to each denominator.
#: Live memory beyond inputs and output is that of one block and one state.
kernel_attention = Function(_forward, _grads)
