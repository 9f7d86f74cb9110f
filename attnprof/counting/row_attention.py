"""What ``blocks/row_attention.py`` executes: softmax attention a block of query rows at a time."""

from __future__ import annotations

from attnprof.costs import (
    Cost,
    Number,
    at_least_one,
    exact_div,
    floor_div,
    is_plain,
    maximum,
    minimum,
)
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import SOFTMAX, SOFTMAX_BACKWARD, Tape, product_cost

#: query rows of a block, all heads of one sample
ROWS = 256


def row_attention(
    tape: Tape, what: str, operands: tuple[Tensor, Tensor, Tensor], samples: Number
) -> Tensor:
    """softmax(q kᵀ) v, unscaled; q (b·h, n, d), k (b·h, m, d), v (b·h, m, dv).

    The weights are kept where autograd records, else one block of them lives at a time.
    """
    q, k, v = operands
    (batch, n, _), m = q.shape, k.shape[1]
    together = maximum(samples, exact_div(batch, samples))
    keep = tape.grad and any(tensor.requires_grad for tensor in operands)
    out = tape.empty(f"{what} output", batch, n, v.shape[2])
    kept = batch * n * m if keep else together * minimum(n, ROWS) * m
    held = tape.empty(f"{what} weights, held", kept)
    for times, rows in _blocks(n):
        with tape.repeat(times):
            _attend(tape, what, rows, (k, v), (held, out))

    def backward(grad: Tensor) -> Gradients:
        return _backward(tape, what, operands, (held, grad), together)

    if keep:
        tape.attach(out, what, backward, (*operands, held))
    tape.free(held)
    return out


def _blocks(n: Number) -> list[tuple[Number, Number]]:
    """How many blocks of how many rows: whole ones, and the last."""
    full = floor_div(n, ROWS)
    rest = n - full * ROWS
    found = [(full, ROWS), (at_least_one(rest), rest)]
    return [(times, rows) for times, rows in found if not (is_plain(times) and times == 0)]


def part(of: Tensor, *shape: Number) -> Tensor:
    """A piece of a tensor that is read or written in place."""
    return Tensor(shape, of.storage, of.item_size)


def _attend(
    tape: Tape,
    what: str,
    rows: Number,
    keys: tuple[Tensor, Tensor],
    into: tuple[Tensor, Tensor],
) -> None:
    """A block of every sample and head: how many of them one product takes costs nothing."""
    (batch, m, d), dv = keys[0].shape, keys[1].shape[2]
    k, v = (part(x, *x.shape) for x in keys)
    weights, out = part(into[0], batch, rows, m), part(into[1], batch, rows, dv)
    q = part(into[1], batch, rows, d)
    cost = product_cost(rows, d, m, batch)
    tape.emit(f"{what} scores", weights.shape, cost, [q, k], into=weights)
    cost = SOFTMAX * weights.count
    tape.emit(f"{what} softmax", weights.shape, cost, [weights], into=weights)
    cost = product_cost(rows, m, dv, batch)
    tape.emit(f"{what} values", out.shape, cost, [weights, v], into=out)


def _backward(
    tape: Tape,
    what: str,
    operands: tuple[Tensor, Tensor, Tensor],
    saved: tuple[Tensor, Tensor],
    together: Number,
) -> Gradients:
    q, k, v = operands
    n, m = q.shape[1], k.shape[1]
    to_q = tape.empty(f"{what}: grad queries, place", *q.shape)
    to_k = tape.emit(f"{what}: grad keys, zeros", k.shape, Cost())
    to_v = tape.emit(f"{what}: grad values, zeros", v.shape, Cost())
    buffer = tape.empty(f"{what}: grad scores, place", together * minimum(n, ROWS) * m)
    for times, rows in _blocks(n):
        with tape.repeat(times):
            _backward_block(tape, what, rows, (to_q, to_k, to_v), (*saved, buffer))
    tape.free(buffer)
    return [(q, to_q), (k, to_k), (v, to_v)]


def _backward_block(
    tape: Tape,
    what: str,
    rows: Number,
    grads: tuple[Tensor, Tensor, Tensor],
    held: tuple[Tensor, Tensor, Tensor],
) -> None:
    (batch, m, d), dv = grads[1].shape, grads[2].shape[2]
    to_q = part(grads[0], batch, rows, d)
    to_k, to_v = part(grads[1], batch, m, d), part(grads[2], batch, m, dv)
    weights, scores = (part(held[i], batch, rows, m) for i in (0, 2))
    grad = part(held[1], batch, rows, dv)
    cost = product_cost(m, rows, dv, batch) + Cost(additions=to_v.count)
    tape.emit(f"{what}: grad values", to_v.shape, cost, [to_v, weights, grad], into=to_v)
    cost = product_cost(rows, dv, m, batch)
    tape.emit(f"{what}: grad weights", scores.shape, cost, [grad, to_v], into=scores)
    cost = SOFTMAX_BACKWARD * scores.count
    tape.emit(f"{what}: grad scores", scores.shape, cost, [scores, weights], into=scores)
    cost = product_cost(rows, m, d, batch)
    tape.emit(f"{what}: grad queries", to_q.shape, cost, [scores, to_k], into=to_q)
    cost = product_cost(m, rows, d, batch) + Cost(additions=to_k.count)
    tape.emit(f"{what}: grad keys", to_k.shape, cost, [to_k, scores, to_q], into=to_k)
