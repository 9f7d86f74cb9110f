"""Softmax attention over gathered blocks: each block of rows sees a few slices of the keys.

Nothing larger than one block's scores is ever alive, in training neither: backward computes
the scores again from the rows' log-sum-exp.
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

    ``mask`` (rows, keys - ``open_keys``) is True where they must not look; the first
    ``open_keys`` keys are seen by all. ``merges``: an earlier block holds the same rows with
    other keys; the two are one softmax.
    """

    rows: slice
    keys: tuple[slice, ...]
    mask: Tensor | None = None
    open_keys: int = 0
    merges: bool = False


def gather(x: Tensor, keys: tuple[slice, ...]) -> Tensor:
    """The slices of (b, n, d) one after the other; a view where there is one."""
    if len(keys) == 1:
        return x[:, keys[0]]
    return torch.cat([x[:, piece] for piece in keys], 1)


def _scatter_add(into: Tensor, keys: tuple[slice, ...], grad: Tensor) -> None:
    start = 0
    for piece in keys:
        target = into[:, piece]
        target.add_(grad[:, start : start + target.shape[1]])
        start += target.shape[1]


def _scores(q: Tensor, k: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled rows, gathered keys, masked scores of one block."""
    rows = q[:, block.rows] / math.sqrt(q.shape[-1])
    keys = gather(k, block.keys)
    scores = torch.bmm(rows, keys.transpose(1, 2))
    if block.mask is not None:
        scores[..., block.open_keys :].masked_fill_(block.mask, float("-inf"))
    return rows, keys, scores


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block, out: Tensor, lse: Tensor) -> None:
    scores = _scores(q, k, block)[2]
    highest = scores.amax(-1, keepdim=True)
    scores.sub_(highest).exp_()
    total = scores.sum(-1, keepdim=True)
    mixed = torch.bmm(scores, gather(v, block.keys)).div_(total)
    total.log_().add_(highest)
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


def _attend_backward(
    saved: tuple[Tensor, ...], grad: Tensor, delta: Tensor, block: Block, grads: tuple[Tensor, ...]
) -> None:
    q, k, v, lse = saved
    dq, dk, dv = grads
    rows, keys, weights = _scores(q, k, block)
    weights.sub_(lse[:, block.rows]).exp_()
    above = grad[:, block.rows]
    _scatter_add(dv, block.keys, torch.bmm(weights.transpose(1, 2), above))
    inner = torch.bmm(above, gather(v, block.keys).transpose(1, 2))
    inner.sub_(delta[:, block.rows]).mul_(weights)
    del weights
    to_q = torch.bmm(inner, keys).div_(math.sqrt(q.shape[-1]))
    if block.merges:
        dq[:, block.rows].add_(to_q)
    else:
        dq[:, block.rows] = to_q
    del to_q
    _scatter_add(dk, block.keys, torch.bmm(inner.transpose(1, 2), rows))


class _GatheredAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> Tensor:
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        lse = q.new_empty(*q.shape[:2], 1)
        for block in blocks:
            _attend(q, k, v, block, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        plain = torch.contiguous_format
        dq = torch.empty_like(q, memory_format=plain)
        dk, dv = (torch.zeros_like(x, memory_format=plain) for x in (k, v))
        for block in ctx.blocks:
            _attend_backward((q, k, v, lse), grad, delta, block, (dq, dk, dv))
        return dq, dk, dv, None


def gathered_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Softmax attention of q (b, n, d) over the keys each block of rows names.

    k (b, m, d), v (b, m, dv) → (b, n, dv). Every row stands in one block (and perhaps in later
    ones that merge) and sees at least one key in each.
    """
    out: Tensor = _GatheredAttention.apply(q, k, v, blocks)  # type: ignore[no-untyped-call]  # torch
    return out
