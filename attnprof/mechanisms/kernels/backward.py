"""The backward pass of kernel attention as stages: features recomputed, two passes over tokens."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.costs import Cost
from attnprof.counting.engine import Tensor
from attnprof.mechanisms.kernels.forward import Result
from attnprof.mechanisms.kernels.stages import ADD, OVER, TIMES, State, Writer


@dataclass
class Saved:
    """What a forward pass left, and the gradient of its rows."""

    q: Tensor
    k: Tensor
    v: Tensor
    result: Result
    grad: Tensor


def sums_grad(wr: Writer, s: Saved, c: int) -> Tensor:
    """(batch, c, dv + 1): gradient of a row's sums from that of the row."""
    tape, out = wr.tape, s.result.out
    totals = s.result.totals or out
    grad, rows = wr.rows_of(s.grad, c), wr.rows_of(out, c)
    share = wr.new("grad of sums", grad.shape, OVER, grad, wr.rows_of(totals, c))
    against = wr.new("grad of totals: products", grad.shape, TIMES, share, rows)
    total = tape.sum("grad of totals", against, (*grad.shape[:2], 1))
    tape.free(against)
    total = wr.over("grad of totals: sign", total, TIMES)
    both = tape.emit(
        "join grads", (*grad.shape[:2], grad.shape[2] + 1), Cost(), [share, total]
    )  # fmt: skip
    tape.free(share, total)
    return both


def tops_of(wr: Writer, s: Saved, c: int) -> Tensor | None:
    """Scales of a chunk's rows."""
    return None if s.result.tops is None else wr.rows_of(s.result.tops, c)


def one_of(tops: Tensor | None) -> Tensor | None:
    """The scale of one row of a chunk."""
    return None if tops is None else Tensor((tops.shape[0], 1, 1), tops.storage, tops.item_size)


def causal_grads(wr: Writer, s: Saved) -> list[Tensor]:
    """A forward rescan for queries, a reverse scan for keys and values."""
    n = s.q.shape[1]
    dq = wr.empty("grad queries", *s.q.shape)
    state = wr.new_state(scaled=wr.softmax)
    for c in wr.blocks(n):
        _query_chunk(wr, s, c, state, dq)
    wr.free_state(state)
    dk, dv = wr.empty("grad keys", *s.k.shape), wr.empty("grad values", *s.v.shape)
    later = wr.new_state(scaled=wr.softmax)
    for c in wr.blocks(n):
        _key_chunk(wr, s, c, later, (dk, dv))
    wr.free_state(later)
    return [dq, dk, dv]


def _query_chunk(wr: Writer, s: Saved, c: int, state: State, dq: Tensor) -> None:
    tape, tops = wr.tape, tops_of(wr, s, c)
    keys, scale = wr.keys_of(wr.rows_of(s.k, c))
    rows = wr.with_ones(wr.rows_of(s.v, c))
    grad = sums_grad(wr, s, c)
    factors = None if scale is None or tops is None else wr.decay(scale, tops)
    weights = tape.bmm("grad of weights", grad, rows, tb=True)
    weights = wr.masked(weights, factors)
    if factors is not None:
        tape.free(factors)
    features = tape.bmm("grad of queries: this chunk", weights, keys)
    tape.free(weights)
    if tops is not None and state.top is not None:
        share = wr.factor("shares of earlier chunks", tops.shape, state.top, tops)
        grad = wr.over("scale grads", grad, TIMES, share)
        tape.free(share)
    before = wr.like(state)
    earlier = tape.bmm("grad of queries: earlier chunks", grad, before, tb=True)
    tape.free(before)
    features = wr.over("sum of both", features, ADD, earlier)
    tape.free(earlier)
    wr.push(state, keys, rows, scale, one_of(tops))
    tape.free(keys, rows, grad)
    slope = wr.slope(wr.rows_of(s.q, c), "query")
    grad = wr.input_grad(features, slope)
    tape.free(slope, *([] if scale is None else [scale]))
    wr.put("grad of query rows", dq, grad)
    tape.free(grad)


