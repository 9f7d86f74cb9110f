"""What the forms of Neural Attention execute, stage by stage."""

from __future__ import annotations

from attnprof.costs import Cost, Number, at_least_one, floor_div, is_plain, more_than_one
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanisms.neural.backward import write_backward
from attnprof.mechanisms.neural.chunk import (
    Chunk,
    Net,
    causal_mask,
    scaled_output,
    scores_of,
    terms,
)

Operands = tuple[Tensor, Tensor, Tensor]


def down(tape: Tape, net: Net, which: str, x: Tensor) -> Tensor:
    """X W + b, shared by all heads; x itself where there is no down-projection."""
    if which not in net.down:
        return x
    weight, bias = net.down[which]
    stretched = tape.expand(f"{which} down-projection map", weight, x.shape[0])
    out = tape.bmm(f"{which} down-projection", x, stretched)
    tape.free(stretched)
    return tape.add(f"{which} down-projection, bias", out, bias, inplace=True)


# -- as the document writes it -----------------------------------------------------------
def naive(tape: Tape, net: Net, operands: Operands, causal: bool) -> Tensor:
    """C, every layer of the network, the scores: all of them for all pairs at once."""
    q, k, v = operands
    heads, n = v.shape[:2]
    mask = causal_mask(tape, n) if causal else None
    x = _concatenated(tape, q, k)
    for name, (weight, bias) in net.layers.items():
        before, x = x, tape.linear(name, x, weight, bias)
        tape.free(before)
        x = _relu(tape, f"{name}, ReLU", x)
    raw = tape.linear("scores", x, *net.output)
    tape.free(x)
    matrix = tape.view(raw, heads, n, n)
    scores = tape.scale("scaling", matrix, divide=True)
    tape.free(raw, matrix)
    if mask is not None:
        scores = tape.masked_fill("masking", scores, mask)
    weights = tape.softmax("softmax", scores)
    tape.free(scores)
    out = tape.bmm("weighted values", weights, v)
    tape.free(weights, *([mask] if mask else []))
    return out


def _concatenated(tape: Tape, q: Tensor, k: Tensor) -> Tensor:
    """C (pairs, 2d'): queries and keys stretched over each other."""
    heads, n, d = q.shape
    many = more_than_one(n)

    def backward(grad: Tensor) -> Gradients:
        half = tape.constant(heads, n, n, d, item_size=grad.item_size)
        cost = Cost(additions=many * half.count, reduction_outputs=many * q.count)
        parts = [tape.emit(f"C: grad {name}", q.shape, cost, [half]) for name in ("k", "q")]
        return [(q, parts[1]), (k, parts[0])]

    pairs = [tape.constant(heads, n, n, d) for _ in range(2)]
    out = tape.emit("C", (heads * n * n, 2 * d), Cost(), pairs)
    if q.requires_grad or k.requires_grad:
        tape.attach(out, "C", backward, ())
    return out


def _relu(tape: Tape, name: str, a: Tensor) -> Tensor:
    holder: list[Tensor] = []

    def backward(grad: Tensor) -> Gradients:
        cost = Cost(other=a.count)
        return [(a, tape.emit(f"{name}: grad", a.shape, cost, [grad, holder[0]]))]

    out = tape.emit(name, a.shape, Cost(other=a.count), [a], into=a, backward=backward)
    holder.append(out)
    if out.node:
        out.node.saved = (out,)
        out.storage.holders += 1
    return out


# -- without C ---------------------------------------------------------------------------
def chunks_by_shape(
    heads: Number, n: Number, chunk: tuple[Number, Number], causal: bool
) -> list[Chunk]:
    """Chunks by shape: whole ones, a last one with fewer rows, a last one with fewer heads."""
    heads_each, rows_each = chunk
    groups, whole = floor_div(heads, heads_each), floor_div(n, rows_each)
    rows_left, heads_left = n - whole * rows_each, heads - groups * heads_each
    if causal:
        found = _growing(groups, heads_each, whole, rows_each)
    else:
        found = [Chunk("chunks", groups * whole, heads_each, rows_each, n, masked=False)]
    ends = [
        Chunk("last rows", groups * at_least_one(rows_left), heads_each, rows_left, n, causal),
        Chunk("last heads", at_least_one(heads_left), heads_left, n, n, causal),
    ]
    return [c for c in (*found, *ends) if not (is_plain(c.times) and c.times == 0)]


