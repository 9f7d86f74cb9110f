"""The forward pass of kernel attention as stages: causal chunks, or keys first, then queries."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.costs import Cost
from attnprof.counting.engine import Tensor
from attnprof.mechanisms.kernels.stages import ADD, COMPARE, OVER, TIMES, State, Writer


@dataclass
class Result:
    """Output rows, and what a backward pass needs beside them."""

    out: Tensor
    totals: Tensor | None
    tops: Tensor | None
    state: State | None = None

    @property
    def kept(self) -> list[Tensor]:
        """What only a backward pass holds."""
        state = [] if self.state is None else [self.state.sums, self.state.top]
        return [t for t in (self.totals, self.tops, *state) if t is not None]


def empty_result(wr: Writer, q: Tensor, keep: bool, scaled: bool) -> Result:
    """Room for rows, totals and scales."""
    batch, n, _ = q.shape
    out = wr.empty("output", batch, n, wr.sizes.value_width)
    totals = wr.empty("totals", batch, n, 1) if keep else None
    return Result(out, totals, wr.empty("scales", batch, n, 1) if keep and scaled else None)


def put_rows(wr: Writer, result: Result, sums: Tensor) -> None:
    """Divide sums by their last column."""
    total = Tensor((*sums.shape[:2], 1), sums.storage, sums.item_size)
    numerators = Tensor((*sums.shape[:2], sums.shape[2] - 1), sums.storage, sums.item_size)
    if wr.floor:
        wr.over("floor", total, ADD)
    if result.totals is not None:
        wr.put("keep totals", result.totals, total)
    wr.over("normalisation", numerators, OVER, total)
    wr.put("output rows", result.out, numerators)


def running_tops(wr: Writer, scale: Tensor, top: Tensor) -> Tensor:
    """Largest scale up to each row: a running maximum, its positions dropped at once."""
    tape = wr.tape
    positions = 8 * scale.count if tape.item_size > 1 else scale.count
    moved = Cost(other=scale.count, bytes_moved=positions)
    largest = tape.emit("running scale", scale.shape, moved, [scale], workspace=positions)
    tops = wr.new("larger scale", scale.shape, COMPARE, largest, top)
    tape.free(largest)
    return tops


def causal_sums(wr: Writer, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, ...]:
    """Sums of a chunk's rows, and their scales where keys have one."""
    tape = wr.tape
    queries, top = wr.values(q, "query")
    if top is not None:
        tape.free(top)
    keys, scale = wr.keys_of(k)
    rows = wr.with_ones(v)
    weights = tape.bmm("weights", queries, keys, tb=True)
    before = wr.like(state)
    sums = tape.bmm("earlier chunks", queries, before)
    tape.free(before, queries)
    tops = factors = last = None
    if scale is not None and state.top is not None:
        tops = running_tops(wr, scale, state.top)
        last = Tensor(state.top.shape, tops.storage, tops.item_size)
        factors = wr.decay(scale, tops)
        share = wr.factor("shares of earlier chunks", scale.shape, state.top, tops)
        sums = wr.over("scale earlier chunks", sums, TIMES, share)
        tape.free(share)
    weights = wr.masked(weights, factors)
    inside = tape.bmm("this chunk", weights, rows)
    sums = wr.over("sum of both", sums, ADD, inside)
    tape.free(inside, weights, *([] if factors is None else [factors]))
    wr.push(state, keys, rows, scale, last)
    tape.free(keys, rows, *([] if scale is None else [scale]))
    return (sums,) if tops is None else (sums, tops)


def causal_forward(wr: Writer, q: Tensor, k: Tensor, v: Tensor, keep: bool) -> Result:
    """All rows by the chunked scan."""
    result = empty_result(wr, q, keep, wr.softmax)
    state = wr.new_state(scaled=wr.softmax)
    for c in wr.blocks(q.shape[1]):
        chunk = causal_sums(wr, wr.rows_of(q, c), wr.rows_of(k, c), wr.rows_of(v, c), state)
        if result.tops is not None:
            wr.put("keep scales", result.tops, chunk[1])
        put_rows(wr, result, chunk[0])
        wr.tape.free(*chunk)
    wr.free_state(state)
    return result


def full_forward(wr: Writer, q: Tensor, k: Tensor, v: Tensor, keep: bool) -> Result:
    """One pass over keys, one over queries."""
    result = empty_result(wr, q, keep, scaled=False)
    state = wr.new_state(scaled=wr.softmax)
    for c in wr.blocks(k.shape[1]):
        wr.absorb(state, wr.rows_of(k, c), wr.rows_of(v, c))
    for c in wr.blocks(q.shape[1]):
        queries, top = wr.values(wr.rows_of(q, c), "query")
        if top is not None:
            wr.tape.free(top)
        seen = wr.like(state)
        sums = wr.tape.bmm("sums", queries, seen)
        wr.tape.free(seen)
        put_rows(wr, result, sums)
        wr.tape.free(sums, queries)
    result.state = state
    if not keep:
        wr.free_state(state)
    return result


def step(wr: Writer, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
    """One new token: into the state, then its row."""
    wr.absorb(state, k, v)
    queries, top = wr.values(q, "query")
    seen = wr.like(state)
    sums = wr.tape.bmm("sums", queries, seen)
    wr.tape.free(seen)
    total = Tensor((*sums.shape[:2], 1), sums.storage, sums.item_size)
    numerators = Tensor((*sums.shape[:2], sums.shape[2] - 1), sums.storage, sums.item_size)
    if wr.floor:
        wr.over("floor", total, ADD)
    out = wr.new("normalisation", numerators.shape, OVER, numerators, total)
    wr.tape.free(sums, queries, *([] if top is None else [top]))
    return out
