"""What the backward pass of the factored form executes (``blocks/pair_network.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from attnprof.costs import Cost, Number
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape, product_cost
from attnprof.mechanisms.neural.chunk import (
    Chunk,
    Net,
    causal_mask,
    scaled_output,
    scores_of,
    terms,
)


def write_backward(
    tape: Tape,
    net: Net,
    saved: tuple[Tensor, ...],
    todo: Sequence[Chunk],
    mask_rows: Number | None,
) -> Gradients:
    """Every chunk's scores again, then gradients of q, k, v and of the scorer's weights."""
    q, k, v, out, grad = saved
    product = tape.mul("grad times output", grad, out)
    delta = tape.sum("row sums of grad times output", product, (*v.shape[:2], 1))
    tape.free(product)
    hidden = terms(tape, net, q, k)
    last = scaled_output(tape, net)
    masks = [] if mask_rows is None else [causal_mask(tape, mask_rows)]
    sums = [
        tape.empty("grad of queries' term", *hidden[0].shape),
        *(
            tape.emit(name, shape, Cost())
            for name, shape in (
                ("grad of keys' term", hidden[1].shape),
                ("grad values", v.shape),
                ("grad of output weight", last.shape),
            )
        ),
    ]
    deeper = _deeper(tape, net, last)
    for group in todo:
        with tape.repeat(group.times):
            _chunk(tape, net, group, v.shape[2])
    tape.free(delta, *hidden, *masks)
    to_deeper = _finish(tape, sums, deeper, last)
    to_last = tape.pointwise(
        "grad of output weight, scaled", [sums[3]], Cost(divisions=1), inplace=True
    )
    to_q, to_k, to_weight, to_bias = _terms(tape, net, sums, (q, k))
    to_last_bias = tape.emit("grad of output bias", (1,), Cost())
    tape.free(last, sums[0], sums[1])
    hidden_weight, hidden_bias = net.layers["hidden layer"]
    return [
        (q, to_q), (k, to_k), (v, sums[2]), (hidden_weight, to_weight), (hidden_bias, to_bias),
        (net.output[0], to_last), (net.output[1], to_last_bias),
        *(zip(net.second, to_deeper, strict=True) if net.second else ()),
    ]  # fmt: skip


def _deeper(tape: Tape, net: Net, last: Tensor) -> list[Tensor]:
    """Gradients of the second layer, and its weight times the output's."""
    if not net.second:
        return []
    weight, bias = net.second
    found = [tape.emit("grad of second layer", t.shape, Cost()) for t in (weight, bias)]
    scaled = tape.pointwise("second weight, scaled", [weight, last], Cost(multiplications=1))
    return [*found, scaled]


def _finish(tape: Tape, sums: list[Tensor], deeper: list[Tensor], last: Tensor) -> list[Tensor]:
    factor = Cost(multiplications=1)
    if deeper:
        tape.free(deeper.pop())
    for tensor in deeper or sums[:2]:
        tape.pointwise("output weight multiplied in", [tensor, last], factor, inplace=True)
    return deeper


def _chunk(tape: Tape, net: Net, group: Chunk, width: Number) -> None:
    name = group.name
    scores, *layers = scores_of(tape, net, group, keep=True)
    top = layers[-1]
    column = tape.constant(group.heads, group.rows, 1)
    shifted, factor = Cost(additions=1), Cost(multiplications=1)
    weights = tape.pointwise(f"shift, {name}", [scores, column], shifted, inplace=True)
    weights = tape.pointwise(f"exponentials, {name}", [weights], Cost(exponentials=1), inplace=True)
    above = tape.constant(group.heads, group.rows, width)
    values = tape.constant(group.heads, group.seen, width)
    _add(tape, f"grad values, {name}", tape.bmm(f"grad values, {name}", weights, above, ta=True))
    inner = tape.bmm(f"grad weights, {name}", above, values, tb=True)
    inner = tape.pointwise(f"centre, {name}", [inner, column], shifted, inplace=True)
    inner = tape.pointwise(f"grad scores, {name}", [inner, weights], factor, inplace=True)
    tape.free(weights)
    cost = product_cost(net.top, group.pairs, 1)
    to_last = tape.emit(f"grad of output weight, {name}", (net.top, 1), cost, [top, inner])
    _add(tape, f"grad of output weight, {name}", to_last)
    top = tape.pointwise(f"where active, {name}", [top], Cost(other=1), inplace=True)
    top = tape.pointwise(f"grad of activations, {name}", [top, inner], factor, inplace=True)
    tape.free(inner)
    if net.second:
        top = _second(tape, net, group, (layers[0], top))
    _spread(tape, net, group, top)


def _second(tape: Tape, net: Net, group: Chunk, layers: tuple[Tensor, Tensor]) -> Tensor:
    name, (first, top) = group.name, layers
    cost = Cost(additions=top.count, reduction_outputs=net.top)
    _add(
        tape,
        f"grad of second bias, {name}",
        tape.emit(f"grad of second bias, {name}", (net.top,), cost, [top]),
    )
    shape = (net.top, net.hidden)
    cost = product_cost(net.top, group.pairs, net.hidden)
    to_weight = tape.emit(f"grad of second weight, {name}", shape, cost, [top, first])
    _add(tape, f"grad of second weight, {name}", to_weight)
    cost = product_cost(group.pairs, net.top, net.hidden)
    reads = [top, tape.constant(*shape)]
    below = tape.emit(f"grad of hidden layer, {name}", first.shape, cost, reads)
    first = tape.pointwise(
        f"where the first is active, {name}", [first], Cost(other=1), inplace=True
    )
    factor = Cost(multiplications=1)
    below = tape.pointwise(f"grad of sum of terms, {name}", [below, first], factor, inplace=True)
    tape.free(first, top)
    return below


def _spread(tape: Tape, net: Net, group: Chunk, below: Tensor) -> None:
    """A pair's gradient goes to its row and to its key."""
    name = group.name
    shape = (group.heads, group.rows, net.hidden)
    rows = tape.sum(f"grad of queries' term, {name}", below, shape)
    tape.record(f"store queries' term, {name}", shape, Cost(bytes_moved=2 * rows.size))
    tape.free(rows)
    keys = tape.sum(f"grad of keys' term, {name}", below, (group.heads, group.seen, net.hidden))
    _add(tape, f"grad of keys' term, {name}", keys)
    tape.free(below)


def _terms(
    tape: Tape, net: Net, sums: list[Tensor], operands: tuple[Tensor, Tensor]
) -> list[Tensor]:
    batch, _, d = operands[0].shape
    width = net.hidden
    halves = []
    for name, grad, x in zip(("queries", "keys"), sums, operands, strict=False):
        each = tape.bmm(f"grad of hidden weight, {name}", grad, x, ta=True)
        halves.append(tape.sum(f"grad of hidden weight over heads, {name}", each, (width, d)))
        tape.free(each)
    to_weight = tape.emit("grad of hidden weight", (width, 2 * d), Cost(), halves)
    tape.free(*halves)
    to_bias = tape.sum("grad of hidden bias", sums[0], (width,))
    part = tape.constant(batch, width, d)
    names = zip(("queries", "keys"), sums, strict=False)
    found = [tape.bmm(f"grad of {name}", grad, part) for name, grad in names]
    return [*found, to_weight, to_bias]


def _add(tape: Tape, name: str, x: Tensor) -> None:
    tape.record(f"add {name}", x.shape, Cost(additions=x.count, bytes_moved=3 * x.size))
    tape.free(x)