def _key_chunk(wr: Writer, s: Saved, c: int, later: State, into: tuple[Tensor, Tensor]) -> None:
    tape, tops = wr.tape, tops_of(wr, s, c)
    queries, top = wr.values(wr.rows_of(s.q, c), "query")
    if top is not None:
        tape.free(top)
    keys, slope, top = wr.values_and_slope(wr.rows_of(s.k, c), "key")
    scale = None if top is None else wr.key_scale(wr.rows_of(s.k, c), top)
    rows = wr.with_ones(wr.rows_of(s.v, c))
    grad = sums_grad(wr, s, c)
    sums = wr.like(later)
    rows_grad = tape.bmm("grad of values: later chunks", keys, sums)
    factors, share, held = None, None, rows
    last = one_of(tops)
    if scale is not None and tops is not None and last is not None:
        factors = wr.decay(scale, tops)
        share = wr.factor("key shares", scale.shape, scale, last)
        rows_grad = wr.over("scale grads", rows_grad, TIMES, share)
        held = wr.new("scale values", rows.shape, TIMES, rows, share)
    weights = wr.masked(tape.bmm("weights", queries, keys, tb=True), factors)
    tape.free(keys)
    inside = tape.bmm("grad of values: this chunk", weights, grad, ta=True)
    rows_grad = wr.over("sum of both", rows_grad, ADD, inside)
    tape.free(inside, weights)
    weights = wr.masked(tape.bmm("grad of weights", grad, rows, tb=True), factors)
    if factors is not None:
        tape.free(factors)
    features = tape.bmm("grad of keys: this chunk", weights, queries, ta=True)
    tape.free(weights)
    beyond = tape.bmm("grad of keys: later chunks", held, sums, tb=True)
    features = wr.over("sum of both", features, ADD, beyond)
    tape.free(beyond, sums, *([] if share is None else [held]))
    if tops is not None and last is not None:
        factor = wr.factor("shares of earlier chunks", tops.shape, last, tops)
        grad = wr.over("scale grads", grad, TIMES, factor)
        tape.free(factor)
        shrink = wr.factor("shrink state", last.shape, last, last)
        wr.over("rescale state", later.sums, TIMES, shrink)
        tape.free(shrink)
    wr.accumulate(later, queries, grad)
    tape.free(queries, grad)
    grad = wr.input_grad(features, slope)
    tape.free(slope)
    _put_key_grads(wr, s, c, (grad, rows_grad), rows, into)
    tape.free(grad, rows, rows_grad, *(t for t in (scale, share) if t is not None))


def _put_key_grads(
    wr: Writer, s: Saved, c: int, grads: tuple[Tensor, Tensor], rows: Tensor,
    into: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    tape = wr.tape
    grad, rows_grad = grads
    shape = (*rows.shape[:2], rows.shape[2] - 1)
    values = Tensor(shape, rows_grad.storage, rows_grad.item_size)
    wr.put("grad of value rows", into[1], values)
    if wr.softmax:
        k = wr.rows_of(s.k, c)
        wr.over("grad of key scale: products", rows, TIMES, rows_grad)
        total = tape.sum("grad of key scale", rows, (*k.shape[:2], 1))
        total = wr.over("grad of key scale: halve", total, TIMES)
        pull = wr.new("grad of key norms", k.shape, TIMES, k, total)
        wr.over("sum of both", grad, ADD, pull)
        tape.free(pull, total)
    wr.put("grad of key rows", into[0], grad)


def full_grads(wr: Writer, s: Saved) -> list[Tensor]:
    """One pass over queries, one over keys."""
    dq, dk, dv = (
        wr.empty(f"grad {name}", *x.shape)
        for name, x in (("queries", s.q), ("keys", s.k), ("values", s.v))
    )
    seen = wr.new_state(scaled=False)
    state = s.result.state or seen
    for c in wr.blocks(s.q.shape[1]):
        _query_block(wr, s, c, (state, seen), dq)
    for c in wr.blocks(s.k.shape[1]):
        _key_block(wr, s, c, (state, seen), (dk, dv))
    wr.free_state(seen)
    return [dq, dk, dv]


def _query_block(wr: Writer, s: Saved, c: int, states: tuple[State, State], dq: Tensor) -> None:
    tape, (state, seen) = wr.tape, states
    queries, slope, top = wr.values_and_slope(wr.rows_of(s.q, c), "query")
    if top is not None:
        tape.free(top)
    grad = sums_grad(wr, s, c)
    wr.accumulate(seen, queries, grad)
    tape.free(queries)
    sums = wr.like(state)
    features = tape.bmm("grad of queries", grad, sums, tb=True)
    tape.free(sums, grad)
    grad = wr.input_grad(features, slope)
    tape.free(slope)
    wr.put("grad of query rows", dq, grad)
    tape.free(grad)


def _key_block(
    wr: Writer, s: Saved, c: int, states: tuple[State, State], into: tuple[Tensor, Tensor]
) -> None:
    tape, (state, seen) = wr.tape, states
    keys, slope, top = wr.values_and_slope(wr.rows_of(s.k, c), "key")
    rows = wr.with_ones(wr.rows_of(s.v, c))
    sums = wr.like(seen)
    rows_grad = tape.bmm("grad of values", keys, sums)
    tape.free(keys)
    share, held = None, rows
    if top is not None and state.top is not None:
        scale = wr.key_scale(wr.rows_of(s.k, c), top)
        share = wr.factor("key shares", scale.shape, scale, state.top)
        rows_grad = wr.over("scale grads", rows_grad, TIMES, share)
        held = wr.new("scale values", rows.shape, TIMES, rows, share)
    features = tape.bmm("grad of keys", held, sums, tb=True)
    tape.free(sums, *([] if share is None else [held]))
    grad = wr.input_grad(features, slope)
    tape.free(slope)
    _put_key_grads(wr, s, c, (grad, rows_grad), rows, into)
    tape.free(grad, rows, rows_grad, *(t for t in (share, top) if t is not None))
