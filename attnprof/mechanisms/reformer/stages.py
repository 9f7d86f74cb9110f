"""Costs of attention within buckets, forward, backward and a decoding step."""

from __future__ import annotations

from collections.abc import Callable

from attnprof.costs import Cost, Number, is_plain
from attnprof.counting.engine import Tensor
from attnprof.counting.hashed import ROWS
from attnprof.counting.tape import SOFTMAX, product_cost
from attnprof.mechanisms.reformer.writer import ADD, DIV, EXP, MUL, OTHER, Writer


def by_groups(writer: Writer, rounds: Number, write: Callable[[Writer, Number], None]) -> None:
    """The groups of blocks of a pass over so many rounds."""
    for times, blocks in writer.plan.groups(rounds):
        if not (is_plain(times) and times == 0):
            with writer.tape.repeat(times):
                write(writer, blocks)


def by_passes(writer: Writer, write: Callable[[Writer, Number], None]) -> None:
    """The passes over all rounds."""
    for times, rounds in writer.plan.passes(writer.rounds):
        if not (is_plain(times) and times == 0):
            with writer.tape.repeat(times):
                write(writer, rounds)


def write_sequence(writer: Writer) -> None:
    """One sequence of the forward pass, its hash first."""
    tape, n, d = writer.tape, writer.plan.seq_len, writer.head_dim
    writer.hash_into()
    at = writer.indexes()
    joined, norms = writer.joined(1)
    tape.free(norms)
    parts = writer.empty("rounds", writer.rounds, n, d)
    sums = writer.empty("rounds, log-sum-exp", writer.rounds, n, 1)
    by_passes(writer, write_pass)
    _join(writer, parts, sums)
    tape.free(joined, parts, sums, at.order, at.lower, at.upper)


def write_pass(writer: Writer, rounds: Number) -> None:
    """Rounds sorted, attended to, and put back in order."""
    tape, plan, n, d = writer.tape, writer.plan, writer.plan.seq_len, writer.head_dim
    places = plan.places(rounds)
    gathered = writer.chosen("sorted", (places, 3 * d), places)
    mixed = writer.empty("sorted outputs", rounds * plan.rows, d)
    logs = writer.empty("sorted log-sum-exp", rounds * plan.rows, 1)
    by_groups(writer, rounds, write_group)
    with tape.repeat(rounds):
        writer.placed("outputs in order", writer.part(n, d), n)
        writer.placed("log-sum-exp in order", writer.part(n, 1), n)
    tape.free(mixed, logs, gathered)


def write_group(writer: Writer, blocks: Number) -> None:
    """Rows' softmax over their window."""
    tape, w, d = writer.tape, writer.plan.window, writer.head_dim
    rows = blocks * ROWS
    scores = writer.scores(blocks)
    lse, mixed, values = writer.part(rows, 1), writer.part(rows, d), writer.part(blocks, w, d)
    compared = OTHER * scores.count
    writer.into("row maximum", lse, scores, cost=compared)
    writer.inplace("softmax", scores, each=SOFTMAX)
    top = writer.new("largest weight", lse.shape, scores, cost=compared)
    writer.inplace("logarithm", top, each=OTHER)
    writer.inplace("log-sum-exp", lse, top, each=ADD)
    tape.free(top)
    writer.into("weighted values", mixed, scores, values, cost=product_cost(rows, w, d))
    tape.free(scores)


def _join(writer: Writer, parts: Tensor, sums: Tensor) -> None:
    n, d = writer.plan.seq_len, writer.head_dim
    out, entries = writer.part(n, d), sums.count
    highest = total = writer.part(n, 1)
    writer.into("largest round", highest, sums, cost=OTHER * entries)
    writer.inplace("shift of rounds", sums, highest, each=ADD)
    writer.inplace("weights of rounds", sums, each=EXP)
    added = Cost(additions=entries, reduction_outputs=n)
    writer.into("sum of rounds' weights", total, sums, cost=added)
    writer.inplace("weighted rounds", parts, sums, each=MUL)
    added = Cost(additions=parts.count, reduction_outputs=out.count)
    writer.into("sum of rounds", out, parts, cost=added)
    writer.inplace("normalisation of rounds", out, total, each=DIV)


