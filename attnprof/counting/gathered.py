"""Costs of softmax attention over gathered blocks (``blocks/gathered.py``), stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.costs import Cost, Number
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape


@dataclass(frozen=True)
class Blocks:
    """``times`` blocks of ``rows`` rows over ``keys`` keys, gathered from ``pieces`` slices.

    The mask leaves out the first ``open_keys`` keys, which all rows see. ``merges``: the rows'
    earlier softmax is joined with this one.
    """

    name: str
    times: Number
    rows: Number
    keys: Number
    pieces: int = 1
    masked: bool = True
    open_keys: Number = 0
    merges: bool = False


def write_gathered(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: Sequence[Blocks],
    masks: Sequence[Tensor] = (),
) -> Tensor:
    """Attention of q (b, n, d) over k, v (b, m, d), block by block; backward recomputes scores.

    ``masks`` die with the call, or with the graph where autograd needs the blocks again.
    """
    out = tape.empty("output", *q.shape[:2], v.shape[2])
    lse = tape.empty("log-sum-exp", *q.shape[:2], 1)
    for group in groups:
        with tape.repeat(group.times):
            _forward(tape, q, k, v, group)
    if not tape.grad:
        tape.free(lse, *masks)
        return out

    def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        return _backward(tape, (q, k, v, out), grad, groups)

    if any(t.requires_grad for t in (q, k, v)):
        tape.attach(out, "gathered attention", backward, (q, k, v, out, lse))
    tape.free(lse)
    return out


def _part(tape: Tape, x: Tensor, rows: Number) -> Tensor:
    """A slice of rows, as a view: no memory of its own."""
    return tape.constant(x.shape[0], rows, x.shape[2], item_size=x.item_size)


def _gathered(tape: Tape, name: str, x: Tensor, group: Blocks) -> Tensor:
    part = _part(tape, x, group.keys)
    if group.pieces == 1:
        return part
    return tape.emit(f"{name}, {group.name}", part.shape, Cost(), [part])


def _scores(tape: Tape, q: Tensor, k: Tensor, group: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    part = _part(tape, q, group.rows)
    rows = tape.scale(f"scaled rows, {group.name}", part, divide=True)
    keys = _gathered(tape, "gathered keys", k, group)
    scores = tape.bmm(f"scores, {group.name}", rows, keys, tb=True)
    if group.masked:
        columns = group.keys - group.open_keys
        part = scores.shape[0] * group.rows * columns * scores.item_size
        moved = 2 * part + group.rows * columns  # the mask takes a byte an entry
        tape.record(f"masking, {group.name}", scores.shape, Cost(bytes_moved=moved))
    return rows, keys, scores


def _forward(tape: Tape, q: Tensor, k: Tensor, v: Tensor, group: Blocks) -> None:
    rows, keys, scores = _scores(tape, q, k, group)
    tape.free(rows, keys)
    name, count = group.name, scores.count
    column = (scores.shape[0], group.rows, 1)
    highest = tape.emit(f"row maximum, {name}", column, Cost(other=count), [scores])
    shifted = Cost(additions=1)
    scores = tape.pointwise(f"shift, {name}", [scores, highest], shifted, inplace=True)
    scores = tape.pointwise(f"exponentials, {name}", [scores], Cost(exponentials=1), inplace=True)
    total = tape.sum(f"row sums, {name}", scores, column)
    values = _gathered(tape, "gathered values", v, group)
    mixed = tape.bmm(f"weighted values, {name}", scores, values)
    tape.free(values)
    mixed = tape.pointwise(
        f"normalisation, {name}", [mixed, total], Cost(divisions=1), inplace=True
    )
    total = tape.pointwise(f"logarithm, {name}", [total], Cost(other=1), inplace=True)
    total = tape.pointwise(f"log-sum-exp, {name}", [total, highest], shifted, inplace=True)
    if group.merges:
        _merge(tape, name, mixed, total)
    else:
        _store(tape, f"store rows, {name}", mixed)
        _store(tape, f"store log-sum-exp, {name}", total)
    tape.free(mixed, scores, highest, total)


def _merge(tape: Tape, name: str, mixed: Tensor, total: Tensor) -> None:
    lse = tape.constant(*total.shape)
    out = tape.constant(*mixed.shape)
    count = total.count
    highest = tape.emit(f"larger, {name}", total.shape, Cost(other=count), [lse, total])
    shift, exp, divide = Cost(additions=1), Cost(exponentials=1), Cost(divisions=1)
    parts = []
    for which, column in (("before", lse), ("here", total)):
        part = tape.pointwise(f"shift {which}, {name}", [column, highest], shift)
        parts.append(tape.pointwise(f"weight {which}, {name}", [part], exp, inplace=True))
    both = tape.pointwise(f"both, {name}", parts, shift)
    before, here = (
        tape.pointwise(f"share, {name}", [part, both], divide, inplace=True) for part in parts
    )
    scale = Cost(multiplications=1)
    tape.pointwise(f"weighted before, {name}", [out, before], scale, inplace=True)
    tape.pointwise(f"weighted here, {name}", [mixed, here], scale, inplace=True)
    tape.pointwise(f"joined, {name}", [out, mixed], shift, inplace=True)
    both = tape.pointwise(f"logarithm of both, {name}", [both], Cost(other=1), inplace=True)
    both = tape.pointwise(f"joined log-sum-exp, {name}", [both, highest], shift, inplace=True)
    _store(tape, f"store log-sum-exp, {name}", both)
    tape.free(highest, before, here, both)


def _store(tape: Tape, name: str, x: Tensor) -> None:
    tape.record(name, x.shape, Cost(bytes_moved=2 * x.size))


def _backward(
    tape: Tape, saved: tuple[Tensor, ...], grad: Tensor, groups: Sequence[Blocks]
) -> list[tuple[Tensor, Tensor | None]]:
    q, k, v, out = saved
    product = tape.mul("grad times output", grad, out)
    delta = tape.sum("row sums of grad times output", product, (*q.shape[:2], 1))
    tape.free(product)
    dq = tape.empty("grad queries", *q.shape)
    dk, dv = (
        tape.emit(f"grad {name}", x.shape, Cost()) for name, x in (("keys", k), ("values", v))
    )
    for group in groups:
        with tape.repeat(group.times):
            _block_backward(tape, saved, group)
    tape.free(delta)
    return [(q, dq), (k, dk), (v, dv)]


def _block_backward(tape: Tape, saved: tuple[Tensor, ...], group: Blocks) -> None:
    q, k, v, out = saved
    name = group.name
    rows, keys, weights = _scores(tape, q, k, group)
    column = tape.constant(weights.shape[0], group.rows, 1)
    shifted = Cost(additions=1)
    weights = tape.pointwise(f"shift, {name}", [weights, column], shifted, inplace=True)
    weights = tape.pointwise(f"exponentials, {name}", [weights], Cost(exponentials=1), inplace=True)
    above = _part(tape, out, group.rows)
    _add_into(
        tape, f"grad values, {name}", tape.bmm(f"grad values, {name}", weights, above, ta=True)
    )
    values = _gathered(tape, "gathered values", v, group)
    inner = tape.bmm(f"grad weights, {name}", above, values, tb=True)
    tape.free(values)
    inner = tape.pointwise(f"centre, {name}", [inner, column], shifted, inplace=True)
    inner = tape.pointwise(
        f"grad scores, {name}", [inner, weights], Cost(multiplications=1), inplace=True
    )
    tape.free(weights)
    to_q = tape.bmm(f"grad rows, {name}", inner, keys)
    to_q = tape.pointwise(f"grad rows scaled, {name}", [to_q], Cost(divisions=1), inplace=True)
    if group.merges:
        _add_into(tape, f"grad rows, {name}", to_q)
    else:
        _store(tape, f"store grad rows, {name}", to_q)
        tape.free(to_q)
    _add_into(tape, f"grad keys, {name}", tape.bmm(f"grad keys, {name}", inner, rows, ta=True))
    tape.free(inner, keys, rows)


def _add_into(tape: Tape, name: str, x: Tensor) -> None:
    tape.record(f"add {name}", x.shape, Cost(additions=x.count, bytes_moved=3 * x.size))
    tape.free(x)
