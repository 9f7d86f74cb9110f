"""Kernel attention with a backward pass that recomputes features instead of keeping them."""

from dataclasses import dataclass
from typing import Any

from attnprof.blocks import scan
from attnprof.ops.function import Function
from attnprof.ops.functional import empty_like, join, square_root
from attnprof.ops.loops import in_blocks


@dataclass
class KernelRows:
    """Inputs, output rows, their sums' divisors and scales (None where no one needs them)."""

    q: Any
    k: Any
    v: Any
    out: Any
    totals: Any
    tops: Any
    maps: scan.FeatureMap
    rows: int
    floor: float = 0.0

    def put(self, part: slice, sums: Any) -> None:
        """Divide sums (batch, c, dv + 1) by their last column and keep them as rows."""
        rows, total = scan.numerators(sums, self.floor)
        if self.totals is not None:
            self.totals[:, part] = total
        self.out[:, part] = rows.div_(total)

    def sums_grad(self, grad: Any, part: slice) -> Any:
        """(batch, c, dv + 1): gradient of a row's sums from that of the row."""
        share = grad[:, part] / self.totals[:, part]
        against = (share * self.out[:, part]).sum(-1, keepdim=True).mul_(-1.0)
        return join((share, against), -1)

    def tops_of(self, part: slice) -> Any:
        """Scales of a chunk's rows."""
        return None if self.tops is None else self.tops[:, part]

    def top_before(self, part: slice, first: Any) -> Any:
        """Scale of the last row before a chunk; ``first`` before the first row."""
        if self.tops is None or part.start == 0:
            return first
        return self.tops[:, part.start - 1 : part.start]


