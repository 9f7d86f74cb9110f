"""Softmax attention over means of windows of tokens, and the blocks that its weights point to.

The first branch of native sparse attention (Yuan et al. 2025, Sections 3.3.1 and 3.3.2): a key and
a value stand for each window of ``pool`` tokens, one window begins every ``stride`` tokens. Sums of
strides are what a decoder keeps; :func:`window_means` makes windows of them,
:data:`window_attention` attends to these and picks blocks.
"""

from typing import Any

from attnprof.blocks.picked import ROWS, block_sums
from attnprof.costs import Cost, Number, ceil_div, exact_div, floor_div, maximum, minimum
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    arange,
    copy_in_rows,
    empty_int32,
    join,
    padded,
    softmax_,
    softmax_grad_,
    square_root,
    zeros_like,
)
from attnprof.ops.loops import in_blocks
from attnprof.workload import Workload


def _sum_grads(saved: tuple[Any, ...], grad: Any, *, block: int) -> tuple[Any, ...]:
    (x,) = saved
    to_x = x.new_empty(x.shape)
    for rows in in_blocks(x, x.shape[1], block):
        to_x[:, rows].copy_(grad[:, rows.start // block].unsqueeze(1))
    return (to_x,)


#: Sums (b, blocks, d) of each ``block`` tokens of x (b, m, d), with a gradient.
summed_blocks = Function(lambda x, block: (block_sums(x, block), (x,)), _sum_grads)


def windows(tokens: Number, pool: int, stride: int) -> Number:
    """Return the number of whole windows of ``pool`` tokens, one every ``stride`` tokens."""
    return maximum(0, floor_div(tokens, stride) - (pool // stride - 1))


def window_means(sums: Any, tokens: Any, pool: int, stride: int) -> Any:
    """Return all windows' means (b, windows, d) of sums (b, strides, d); one, if none is whole."""
    b, _, d = sums.shape
    count, many = maximum(1, windows(tokens, pool, stride)), pool // stride
    rows = join([sums, sums.new_zeros(b, many - 1, d)], 1)
    total = rows[:, :count]
    for more in range(1, many):
        total = total + rows[:, more : more + count]
    return total / pool


def _weights(
    q: Any, keys: Any, rows: slice, *, pool: int, stride: int, start: Any
) -> tuple[Any, Any, Any]:
    """Return scaled rows (g, h·r, d), weights (g, h·r, windows), and the rows' numbers (r, 1).

    A row before the end of the first window has no weights.
    """
    (g, h, _, d), count, many = q.shape, rows.stop - rows.start, keys.shape[1]
    queries = copy_in_rows(q[:, :, rows]).view(g, h * count, d).div_(square_root(d))
    weights = queries.bmm(keys.transpose(1, 2))
    token = (arange(q, count) + (rows.start + start)).unsqueeze(1)
    hidden = arange(q, many, stride) + (pool - 1) > token
    by_head = weights.view(g, h, count, many)
    by_head.masked_fill_(hidden, float("-inf"))
    softmax_(weights)
    by_head.masked_fill_(hidden, 0.0)
    return queries, weights, token


def _blocks(weights: Any, token: Any, blocks: Any, *, pool: int, stride: int, block: int) -> Any:
    """Return blocks (g, r, blocks) in the order of weights (g, h, r, windows), summed over h.

    A window's weight counts for each of its strides, a stride's for its block. The first block,
    the row's own and the one before it lead; later ones come last.
    """
    g, _, count, many = weights.shape
    shares, strides = weights.sum(1), block // stride
    each = padded(shares, after=blocks * strides - many)
    for more in range(1, pool // stride):
        each = each + padded(shares, before=more, after=blocks * strides - many - more)
    scores = each.view(g, count, blocks, strides).sum(-1)
    own_first, first = token - token % block, arange(token, blocks, block)
    scores.masked_fill_(first + block > own_first - 1, float("inf"))
    scores.masked_fill_(first > own_first, float("-inf"))
    scores[..., :1].fill_(float("inf"))
    return scores.sort(dim=-1, descending=True, stable=True).indices


def _attended(
    q: Any, keys: Any, values: Any, *, tokens: Any, top: int, block: int, start: Any, **pooled: int
) -> tuple[Any, tuple[Any, ...]]:
    (g, h, n, _), many, blocks = q.shape, keys.shape[1], ceil_div(tokens, block)
    out, few = q.new_empty(g, h, n, values.shape[-1]), minimum(top, blocks)
    picked = empty_int32(q, g, n, few)
    for rows in in_blocks(q, n, ROWS):
        count = rows.stop - rows.start
        queries, weights, token = _weights(q, keys, rows, start=start, **pooled)
        del queries
        out[:, :, rows] = weights.bmm(values).view(g, h, count, -1)
        order = _blocks(weights.view(g, h, count, many), token, blocks, block=block, **pooled)
        picked[:, rows] = order[..., :few]
        del weights, token, order
    return (out, picked), (q, keys, values)


def _attended_grads(
    saved: tuple[Any, ...], grad: Any, *_: Any, start: Any, pool: int, stride: int, **__: Any
) -> tuple[Any, ...]:
    """Compute weights again, then gradients by five products; picked blocks have none."""
    q, keys, values = saved
    (g, h, n, d), to_q = q.shape, q.new_empty(q.shape)
    to_keys, to_values = (zeros_like(x, in_rows=True) for x in (keys, values))
    for rows in in_blocks(q, n, ROWS):
        count = rows.stop - rows.start
        queries, weights, _ = _weights(q, keys, rows, pool=pool, stride=stride, start=start)
        above = copy_in_rows(grad[:, :, rows]).view(g, h * count, -1)
        add_product(to_values, weights.transpose(1, 2), above)
        scores = above.bmm(values.transpose(1, 2))
        softmax_grad_(scores, weights)
        to_q[:, :, rows] = scores.bmm(keys).view(g, h, count, d)
        add_product(to_keys, scores.transpose(1, 2), queries)
        del queries, weights, _, above, scores
    return to_q.div_(square_root(d)), to_keys, to_values


#: Rows (g, h, n, dv) of q (g, h, n, d) over windows (g, m, d), (g, m, dv), and blocks (g, n, top).
#:
#: The h heads of a group pick the same blocks of the ``tokens``, by the sum of their weights.
#: The first row is token number ``start``, from 0.
window_attention = Function(_attended, _attended_grads)


def window_pairs(w: Workload, pool: int, stride: int) -> tuple[Number, Number]:
    """Return the numbers of pairs of a row and a window up to it, and of rows that have any."""
    n, many = w.seq_len, windows(w.seq_len, pool, stride)
    if w.phase == "decode":
        return many, minimum(1, many)
    rest = n - floor_div(n, stride) * stride
    pairs = exact_div(stride * many * (many - 1), 2) + (rest + 1) * many
    return pairs, maximum(0, n - pool + 1)


def define_windows(writer: Any, w: Workload, pool: int, stride: int) -> None:
    """Write the means of new windows, softmax attention over them, and their blocks' shares."""
    heads, count = w.batch_size * w.num_heads, windows(w.seq_len, pool, stride)
    if w.phase == "decode":
        count = count - windows(w.seq_len - 1, pool, stride)
    means = count * w.batch_size * w.kv_heads * (w.head_dim + w.value_width)
    writer.sums("means", means, means * pool)
    writer.stage("means: division", Cost(divisions=means), means)
    pairs, seeing_rows = window_pairs(w, pool, stride)
    writer.softmax_attention(w, pairs, seeing_rows)
    shares = heads * pairs * (pool // stride)
    writer.stage("shares of blocks", Cost(additions=shares), shares)
