"""Softmax attention over gathered blocks: each block of rows sees a few slices of the keys.

Nothing larger than one block's scores is ever alive, also in training: backward computes the scores
again. Entry points: :data:`gathered_attention`, :data:`sink_attention`; :func:`in_band` for the
blocks of a window of neighbours, :data:`band_convolution` for a depthwise convolution by such
blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attnprof.costs import ceil_div, is_plain, maximum, minimum
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    empty_like,
    join,
    put_product,
    softmax_,
    square_root,
    zeros_like,
)
from attnprof.ops.loops import each, turns


class Block(NamedTuple):
    """Rows that see the same keys.

    ``mask`` (rows, keys - ``open_keys``) is added to the scores of all but the first ``open_keys``
    keys: minus infinity where a row does not see a key, else 0 (:func:`hidden`). ``merges``: an
    earlier block has the same rows and other keys; both are one softmax.
    """

    rows: slice
    keys: tuple[slice, ...]
    mask: Any = None
    open_keys: Any = 0
    merges: bool = False


#: A function of queries (b, n, d) and masks that yields the blocks of all rows (see ``turns``).
Pattern = Callable[[Any, tuple[Any, ...]], Iterator[Block]]


def hidden(mask: Any, like: Any) -> Any:
    """Return the term added to scores: minus infinity where a boolean mask is True, else 0."""
    return like.new_zeros(mask.shape).masked_fill_(mask, float("-inf"))


def _gathered(x: Any, keys: tuple[slice, ...]) -> Any:
    """Return slices of x (b, n, d) joined; a single one is a view."""
    if len(keys) == 1:
        return x[:, keys[0]]
    return join([x[:, piece] for piece in keys], 1)


def _scatter_product(into: Any, keys: tuple[slice, ...], weights: Any, rows: Any) -> None:
    """Add weightsᵀ rows, of (b, r, keys) and (b, r, d), to the slices of ``into``."""
    if len(keys) == 1:  # no view of all weights
        add_product(into[:, keys[0]], weights.transpose(1, 2), rows)
        return
    start = 0
    for piece in keys:
        target = into[:, piece]
        end = start + target.shape[1]
        add_product(target, weights[..., start:end].transpose(1, 2), rows)
        start = end


def _scores(q: Any, k: Any, block: Block) -> tuple[Any, Any, Any]:
    """Return scaled rows, gathered keys and masked scores of one block."""
    rows = q[:, block.rows] / square_root(q.shape[-1])
    keys = _gathered(k, block.keys)
    if block.mask is not None and len(block.keys) == 1:
        return rows, keys, block.mask.baddbmm(rows, keys.transpose(1, 2))
    scores = rows.bmm(keys.transpose(1, 2))
    if block.mask is not None:
        scores[..., block.open_keys :].add_(block.mask)
    return rows, keys, scores


def _attend(q: Any, k: Any, v: Any, block: Block, out: Any) -> None:
    """Write a block's outputs: one softmax a row over its scores."""
    scores = _scores(q, k, block)[2]
    softmax_(scores)
    out[:, block.rows] = scores.bmm(_gathered(v, block.keys))


def _attend_part(q: Any, k: Any, v: Any, block: Block, out: Any, lse: Any) -> None:
    """Write a block's outputs and log-sum-exps, merged with earlier parts of the same rows."""
    scores = _scores(q, k, block)[2]
    total = scores.amax(-1, keepdim=True)
    softmax_(scores)
    # the largest weight is 1 / the sum of exp(score - largest score)
    total.sub_(scores.amax(-1, keepdim=True).log_())
    mixed = scores.bmm(_gathered(v, block.keys))
    if block.merges:
        _merge(out[:, block.rows], lse[:, block.rows], mixed, total)
    else:
        out[:, block.rows] = mixed
        lse[:, block.rows] = total


def _merge(out: Any, lse: Any, mixed: Any, total: Any) -> None:
    """Join the softmax over other keys to ``out`` and ``lse``, weighted by sums of exponentials."""
    highest = lse.maximum(total)
    earlier, newer = (lse - highest).exp_(), (total - highest).exp_()
    both = earlier + newer
    out.mul_(earlier.div_(both)).add_(mixed.mul_(newer.div_(both)))
    lse.copy_(both.log_().add_(highest))


def _attention(
    q: Any, k: Any, v: Any, *masks: Any, pattern: Pattern, merges: bool
) -> tuple[Any, tuple[Any, ...]]:
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    lse = q.new_empty(*q.shape[:2], 1) if merges else None
    for block in pattern(q, masks):
        if lse is None:
            _attend(q, k, v, block, out)
        else:
            _attend_part(q, k, v, block, out, lse)
    return out, (q, k, v, out, lse, *masks)