def causal_rows(s: KernelRows) -> tuple[Any, Any]:
    """All rows by the chunked scan, which leaves no state."""
    state = scan.empty_state(s.q, s.v, s.maps, s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        sums, tops = scan.causal_sums(s.q[:, part], s.k[:, part], s.v[:, part], s.maps, state)
        if s.tops is not None:
            s.tops[:, part] = tops
        s.put(part, sums)
        del sums, tops
    return None, None


def full_rows(s: KernelRows) -> tuple[Any, Any]:
    """All rows against all keys: one pass over keys, one over queries; the state's tensors."""
    state = scan.empty_state(s.q, s.v, s.maps, s.maps.softmax)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        scan.absorb(state, s.k[:, part], s.v[:, part], s.maps)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        s.put(part, scan.read(state, s.q[:, part], s.maps))
    return state.sums, state.top


def put_key_grads(
    s: KernelRows, part: slice, grads: tuple[Any, Any], rows: Any, into: tuple[Any, Any]
) -> None:
    """Keep a block's gradients of keys and of [V, 1] rows; a key's scale pulls on it too."""
    keys_grad, rows_grad = grads
    into[1][:, part] = rows_grad[..., :-1]
    if s.maps.softmax:
        k = s.k[:, part]
        scale_grad = rows.mul_(rows_grad).sum(-1, keepdim=True).mul_(1 / square_root(k.shape[-1]))
        keys_grad.sub_(k * scale_grad)
    into[0][:, part] = keys_grad


def causal_grads(s: KernelRows, grad: Any) -> tuple[Any, Any, Any]:
    """Gradients (batch, n, ·): a forward rescan for queries, a reverse scan for keys, values."""
    to_q = empty_like(s.q, in_rows=True)
    state = scan.empty_state(s.q, s.v, s.maps, s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        to_q[:, part] = _causal_query_chunk(s, grad, part, state)
    del state
    into = empty_like(s.k, in_rows=True), empty_like(s.v, in_rows=True)
    later = scan.empty_state(s.q, s.v, s.maps, s.maps.softmax)
    for part in in_blocks(s.q, s.q.shape[1], s.rows, backwards=True):
        _causal_key_chunk(s, grad, part, later, into)
    return to_q, *into


def _causal_query_chunk(s: KernelRows, grad: Any, part: slice, state: scan.State) -> Any:
    keys, scale = scan.keys_of(s.k[:, part], s.maps)
    rows = scan.with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops = s.tops_of(part)
    factors = None if scale is None else scan.decay(scale, tops)
    weights_grad = scan.masked(sums_grad.bmm(rows.transpose(1, 2)), factors)
    del factors
    features_grad = weights_grad.bmm(keys)
    del weights_grad
    if scale is not None:
        sums_grad.mul_((state.top - tops).exp_())
    features_grad.add_(sums_grad.bmm(state.like(keys).transpose(1, 2)))
    scan.push(state, keys, rows, scale, None if scale is None else tops[:, -1:])
    del keys, rows, sums_grad
    return s.maps.input_grad(features_grad, s.maps.slope(s.q[:, part]))


def _causal_key_chunk(
    s: KernelRows, grad: Any, part: slice, later: scan.State, into: tuple[Any, Any]
) -> None:
    queries = s.maps.values(s.q[:, part])[0]
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    scale = None if top is None else scan.key_scale(s.k[:, part], top)
    rows = scan.with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops, before = s.tops_of(part), s.top_before(part, later.top)
    sums = later.like(rows)
    rows_grad = keys.bmm(sums)
    factors, held = None, rows
    if scale is not None:
        factors = scan.decay(scale, tops)
        share = (scale - tops[:, -1:]).exp_()
        rows_grad.mul_(share)
        held = rows * share
    weights = scan.masked(queries.bmm(keys.transpose(1, 2)), factors)
    del keys
    rows_grad.add_(weights.transpose(1, 2).bmm(sums_grad))
    del weights
    weights_grad = scan.masked(sums_grad.bmm(rows.transpose(1, 2)), factors)
    del factors
    features_grad = weights_grad.transpose(1, 2).bmm(queries)
    del weights_grad
    features_grad.add_(held.bmm(sums.transpose(1, 2)))
    del held, sums
    if scale is not None:
        sums_grad.mul_((before - tops).exp_())
        later.sums.mul_((before - tops[:, -1:]).exp_())
    later.add(queries, sums_grad)
    del queries, sums_grad
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def full_grads(s: KernelRows, grad: Any, state: scan.State) -> tuple[Any, Any, Any]:
    """Gradients of queries, keys and values: one pass over queries, one over keys."""
    to_q, to_k, to_v = (empty_like(x, in_rows=True) for x in (s.q, s.k, s.v))
    seen = scan.empty_state(s.q, s.v, s.maps, False)
    for part in in_blocks(s.q, s.q.shape[1], s.rows):
        to_q[:, part] = _full_query_block(s, grad, part, state, seen)
    for part in in_blocks(s.q, s.k.shape[1], s.rows):
        _full_key_block(s, part, state, seen, (to_k, to_v))
    return to_q, to_k, to_v


def _full_query_block(
    s: KernelRows, grad: Any, part: slice, state: scan.State, seen: scan.State
) -> Any:
    queries, slope = s.maps.values_and_slope(s.q[:, part])[:2]
    sums_grad = s.sums_grad(grad, part)
    seen.add(queries, sums_grad)
    del queries
    features_grad = sums_grad.bmm(state.like(sums_grad).transpose(1, 2))
    del sums_grad
    return s.maps.input_grad(features_grad, slope)


def _full_key_block(
    s: KernelRows, part: slice, state: scan.State, seen: scan.State, into: tuple[Any, Any]
) -> None:
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    rows = scan.with_ones(s.v[:, part])
    sums = seen.like(rows)
    rows_grad = keys.bmm(sums)
    del keys
    held = rows
    if top is not None:
        share = (scan.key_scale(s.k[:, part], top) - state.top).exp_()
        rows_grad.mul_(share)
        held = rows * share
    features_grad = held.bmm(sums.transpose(1, 2))
    del held, sums
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def _forward(
    q: Any, k: Any, v: Any, projection: Any, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, floor: float = 0.0, keep: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    maps, (b, n, _) = scan.FeatureMap(projection, softmax, q.shape[0]), q.shape
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
    maps = scan.FeatureMap(projection, softmax, q.shape[0])
    s = KernelRows(q, k, v, out, totals, tops, maps, rows)
    grads = causal_grads(s, grad) if causal else full_grads(s, grad, scan.State(sums, top))
    return *grads, None


#: Rows (batch, n, dv) of kernel attention; q (batch, n, d), k (batch, m, d), v (batch, m, dv).
#:
#: The fourth operand, a projection (d, features) or None, and ``softmax`` choose the features
#: (:class:`FeatureMap`), ``rows`` the tokens of a block, ``floor`` is added to each denominator.
#: Live memory beyond inputs and output is that of one block and one state.
kernel_attention = Function(_forward, _grads)