def _growing(groups: Number, heads: Number, whole: Number, rows: Number) -> list[Chunk]:
    """Causal chunks: the one number j sees j times its rows.

    Work is linear in j, so the mean stands for the early ones; the latest stand alone, for the
    memory and for a whole mean.
    """
    plain = is_plain(whole)
    single = min(whole, 1 + whole % 2) if plain else 1
    early = whole - single
    mean = (early + 1) // 2 if plain else (early + 1) / 2
    found = [Chunk("early chunks", groups * early, heads, rows, rows * mean)]
    for back in range(single, 0, -1):
        seen = (whole - back + 1) * rows
        found.append(Chunk(f"whole chunk {back} from the end", groups, heads, rows, seen))
    return found


def factored(
    tape: Tape, net: Net, operands: Operands, chunk: tuple[Number, Number], causal: bool
) -> Tensor:
    """The two terms of the hidden layer, then a chunk of rows at a time."""
    q, k, v = operands
    heads, n = v.shape[:2]
    todo = chunks_by_shape(heads, n, chunk, causal)
    hidden = terms(tape, net, q, k)
    last = scaled_output(tape, net)
    masks = [causal_mask(tape, chunk[1])] if causal else []
    out = tape.empty("output", *v.shape)
    lse = tape.empty("log-sum-exp", *v.shape[:2], 1)
    for group in todo:
        with tape.repeat(group.times):
            _attend(tape, net, group, v.shape[2])
    tape.free(*hidden, last, *masks)

    def backward(grad: Tensor) -> Gradients:
        rows = chunk[1] if causal else None
        return write_backward(tape, net, (q, k, v, out, grad), todo, rows)

    weights = [*net.output, *(t for pair in net.layers.values() for t in pair)]
    if any(t.requires_grad for t in (q, k, v, *weights)):
        tape.attach(out, "pair network", backward, (q, k, v, *weights, out, lse))
    tape.free(lse)
    return out


def _attend(tape: Tape, net: Net, group: Chunk, width: Number) -> None:
    name, column = group.name, (group.heads, group.rows, 1)
    scores, *layers = scores_of(tape, net, group, keep=False)
    assert not layers
    highest = tape.emit(f"row maximum, {name}", column, Cost(other=scores.count), [scores])
    shifted = Cost(additions=1)
    scores = tape.pointwise(f"shift, {name}", [scores, highest], shifted, inplace=True)
    scores = tape.pointwise(f"exponentials, {name}", [scores], Cost(exponentials=1), inplace=True)
    total = tape.sum(f"row sums, {name}", scores, column)
    values = tape.constant(group.heads, group.seen, width)
    mixed = tape.bmm(f"weighted values, {name}", scores, values)
    mixed = tape.pointwise(
        f"normalisation, {name}", [mixed, total], Cost(divisions=1), inplace=True
    )
    tape.record(f"store rows, {name}", mixed.shape, Cost(bytes_moved=2 * mixed.size))
    total = tape.pointwise(f"logarithm, {name}", [total], Cost(other=1), inplace=True)
    total = tape.pointwise(f"log-sum-exp, {name}", [total, highest], shifted, inplace=True)
    tape.record(f"store log-sum-exp, {name}", column, Cost(bytes_moved=2 * total.size))
    tape.free(mixed, scores, highest, total)


# -- one token ---------------------------------------------------------------------------
def step(tape: Tape, net: Net, operands: Operands, t: Number) -> Tensor:
    """The new token's pairs with every token so far."""
    q, k, v = operands
    batch, width = q.shape[0], net.hidden
    rows, keys = down(tape, net, "query", q), down(tape, net, "key", k)
    row, key = terms(tape, net, rows, keys)
    entry = tape.emit("cache entry", (batch, 1, width + v.shape[2]), Cost(), [key, v])
    tape.record("append to cache", entry.shape, Cost(bytes_moved=2 * entry.size))
    tape.free(entry)
    group = Chunk("", 1, batch, 1, t, masked=False)
    last = scaled_output(tape, net)
    scores = scores_of(tape, net, group, keep=False)[0]
    weights = tape.softmax("softmax", scores)
    tape.free(scores)
    out = tape.bmm("weighted values", weights, tape.constant(batch, t, v.shape[2]))
    tape.free(weights, last, row, key, *((rows, keys) if net.down else ()))
    return out