def _attention_grads(
    saved: tuple[Any, ...], grad: Any, *, pattern: Pattern, **_: bool
) -> tuple[Any, ...]:
    q, k, v, out, lse, *masks = saved
    delta = (grad * out).sum(-1, keepdim=True)
    dq = empty_like(q, in_rows=True)
    dk, dv = (zeros_like(x, in_rows=True) for x in (k, v))
    for block in pattern(q, tuple(masks)):
        _block_grads(block, (q, k, v), (grad, delta, lse), (dq, dk, dv))
    return dq.div_(square_root(q.shape[-1])), dk, dv, *(None for _ in masks)


def _block_grads(
    block: Block, operands: tuple[Any, ...], of_rows: tuple[Any, ...], grads: tuple[Any, ...]
) -> None:
    """Add a block's gradients, from weights computed again; dq is still to be scaled.

    ``of_rows``: the output's gradient, the sum over a row of its product with the output, and the
    log-sum-exps if blocks merge, else None.
    """
    (q, k, v), (grad, delta, lse), (dq, dk, dv) = operands, of_rows, grads
    rows, keys, weights = _scores(q, k, block)
    if lse is None:
        softmax_(weights)
    else:
        weights.sub_(lse[:, block.rows]).exp_()
    out_grad = grad[:, block.rows]
    _scatter_product(dv, block.keys, weights, out_grad)
    scores_grad = out_grad.bmm(_gathered(v, block.keys).transpose(1, 2))
    scores_grad.sub_(delta[:, block.rows]).mul_(weights)
    del weights
    if block.merges:
        add_product(dq[:, block.rows], scores_grad, keys)
    else:
        dq[:, block.rows] = scores_grad.bmm(keys)
    _scatter_product(dk, block.keys, scores_grad, rows)


#: Softmax attention of q (b, n, d), each block of rows over its own keys.
#:
#: k (b, m, d), v (b, m, dv) → (b, n, dv). Every row stands in one block of the ``pattern`` (and,
#: with ``merges``, perhaps in later ones that merge) and sees at least one key in each. Operands
#: after v are the masks that the pattern is given.
gathered_attention = Function(_attention, _attention_grads)


def _with_sink(
    q: Any, k: Any, v: Any, sink: Any, *masks: Any, pattern: Pattern
) -> tuple[Any, tuple[Any, ...]]:
    out, lse = _attention(q, k, v, *masks, pattern=pattern, merges=True)[1][3:5]
    highest = lse.maximum(sink)
    total = (lse - highest).exp_().add_((sink - highest).exp_()).log_().add_(highest)
    out.mul_(lse.sub_(total).exp_())
    return out, (q, k, v, out, total, sink, *masks)


def _sink_grads(saved: tuple[Any, ...], grad: Any, *, pattern: Pattern) -> tuple[Any, ...]:
    """Return the gradients of q, k, v and the sink: minus its weight times grad·output."""
    *operands, total, sink = saved[:6]
    masks = saved[6:]
    grads = _attention_grads((*operands, total, *masks), grad, pattern=pattern)[:3]
    weights = (sink - total).exp_()
    weights.mul_((grad * operands[3]).sum(-1, keepdim=True))
    return *grads, weights.sum(1, keepdim=True).neg_(), *(None for _ in masks)


#: Softmax attention over gathered blocks with one more score per row, ``sink`` (b, 1, 1), that has
#: no value: the softmax without it times σ(log-sum-exp - sink). Operands: q, k, v, sink, masks.
sink_attention = Function(_with_sink, _sink_grads)


#: A block's rows, the tokens that they see, and the columns of these in the block's band, which is
#: all tokens from ``before`` the first row to ``after`` the last one.
BandBlock = tuple[slice, slice, slice]


def in_band(
    like: Any, n: Any, rows: Any, before: Any, after: Any, first: Any = 0
) -> Iterator[BandBlock]:
    """Yield blocks of ``rows`` of n tokens; a row sees ``before`` tokens back, ``after`` ahead.

    ``first`` is the index of the first token. A symbolic ``rows`` is taken to be at least
    ``before`` and ``after``. The counter runs a block of each kind, times its number.
    """
    every = _every_block(n, rows, before, after, first)
    return turns(like, every, _blocks_alike(n, rows, before, after))