def write_sequence_backward(writer: Writer) -> None:
    """One sequence of the backward pass, sorted again."""
    tape, rounds = writer.tape, writer.rounds
    n, d = writer.plan.seq_len, writer.head_dim
    at = writer.indexes()
    joined, norms = writer.joined(2)
    column = writer.part(n, 1)
    stats = writer.new("norms and row sums", (n, 3), column, column, column)
    tokens = writer.new("tokens in order", (n,), size=8)
    inverse = writer.empty("inverse order", rounds, n, size=8)
    index = writer.part(rounds, n, size=8)
    writer.inplace("inverse order, store", inverse, index, index)
    tape.free(tokens)
    grads = writer.new("gradients", (n, 3 * d))
    by_passes(writer, write_pass_backward)
    _grad_of_queries(writer, norms)
    part = writer.part(n, d)
    writer.into("grad values", part, part)
    tape.free(grads, inverse, stats, norms, joined, at.order, at.lower, at.upper)


def write_pass_backward(writer: Writer, rounds: Number) -> None:
    """Rounds sorted again, and their gradients added up in the order of tokens."""
    tape, plan, n, d = writer.tape, writer.plan, writer.plan.seq_len, writer.head_dim
    places, rows = plan.places(rounds), rounds * plan.rows
    gathered = writer.chosen("sorted", (places, 4 * d), places)
    columns = writer.chosen("sorted columns", (rows, 3), rows)
    sums = writer.new("sorted gradients", (places, 3 * d))
    by_groups(writer, rounds, write_group_backward)
    with tape.repeat(rounds):
        back = writer.chosen("gradients in order", (n, 3 * d), n)
        writer.inplace("add gradients of the round", writer.part(n, 3 * d), back, each=ADD)
        tape.free(back)
    tape.free(sums, columns, gathered)


def write_group_backward(writer: Writer, blocks: Number) -> None:
    """Scores again, then five products' worth of gradients."""
    tape, w, d = writer.tape, writer.plan.window, writer.head_dim
    rows, padded = blocks * ROWS, (blocks + 2 * _more(writer)) * ROWS
    column, rowed, keyed = writer.part(rows, 1), writer.part(rows, d), writer.part(blocks, w, d)
    weights = writer.scores(blocks)
    share = _softmax(writer, weights, column)
    band, held = writer.new("band", (padded * (w + 1),)), writer.part(rows, w)
    writer.into("store weights", held, weights)
    tape.free(weights)
    own = writer.new("rows between zeros", (padded, d))
    writer.into("grad times share", rowed, rowed, share, cost=MUL * rowed.count)
    _add_transposed(writer, "values", blocks)
    back = product_cost(rows, d, w)
    inner = writer.new("grad weights", (blocks, ROWS, w), rowed, keyed, cost=back)
    writer.inplace("row sums times share", share, column, each=MUL)
    writer.inplace("centre", inner, share, each=ADD)
    writer.inplace("grad scores", inner, held, each=MUL)
    writer.into("store grad scores", held, inner)
    tape.free(inner, share)
    if not writer.sees_itself:
        writer.into("itself", column)
    to_rows = writer.new("to rows", rowed.shape, held, keyed, cost=product_cost(rows, w, d))
    writer.into("store to rows", rowed, to_rows)
    tape.free(to_rows)
    writer.into("store rows", rowed, rowed)
    _add_transposed(writer, "keys", blocks)
    tape.free(band, own)


