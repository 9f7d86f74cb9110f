"""Softmax attention over gathered blocks: each block of rows sees a few slices of the keys.

Nothing larger than one block's scores is ever alive, in training neither: backward computes
the scores again.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, empty_like, join, softmax_, square_root, zeros_like


class Block(NamedTuple):
    """Rows that see the same keys.

    ``mask`` (rows, keys - ``open_keys``) is added to the scores: minus infinity where they must
    not look, else 0 (:func:`hidden`); the first ``open_keys`` keys are seen by all.
    ``merges``: an earlier block holds the same rows with other keys; the two are one softmax.
    """

    rows: slice
    keys: tuple[slice, ...]
    mask: Any = None
    open_keys: Any = 0
    merges: bool = False


#: From queries (b, n, d), and the masks, to the blocks of all rows, one at a time (``turns``).
Pattern = Callable[[Any, tuple[Any, ...]], Iterator[Block]]


def hidden(mask: Any, like: Any) -> Any:
    """What is added to scores: minus infinity where a boolean mask is True, else 0."""
    return like.new_zeros(mask.shape).masked_fill_(mask, float("-inf"))


def _gathered(x: Any, keys: tuple[slice, ...]) -> Any:
    """The slices of (b, n, d) one after the other; a view where there is one."""
    if len(keys) == 1:
        return x[:, keys[0]]
    return join([x[:, piece] for piece in keys], 1)


def _scatter_product(into: Any, keys: tuple[slice, ...], weights: Any, rows: Any) -> None:
    """Add weightsᵀ rows, of (b, r, keys) and (b, r, d), to where the keys came from."""
    if len(keys) == 1:
        add_product(into[:, keys[0]], weights.transpose(1, 2), rows)
        return
    start = 0
    for piece in keys:
        target = into[:, piece]
        end = start + target.shape[1]
        add_product(target, weights[..., start:end].transpose(1, 2), rows)
        start = end


def _scores(q: Any, k: Any, block: Block) -> tuple[Any, Any, Any]:
    """Scaled rows, gathered keys, masked scores of one block."""
    rows = q[:, block.rows] / square_root(q.shape[-1])
    keys = _gathered(k, block.keys)
    if block.mask is not None and len(block.keys) == 1:
        return rows, keys, block.mask.baddbmm(rows, keys.transpose(1, 2))
    scores = rows.bmm(keys.transpose(1, 2))
    if block.mask is not None:
        scores[..., block.open_keys :].add_(block.mask)
    return rows, keys, scores


def _attend(q: Any, k: Any, v: Any, block: Block, out: Any) -> None:
    """One softmax a row: the fused kernel, over the scores."""
    scores = _scores(q, k, block)[2]
    softmax_(scores)
    out[:, block.rows] = scores.bmm(_gathered(v, block.keys))


def _attend_part(q: Any, k: Any, v: Any, block: Block, out: Any, lse: Any) -> None:
    """Part of a row's softmax, or all of it, and its log-sum-exp."""
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
    """Join two softmaxes over disjoint keys: weighted by what each one summed to."""
    highest = lse.maximum(total)
    before, here = (lse - highest).exp_(), (total - highest).exp_()
    both = before + here
    out.mul_(before.div_(both)).add_(mixed.mul_(here.div_(both)))
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
    """Weights again, then five products' worth of gradients; dq is still to be scaled.

    ``of_rows``: the output's gradient, its product with the output summed a row, and the
    log-sum-exps where softmaxes were joined.
    """
    (q, k, v), (grad, delta, lse), (dq, dk, dv) = operands, of_rows, grads
    rows, keys, weights = _scores(q, k, block)
    if lse is None:
        softmax_(weights)
    else:
        weights.sub_(lse[:, block.rows]).exp_()
    above = grad[:, block.rows]
    _scatter_product(dv, block.keys, weights, above)
    inner = above.bmm(_gathered(v, block.keys).transpose(1, 2))
    inner.sub_(delta[:, block.rows]).mul_(weights)
    del weights
    if block.merges:
        add_product(dq[:, block.rows], inner, keys)
    else:
        dq[:, block.rows] = inner.bmm(keys)
    _scatter_product(dk, block.keys, inner, rows)


#: Softmax attention of q (b, n, d) over the keys each block of rows names.
#:
#: k (b, m, d), v (b, m, dv) → (b, n, dv). Every row stands in one block of the ``pattern`` (and,
#: with ``merges``, perhaps in later ones that merge) and sees at least one key in each. Operands
#: after v are the masks that the pattern is given.
gathered_attention = Function(_attention, _attention_grads)