def _every_block(n: int, rows: int, before: int, after: int, first: int) -> Iterator[BandBlock]:
    for start in range(0, n, rows):
        end = min(start + rows, n)
        low, high = max(0, start - before), min(n, end + after)
        columns = slice(low - (start - before), high - (start - before))
        yield slice(first + start, first + end), slice(first + low, first + high), columns


def _blocks_alike(
    n: Any, rows: Any, before: Any, after: Any
) -> Iterator[tuple[str, Any, BandBlock]]:
    """Yield name, number and sizes: of each block near an end, and of all blocks in the middle."""
    count = ceil_div(n, rows)
    last = n - (count - 1) * rows
    front = _reached_blocks(before, rows)
    back = 0 if is_plain(after) and after == 0 else _reached_blocks(after, rows)
    for i in range(front):
        height, width = minimum(rows, n - i * rows), minimum(n, (i + 1) * rows + after)
        yield f"block {i + 1}", happens(count - i), _sizes(height, width)
    middle = maximum(0, count - front - back - 1)
    yield "middle blocks", middle, _sizes(rows, rows + before + after)
    for j in range(back, 0, -1):
        ahead = minimum(after, last + (j - 1) * rows)
        name = f"block {j + 1} from the end"
        yield name, happens(count - front - j), _sizes(rows, rows + before + ahead)
    yield "last block", happens(count - front), _sizes(last, last + before)


def _reached_blocks(reach: Any, rows: Any) -> int:
    """Return the number of blocks that ``reach`` tokens touch: 1 if either is a symbol."""
    return max(1, ceil_div(reach, rows)) if is_plain(reach, rows) else 1


def happens(count: Any) -> Any:
    """Return 1 if a count is one or more, else 0."""
    return minimum(1, maximum(0, count))


def _sizes(height: Any, width: Any) -> BandBlock:
    return slice(0, height), slice(0, width), slice(0, width)


def band_mask(rows: Any, before: Any, after: Any, like: Any) -> Any:
    """Return a mask (rows, before + rows + after) that hides keys outside a block's band."""
    shape = (rows, before + rows + after)
    mask = like.new_ones(shape, dtype=bool).tril_(-1)
    above = like.new_ones(shape, dtype=bool).triu_(before + after + 1)
    mask.logical_or_(above)
    del above
    return hidden(mask, like)


# -- a depthwise convolution along the tokens as products with a band matrix --------------------
#: Rows of a block of the convolution.
ROWS = 64


def _band(kernel: Any) -> Any:
    """Return (h, ROWS, ROWS + size - 1): kernel (h, size) from the diagonal on, zeros elsewhere."""
    skewed = _skewed(kernel)
    skewed[:, :, : kernel.shape[1]].copy_(kernel.unsqueeze(1))
    return _straight(skewed)


def _skewed(kernel: Any) -> Any:
    """Return zeros whose rows are one entry longer than the band's: column 0 is its diagonal."""
    heads, size = kernel.shape
    return kernel.new_zeros(heads, ROWS, ROWS + size)


def _straight(skewed: Any) -> Any:
    """Return the same memory as the band, whose rows are one entry shorter."""
    heads, rows, width = skewed.shape
    return skewed.view(heads, rows * width)[:, : rows * (width - 1)].view(heads, rows, width - 1)


def _convolved(x: Any, kernel: Any) -> Any:
    out, band = empty_like(x), _band(kernel)
    half = kernel.shape[1] // 2
    for sample in each(x, 0, x.shape[0]):
        for rows, near_keys, columns in in_band(x, x.shape[2], ROWS, half, half):
            height = slice(0, rows.stop - rows.start)
            put_product(out[sample, :, rows], band[:, height, columns], x[sample, :, near_keys])
    return out


def _convolution_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    x, kernel = saved
    dx = _convolved(grad, kernel.flip(1))
    size, skewed = kernel.shape[1], _skewed(kernel)
    d_band = _straight(skewed)
    for sample in each(x, 0, x.shape[0]):
        for rows, near_keys, columns in in_band(x, x.shape[2], ROWS, size // 2, size // 2):
            place = d_band[:, : rows.stop - rows.start, columns]
            add_product(place, grad[sample, :, rows], x[sample, :, near_keys].transpose(1, 2))
    d_kernel = skewed[:, :, :size].sum(1)
    return dx, d_kernel


#: Σ over taps of kernel (h, size), of odd size, times x (b, h, n, d) moved along the tokens.
#:
#: A block of rows is one product with the band matrix of the kernel: more operations than the
#: taps have, on a processor's fastest path.
band_convolution = Function(
    lambda x, kernel: (_convolved(x, kernel), (x, kernel)), _convolution_grads
)