def _more(writer: Writer) -> Number:
    w = writer.plan.window
    return (w // ROWS if isinstance(w, int) else w / ROWS) - 1


def _add_transposed(writer: Writer, name: str, blocks: Number) -> None:
    w, d = writer.plan.window, writer.head_dim
    places = blocks + _more(writer)
    reads, seen = (writer.part(places, ROWS, w), writer.part(places, w, d)), places * ROWS
    out = writer.new(f"to {name}", (seen, d), *reads, cost=product_cost(seen, w, d))
    writer.inplace(f"add to {name}", writer.part(seen, d), out, each=ADD)
    writer.tape.free(out)


def _softmax(writer: Writer, scores: Tensor, column: Tensor) -> Tensor:
    compared = OTHER * scores.count
    share = writer.new("row maximum", column.shape, scores, cost=compared)
    writer.inplace("softmax", scores, each=SOFTMAX)
    writer.inplace("row maximum, shift", share, column, each=ADD)
    writer.inplace("share", share, each=EXP)
    top = writer.new("largest weight", column.shape, scores, cost=compared)
    writer.inplace("share, over largest weight", share, top, each=DIV)
    writer.tape.free(top)
    writer.inplace("share, over sum", share, column, each=DIV)
    return share


def _grad_of_queries(writer: Writer, norms: Tensor) -> None:
    tape, n, d = writer.tape, writer.plan.seq_len, writer.head_dim
    part = writer.part(n, d)
    along = writer.new("along keys, products", (n, d), part, part, cost=MUL * part.count)
    added = Cost(additions=part.count, reduction_outputs=n)
    total = writer.new("along keys", (n, 1), along, cost=added)
    tape.free(along)
    writer.inplace("along keys times d", total, each=MUL)
    writer.inplace("across keys", part, part, total, each=Cost(multiplications=1, additions=1))
    writer.inplace("over norms", part, norms, each=DIV)
    writer.into("grad queries", part, part, part, cost=ADD * part.count)
    tape.free(total)


def write_step(writer: Writer, batch: Number, size: int, q: Tensor) -> Tensor:
    """The new token into its buckets, softmax over what stands there."""
    tape, rounds, d = writer.tape, writer.rounds, writer.head_dim
    count = batch * rounds
    bucket = writer.new("first buckets", (count,), size=8)
    if not (isinstance(writer.half, int) and writer.half == 0):
        index = writer.hashed(batch)
        writer.inplace("its buckets", bucket, index)
        tape.free(index)
    number = writer.part(count, size=8)
    rank = writer.new("rank", (count,), number, number, size=8)
    more = writer.new("rank + 1", (count,), rank, size=8)
    writer.into("count", number, number, more)
    tape.free(more)
    _enter(writer, batch, bucket, rank)
    seen = writer.chosen("seen", (count, 2 * size, 2 * d), count)
    keys = writer.part(batch, rounds * 2 * size, d)
    shape = (batch, 1, rounds * 2 * size)
    scores = writer.new("scores", shape, q, keys, cost=product_cost(batch, d, shape[2]))
    _hide(writer, scores, rank, size)
    weights = tape.softmax("softmax", scores)
    mixed = product_cost(batch, shape[2], d)
    out = writer.new("weighted values", (batch, 1, d), weights, keys, cost=mixed)
    tape.free(weights, scores, seen, rank, bucket)
    return out


def _enter(writer: Writer, batch: Number, bucket: Tensor, rank: Tensor) -> None:
    tape, rounds, d = writer.tape, writer.rounds, writer.head_dim
    x = writer.part(batch, 1, d)
    squares = Cost(multiplications=x.count, additions=x.count, reduction_outputs=batch, other=batch)
    norm = writer.new("norm", (batch, 1, 1), x, cost=squares)
    writer.inplace("norm, floor", norm, each=OTHER)
    writer.inplace("norm times sqrt d", norm, each=MUL)
    key = writer.new("key", x.shape, x, norm, cost=DIV * x.count)
    row = writer.new("key and value", (batch, 1, 2 * d), key, x)
    tape.free(key)
    rows = writer.new("a row a round", (batch, rounds, 2 * d), row)
    first = writer.new("first slot", bucket.shape, bucket, size=8)
    slot = writer.new("slot in the bucket", rank.shape, rank, size=8)
    place = writer.new("slot", rank.shape, first, slot, size=8)
    tape.free(first, slot)
    writer.placed("store", rows, bucket.count)
    tape.free(place, rows, row, norm)


def _hide(writer: Writer, scores: Tensor, rank: Tensor, size: int) -> None:
    tape, shape = writer.tape, (rank.count, 2 * size)
    slots = writer.new("slots", shape[1:], size=8)
    age = writer.new("age", shape, rank, slots, size=8)
    tape.free(slots)
    writer.inplace("age in the ring", age)
    inside = writer.new("rank in the chunk", rank.shape, rank, size=8)
    back = writer.new("with the chunk before", rank.shape, inside, size=8)
    tape.free(inside)
    reach = writer.new("reach back", rank.shape, rank, back, size=8)
    tape.free(back)
    masks = [("too old", [age, reach])] + ([] if writer.sees_itself else [("itself", [age])])
    for name, reads in masks:
        mask = writer.new(name, shape, *reads, size=1)
        writer.inplace(f"hide {name}", scores, mask)
        tape.free(mask)
    tape.free(age, reach)
