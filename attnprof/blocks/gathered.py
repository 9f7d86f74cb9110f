"""Softmax attention over gathered blocks: each block of rows sees a few slices of the keys.

Nothing larger than one block's scores is ever alive, in training neither: backward computes
the scores again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Block:
    """Rows that see the same keys.

    ``mask`` (rows, keys - ``open_keys``) is added to the scores: minus infinity where they must
    not look, else 0 (:func:`hidden`); the first ``open_keys`` keys are seen by all.
    ``merges``: an earlier block holds the same rows with other keys; the two are one softmax.
    """

    rows: slice
    keys: tuple[slice, ...]
    mask: Tensor | None = None
    open_keys: int = 0
    merges: bool = False


def hidden(mask: Tensor, like: Tensor) -> Tensor:
    """What is added to scores: minus infinity where a boolean mask is True, else 0."""
    return like.new_zeros(mask.shape).masked_fill_(mask, float("-inf"))


def gather(x: Tensor, keys: tuple[slice, ...]) -> Tensor:
    """The slices of (b, n, d) one after the other; a view where there is one."""
    if len(keys) == 1:
        return x[:, keys[0]]
    return torch.cat([x[:, piece] for piece in keys], 1)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add products (b, m, k)(b, k, n) to (b, m, n), a view, without memory for them."""
    if torch.compiler.is_compiling():  # Dynamo refuses to write to views with gaps
        into.add_(torch.bmm(a, b))
    else:
        torch.baddbmm(into, a, b, out=into)


def _scatter_product(into: Tensor, keys: tuple[slice, ...], weights: Tensor, rows: Tensor) -> None:
    """Add weightsᵀ rows, of (b, r, keys) and (b, r, d), to where the keys came from."""
    start = 0
    for piece in keys:
        target = into[:, piece]
        end = start + target.shape[1]
        _add_product(target, weights[..., start:end].transpose(1, 2), rows)
        start = end


def _scores(q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled rows, gathered keys, masked scores of one block."""
    rows = q[:, block.rows] / math.sqrt(q.shape[-1])
    keys = gather(k, block.keys)
    if block.mask is not None and len(block.keys) == 1:
        return rows, keys, torch.baddbmm(block.mask, rows, keys.transpose(1, 2))
    scores = torch.bmm(rows, keys.transpose(1, 2))
    if block.mask is not None:
        scores[..., block.open_keys :].add_(block.mask)
    return rows, keys, scores


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block, out: Tensor) -> None:
    """One softmax a row: the fused kernel, over the scores."""
    scores = _scores(q, k, block)[2]
    torch.softmax(scores, -1, out=scores)
    out[:, block.rows] = torch.bmm(scores, gather(v, block.keys))


def _attend_part(q: Tensor, k: Tensor, v: Tensor, block: Block, out: Tensor, lse: Tensor) -> None:
    """Part of a row's softmax, or all of it, and its log-sum-exp."""
    scores = _scores(q, k, block)[2]
    total = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    # the largest weight is 1 / the sum of exp(score - largest score)
    total.sub_(scores.amax(-1, keepdim=True).log_())
    mixed = torch.bmm(scores, gather(v, block.keys))
    if block.merges:
        _merge(out[:, block.rows], lse[:, block.rows], mixed, total)
    else:
        out[:, block.rows] = mixed
        lse[:, block.rows] = total


def _merge(out: Tensor, lse: Tensor, mixed: Tensor, total: Tensor) -> None:
    """Join two softmaxes over disjoint keys: weighted by what each one summed to."""
    highest = torch.maximum(lse, total)
    before, here = (lse - highest).exp_(), (total - highest).exp_()
    both = before + here
    out.mul_(before.div_(both)).add_(mixed.mul_(here.div_(both)))
    lse.copy_(both.log_().add_(highest))


@dataclass(frozen=True)
class _Saved:
    """What backward finds: inputs, log-sum-exps where softmaxes were joined, output gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    lse: Tensor | None
    grad: Tensor
    delta: Tensor


def _attend_backward(s: _Saved, block: Block, grads: tuple[Tensor, ...]) -> None:
    """Weights again, then five products' worth of gradients; dq is still to be scaled."""
    dq, dk, dv = grads
    rows, keys, weights = _scores(s.q, s.k, block)
    if s.lse is None:
        torch.softmax(weights, -1, out=weights)
    else:
        weights.sub_(s.lse[:, block.rows]).exp_()
    above = s.grad[:, block.rows]
    _scatter_product(dv, block.keys, weights, above)
    inner = torch.bmm(above, gather(s.v, block.keys).transpose(1, 2))
    inner.sub_(s.delta[:, block.rows]).mul_(weights)
    del weights
    if block.merges:
        _add_product(dq[:, block.rows], inner, keys)
    else:
        dq[:, block.rows] = torch.bmm(inner, keys)
    _scatter_product(dk, block.keys, inner, rows)


class _GatheredAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], merges: bool
    ) -> Tensor:
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        lse = q.new_empty(*q.shape[:2], 1) if merges else None
        for block in blocks:
            if lse is None:
                _attend(q, k, v, block, out)
            else:
                _attend_part(q, k, v, block, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        plain = torch.contiguous_format
        dq = torch.empty_like(q, memory_format=plain)
        dk, dv = (torch.zeros_like(x, memory_format=plain) for x in (k, v))
        saved = _Saved(q, k, v, lse, grad, delta)
        for block in ctx.blocks:
            _attend_backward(saved, block, (dq, dk, dv))
        return dq.div_(math.sqrt(q.shape[-1])), dk, dv, None, None


def gathered_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], merges: bool = False
) -> Tensor:
    """Softmax attention of q (b, n, d) over the keys each block of rows names.

    k (b, m, d), v (b, m, dv) → (b, n, dv). Every row stands in one block (and, with ``merges``,
    perhaps in later ones that merge) and sees at least one key in each.
    """
    out: Tensor = _GatheredAttention.apply(q, k, v, blocks, merges)  # type: ignore[no-untyped-call]  # torch
    return out
