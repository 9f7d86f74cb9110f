"""Costs of softmax attention over gathered blocks (``blocks/gathered.py``), stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.costs import Cost, Number
from attnprof.counting.engine import Tensor, product
from attnprof.counting.tape import SOFTMAX, Tape, product_cost


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
    merges: bool = False,
) -> Tensor:
    """Attention of q (b, n, d) over k, v (b, m, d), block by block; backward recomputes scores.

    ``masks`` die with the call, or with the graph where autograd needs the blocks again.
    ``merges``: blocks may join softmaxes of earlier ones, so their log-sum-exps are kept.
    """
    out = tape.empty("output", *q.shape[:2], v.shape[2])
    lse = [tape.empty("log-sum-exp", *q.shape[:2], 1)] if merges else []
    for group in groups:
        with tape.repeat(group.times):
            _forward(tape, q, k, v, group, merges)
    if not tape.grad:
        tape.free(*lse, *masks)
        return out

    def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        return _backward(tape, (q, k, v, out), grad, groups, merges)

    if any(t.requires_grad for t in (q, k, v)):
        tape.attach(out, "gathered attention", backward, (q, k, v, out, *lse))
    tape.free(*lse)
    return out


def write_hidden(tape: Tape, mask: Tensor) -> Tensor:
    """A boolean mask as what is added to scores."""
    values = tape.emit("mask values", mask.shape, Cost())
    tape.record("mask values, hidden", mask.shape, Cost(bytes_moved=2 * values.size + mask.size))
    tape.free(mask)
    return values


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
    columns = group.keys - group.open_keys
    mask = tape.constant(group.rows, columns)
    if group.masked and group.pieces == 1:
        shape = (part.shape[0], group.rows, group.keys)
        cost = product_cost(group.rows, part.shape[2], group.keys, part.shape[0])
        cost = cost + Cost(additions=product(shape))
        scores = tape.emit(f"masked scores, {group.name}", shape, cost, [rows, keys, mask])
        return rows, keys, scores
    scores = tape.bmm(f"scores, {group.name}", rows, keys, tb=True)
    if group.masked:
        entries = scores.shape[0] * group.rows * columns
        moved = 2 * entries * scores.item_size + mask.size
        cost = Cost(additions=entries, bytes_moved=moved)
        tape.record(f"masking, {group.name}", scores.shape, cost)
    return rows, keys, scores


def _softmax(tape: Tape, scores: Tensor, group: Blocks) -> Tensor:
    return tape.pointwise(f"softmax, {group.name}", [scores], SOFTMAX, inplace=True)


def _forward(tape: Tape, q: Tensor, k: Tensor, v: Tensor, group: Blocks, merges: bool) -> None:
    rows, keys, scores = _scores(tape, q, k, group)
    tape.free(rows, keys)
    name, lse = group.name, []
    column = (scores.shape[0], group.rows, 1)
    compared = Cost(other=scores.count)
    if merges:
        lse = [tape.emit(f"row maximum, {name}", column, compared, [scores])]
    scores = _softmax(tape, scores, group)
    if merges:
        top = tape.emit(f"largest weight, {name}", column, compared, [scores])
        top = tape.pointwise(f"logarithm, {name}", [top], Cost(other=1), inplace=True)
        added = Cost(additions=1)
        lse = [tape.pointwise(f"log-sum-exp, {name}", [lse[0], top], added, inplace=True)]
        tape.free(top)
    values = _gathered(tape, "gathered values", v, group)
    mixed = tape.bmm(f"weighted values, {name}", scores, values)
    tape.free(values)
    if group.merges:
        _merge(tape, name, mixed, lse[0])
    else:
        _store(tape, f"store rows, {name}", mixed)
        for total in lse:
            _store(tape, f"store log-sum-exp, {name}", total)
    tape.free(mixed, scores, *lse)


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
    tape: Tape, saved: tuple[Tensor, ...], grad: Tensor, groups: Sequence[Blocks], merges: bool
) -> list[tuple[Tensor, Tensor | None]]:
    q, k, v, out = saved
    weighted = tape.mul("grad times output", grad, out)
    delta = tape.sum("row sums of grad times output", weighted, (*q.shape[:2], 1))
    tape.free(weighted)
    dq = tape.empty("grad queries", *q.shape)
    dk, dv = (
        tape.emit(f"grad {name}", x.shape, Cost()) for name, x in (("keys", k), ("values", v))
    )
    for group in groups:
        with tape.repeat(group.times):
            _block_backward(tape, saved, group, merges)
    dq = tape.pointwise("grad queries scaled", [dq], Cost(divisions=1), inplace=True)
    tape.free(delta)
    return [(q, dq), (k, dk), (v, dv)]


def _block_backward(tape: Tape, saved: tuple[Tensor, ...], group: Blocks, merges: bool) -> None:
    q, k, v, out = saved
    name = group.name
    rows, keys, weights = _scores(tape, q, k, group)
    column = tape.constant(weights.shape[0], group.rows, 1)
    added, exp = Cost(additions=1), Cost(exponentials=1)
    if merges:
        weights = tape.pointwise(f"shift, {name}", [weights, column], added, inplace=True)
        weights = tape.pointwise(f"exponentials, {name}", [weights], exp, inplace=True)
    else:
        weights = _softmax(tape, weights, group)
    above = _part(tape, out, group.rows)
    _add_product(tape, f"grad values, {name}", weights, above, group)
    values = _gathered(tape, "gathered values", v, group)
    inner = tape.bmm(f"grad weights, {name}", above, values, tb=True)
    tape.free(values)
    inner = tape.pointwise(f"centre, {name}", [inner, column], added, inplace=True)
    inner = tape.pointwise(
        f"grad scores, {name}", [inner, weights], Cost(multiplications=1), inplace=True
    )
    tape.free(weights)
    if group.merges:
        part = _part(tape, q, group.rows)
        cost = product_cost(group.rows, group.keys, part.shape[2], part.shape[0])
        moved = Cost(bytes_moved=2 * part.size + inner.size + keys.size)
        cost = cost + moved + Cost(additions=part.count)
        tape.record(f"add grad rows, {name}", part.shape, cost)
    else:
        to_q = tape.bmm(f"grad rows, {name}", inner, keys)
        _store(tape, f"store grad rows, {name}", to_q)
        tape.free(to_q)
    _add_product(tape, f"grad keys, {name}", inner, rows, group)
    tape.free(inner, keys, rows)


def _add_product(tape: Tape, name: str, weights: Tensor, rows: Tensor, group: Blocks) -> None:
    """Add weightsᵀ rows to where the keys came from, a piece at a time."""
    batch, _, width = rows.shape
    into = tape.constant(batch, group.keys, width)
    cost = product_cost(group.keys, group.rows, width, batch)
    moved = Cost(bytes_moved=2 * into.size + weights.size + group.pieces * rows.size)
    tape.record(f"add {name}", into.shape, cost + moved + Cost(additions=into.count))
