"""Kernel attention by blocks of tokens: out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j).

Causal rows come from a chunked prefix scan: products inside a chunk, a state φ(K)ᵀ[V, 1] of
(m, dv + 1) across chunks. Backward recomputes features: a forward scan for queries, a reverse one
for keys and values. It saves inputs, output and denominators, causal rows' scales, others' state.

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

#: Gradients of keys and of values.
Pair = tuple[Any, Any]
#: Added to a feature relative to the row's largest one, so that no row vanishes.
EPSILON = 1e-6


class FeatureMap:
    """φ of rows (batch, c, d), one of three kinds.

    - ``projection`` None: elu(x) + 1, written max(x, 0) + exp(min(x, 0)).
    - ``projection`` Ω (d, m): elu(xΩ) + 1 (003, the article's Performer).
    - Ω and ``softmax``: exp(xΩ - ‖x‖²/(2·sqrt d)), positive features of exp(q·k / sqrt d) where
      Ω already carries d^(-1/4) (FAVOR+, Choromanski et al. 2021, Eq 5). A row is divided by its
      own largest feature and EPSILON is added. A query's divisor cancels; the logarithm of a
      key's is part of its *scale*. Gradients hold the largest feature constant in the EPSILON term.
    """

    def __init__(self, projection: Any, softmax: bool, batch: Any) -> None:
        self.softmax = softmax
        self.projection = None if projection is None else projection.expand(batch, -1, -1)

    def width(self, rows: Any) -> Any:
        """Return the number of features m of rows (batch, c, d)."""
        return rows.shape[-1] if self.projection is None else self.projection.shape[-1]

    def features(self, rows: Any) -> tuple[Any, Any]:
        """Return (batch, c, m) features, and the logarithm (batch, c, 1) of their divisor."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            return z.sub_(top).exp_().add_(EPSILON), top
        positive = z.clamp(min=0)
        return positive.add_(self._elu_slope(z)), None

    def slope(self, rows: Any) -> Any:
        """Return (batch, c, m): the derivative of a feature to its projected input."""
        z = self._projected(rows)
        if self.softmax:
            return z.sub_(z.amax(-1, keepdim=True)).exp_()
        return self._elu_slope(z)

    def features_and_slope(self, rows: Any) -> tuple[Any, Any, Any]:
        """Return features, slopes and the logarithm of the divisor, from one projection."""
        z = self._projected(rows)
        if self.softmax:
            top = z.amax(-1, keepdim=True)
            slope = z.sub_(top).exp_()
            return slope + EPSILON, slope, top
        positive = z.clamp(min=0)
        slope = self._elu_slope(z)
        return positive.add_(slope), slope, None

    def input_grad(self, grad: Any, slope: Any) -> Any:
        """Return the gradient (batch, c, d) of rows from that of features, which is overwritten."""
        grad.mul_(slope)
        if self.projection is None:
            return grad
        return grad.bmm(self.projection.transpose(1, 2))

    def _projected(self, rows: Any) -> Any:
        return rows if self.projection is None else rows.bmm(self.projection)

    def _elu_slope(self, z: Any) -> Any:
        """Return exp(min(z, 0)), the slope of elu(z); overwrites z unless it is the input."""
        return (z.clamp(max=0) if self.projection is None else z.clamp_(max=0)).exp_()


def key_scale(keys: Any, top: Any) -> Any:
    """Return the scale (batch, c, 1) of each key: top - ‖k‖²/(2·sqrt d)."""
    norm = (keys * keys).sum(-1, keepdim=True).mul_(0.5 / square_root(keys.shape[-1]))
    return top.sub_(norm)


@dataclass
class State:
    """The sums φ(K)ᵀ[V, 1] (batch, m, dv + 1) over the tokens so far.

    Those of softmax features are times exp(-top), where ``top`` (batch, 1, 1) is the largest scale.
    """

    sums: Any
    top: Any

    def add(self, features: Any, rows: Any) -> None:
        """Add featuresᵀ rows: (batch, c, m) and (batch, c, dv + 1)."""
        self.sums.add_(features.transpose(1, 2).bmm(rows))

    def advance(self, tokens: int) -> None:
        """Fill the state as any number of ``tokens`` would: with positive sums, of scale 0."""
        self.sums.uniform_(0.5, 1.5)
        if self.top is not None:
            self.top.zero_()

    def sums_like(self, rows: Any) -> Any:
        """Return the sums in the number format of the rows."""
        return as_format_of(self.sums, rows)


def with_ones(values: Any) -> Any:
    """Return (batch, c, dv) → (batch, c, dv + 1): the last column sums the weights."""
    return padded(values, after=1, value=1.0)


def keys_of(k: Any, phi: FeatureMap) -> tuple[Any, Any]:
    """Return features of keys and their scale, which is None but for softmax features."""
    features, top = phi.features(k)
    return features, None if top is None else key_scale(k, top)


def decay(scale: Any, tops: Any) -> Any:
    """Return (batch, c, c): exp(s_j - max_{l≤i} s_l) at or below the diagonal, 0 above."""
    return (scale.transpose(1, 2) - tops).exp_().tril_()


def masked(weights: Any, factors: Any) -> Any:
    """Return causal weights in place: 0 above the diagonal, or times ``factors`` of a decay."""
    return weights.tril_() if factors is None else weights.mul_(factors)


def push(state: State, features: Any, rows: Any, scale: Any, top: Any) -> None:
    """Add keys to a state whose largest scale becomes ``top``; overwrites ``rows``."""
    if scale is not None:
        state.sums.mul_((state.top - top).exp_())
        rows.mul_((scale - top).exp_())
        state.top.copy_(top)
    state.add(features, rows)


def absorb(state: State, k: Any, v: Any, phi: FeatureMap) -> None:
    """Add a block of keys and values (batch, c, ·) to a state."""
    features, scale = keys_of(k, phi)
    top = None if scale is None else scale.amax(1, keepdim=True).maximum(state.top)
    push(state, features, with_ones(v), scale, top)


def read(state: State, q: Any, phi: FeatureMap) -> Any:
    """Return the sums (batch, c, dv + 1) of queries over all keys of the state."""
    queries = phi.features(q)[0]
    return queries.bmm(state.sums_like(queries))


def causal_sums(q: Any, k: Any, v: Any, phi: FeatureMap, state: State) -> tuple[Any, Any]:
    """Return a chunk's sums (batch, c, dv + 1) and scales of rows; add its keys to the state."""
    queries = phi.features(q)[0]
    keys, scale = keys_of(k, phi)
    rows = with_ones(v)
    weights = queries.bmm(keys.transpose(1, 2))
    sums = queries.bmm(state.sums_like(queries))
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
    """Split sums (batch, c, dv + 1) into numerators and denominators, which ``floor`` adds to."""
    total = sums[..., -1:]
    if floor:
        total.add_(floor)
    return sums[..., :-1], total


@dataclass
class KernelRows:
    """Inputs (batch, n, ·), output, denominators, and causal rows' largest scales (batch, n, 1).

    ``totals`` and ``tops`` are None where backward needs none. A block has ``rows`` tokens.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    totals: Any
    tops: Any
    phi: FeatureMap
    rows: int
    floor: float = 0.0

    def fresh_state(self, scaled: bool) -> State:
        """Return the state before the first token, in float32 at least."""
        b, v = self.q.shape[0], self.v
        sums = wide_zeros(v, b, self.phi.width(self.q), v.shape[-1] + 1)
        return State(sums, v.new_full((b, 1, 1), -math.inf) if scaled else None)

    def put(self, part: slice, sums: Any) -> None:
        """Divide sums (batch, c, dv + 1) by their last column and keep them as rows."""
        rows, total = numerators(sums, self.floor)
        if self.totals is not None:
            self.totals[:, part] = total
        self.out[:, part] = rows.div_(total)

    def sums_grad(self, grad: Any, part: slice) -> Any:
        """Return the gradient (batch, c, dv + 1) of a chunk's numerators and denominators."""
        numerators_grad = grad[:, part] / self.totals[:, part]
        total_grad = (numerators_grad * self.out[:, part]).sum(-1, keepdim=True).mul_(-1.0)
        return join((numerators_grad, total_grad), -1)

    def top_before(self, part: slice, first: Any) -> Any:
        """Return the scale of the last row before a chunk; before the first chunk ``first``."""
        if self.tops is None or part.start == 0:
            return first
        return self.tops[:, part.start - 1 : part.start]


def causal_rows(s: KernelRows) -> tuple[Any, Any]:
    """Compute causal rows by the chunked scan. Backward needs no state: return None twice."""
    state = s.fresh_state(s.phi.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        sums, tops = causal_sums(s.q[:, part], s.k[:, part], s.v[:, part], s.phi, state)
        if s.tops is not None:
            s.tops[:, part] = tops
        s.put(part, sums)
        del sums, tops
    return None, None


def full_rows(s: KernelRows) -> tuple[Any, Any]:
    """Compute rows over all keys, in a pass over keys and one over queries; return the state."""
    state = s.fresh_state(s.phi.softmax)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        absorb(state, s.k[:, part], s.v[:, part], s.phi)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        s.put(part, read(state, s.q[:, part], s.phi))
    return state.sums, state.top


def put_key_grads(s: KernelRows, part: slice, grads: Pair, rows: Any, into: Pair) -> None:
    """Write a block's gradients of keys and values; a softmax key's scale adds to its gradient."""
    keys_grad, rows_grad = grads
    into[1][:, part] = rows_grad[..., :-1]
    if s.phi.softmax:
        k = s.k[:, part]
        scale_grad = rows.mul_(rows_grad).sum(-1, keepdim=True).mul_(1 / square_root(k.shape[-1]))
        keys_grad.sub_(k * scale_grad)
    into[0][:, part] = keys_grad


def causal_grads(s: KernelRows, grad: Any) -> tuple[Any, Any, Any]:
    """Return gradients (batch, n, ·): of q by a forward scan, of k and v by a reverse one."""
    q_grad = empty_like(s.q, in_rows=True)
    state = s.fresh_state(s.phi.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        q_grad[:, part] = _causal_query_chunk(s, grad, part, state)
    del state
    into = empty_like(s.k, in_rows=True), empty_like(s.v, in_rows=True)
    later = s.fresh_state(s.phi.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows, backwards=True):
        _causal_key_chunk(s, grad, part, later, into)
    return q_grad, *into


def _causal_query_chunk(s: KernelRows, grad: Any, part: slice, state: State) -> Any:
    keys, scale = keys_of(s.k[:, part], s.phi)
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
    features_grad.add_(sums_grad.bmm(state.sums_like(keys).transpose(1, 2)))
    push(state, keys, rows, scale, None if scale is None else tops[:, -1:])
    del keys, rows, sums_grad
    return s.phi.input_grad(features_grad, s.phi.slope(s.q[:, part]))


def _causal_key_chunk(s: KernelRows, grad: Any, part: slice, later: State, into: Pair) -> None:
    queries = s.phi.features(s.q[:, part])[0]
    keys, slope, top = s.phi.features_and_slope(s.k[:, part])
    scale = None if top is None else key_scale(s.k[:, part], top)
    rows = with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops: Any = None if s.tops is None else s.tops[:, part]
    before = s.top_before(part, later.top)
    sums = later.sums_like(rows)
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
    keys_grad = s.phi.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def full_grads(s: KernelRows, grad: Any, state: State) -> tuple[Any, Any, Any]:
    """Return gradients of queries, keys and values: one pass over queries, one over keys."""
    q_grad, k_grad, v_grad = (empty_like(x, in_rows=True) for x in (s.q, s.k, s.v))
    grads = s.fresh_state(False)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        q_grad[:, part] = _full_query_block(s, grad, part, state, grads)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        _full_key_block(s, part, state, grads, (k_grad, v_grad))
    return q_grad, k_grad, v_grad


def _full_query_block(s: KernelRows, grad: Any, part: slice, state: State, grads: State) -> Any:
    queries, slope = s.phi.features_and_slope(s.q[:, part])[:2]
    sums_grad = s.sums_grad(grad, part)
    grads.add(queries, sums_grad)
    del queries
    features_grad = sums_grad.bmm(state.sums_like(sums_grad).transpose(1, 2))
    del sums_grad
    return s.phi.input_grad(features_grad, slope)


def _full_key_block(s: KernelRows, part: slice, state: State, grads: State, into: Pair) -> None:
    keys, slope, top = s.phi.features_and_slope(s.k[:, part])
    rows = with_ones(s.v[:, part])
    sums = grads.sums_like(rows)
    rows_grad = keys.bmm(sums)
    del keys
    scaled_rows = rows
    if top is not None:
        share = (key_scale(s.k[:, part], top) - state.top).exp_()
        rows_grad.mul_(share)
        scaled_rows = rows * share
    features_grad = scaled_rows.bmm(sums.transpose(1, 2))
    del scaled_rows, sums
    keys_grad = s.phi.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def _forward(
    q: Any, k: Any, v: Any, projection: Any, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, floor: float = 0.0, keep: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    phi, (b, n, _) = FeatureMap(projection, softmax, q.shape[0]), q.shape
    out = v.new_empty(b, n, v.shape[-1])
    totals = v.new_empty(b, n, 1) if keep else None
    scales = keep and softmax and causal
    s = KernelRows(q, k, v, out, totals, v.new_empty(b, n, 1) if scales else None, phi, rows, floor)
    state = causal_rows(s) if causal else full_rows(s)
    return out, (q, k, v, projection, out, totals, s.tops, *state)


def _grads(
    saved: tuple[Any, ...], grad: Any, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    q, k, v, projection, out, totals, tops, sums, top = saved
    phi = FeatureMap(projection, softmax, q.shape[0])
    s = KernelRows(q, k, v, out, totals, tops, phi, rows)
    grads = causal_grads(s, grad) if causal else full_grads(s, grad, State(sums, top))
    return *grads, None


#: Rows (batch, n, dv) of kernel attention; q (batch, n, d), k (batch, m, d), v (batch, m, dv).
#:
#: The fourth operand, a projection (d, features) or None, and ``softmax`` choose the features
#: (:class:`FeatureMap`), ``rows`` the tokens of a block, ``floor`` is added to each denominator.
#: Live memory beyond inputs and output is that of one block and one state.
kernel_attention = Function(_forward, _grads)
