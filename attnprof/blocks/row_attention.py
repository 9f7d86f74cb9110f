"""Softmax attention a block of query rows at a time, heads read where a projection left them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnprof.blocks.autocast import apply
from attnprof.blocks.in_place import add_product, put_product, softmax_, softmax_grad_
from attnprof.counting.row_attention import ROWS

Block = tuple[slice, slice, tuple[int, int, int]]


def _blocks(q: Tensor, m: int, sample: int, rows: int, keep: bool) -> Iterator[Block]:
    """For each block: its rows, its weights' place in one flat tensor, their shape.

    Kept weights lie one block after the other; weights that are not kept share one place.
    "Sample" is whatever axis comes first.
    """
    _, heads, n, _ = q.shape
    for start in range(0, n, rows):
        end = min(n, start + rows)
        shape = (heads, end - start, m)
        first = (sample * n + start) * heads * m if keep else 0
        yield slice(start, end), slice(first, first + heads * (end - start) * m), shape


def _fewer_first(*operands: Tensor) -> list[Tensor]:
    """(samples, heads, …) or (heads, samples, …): a product takes all of the more numerous."""
    b, h = operands[0].shape[:2]
    return [x.transpose(0, 1) for x in operands] if b > h else list(operands)


class _RowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: int, keep: bool) -> Tensor:
        b, h, n, _ = q.shape
        m = k.shape[2]
        out = torch.empty_like(q)
        held = q.new_empty(b * h * n * m if keep else max(b, h) * min(n, rows) * m)
        if keep:
            ctx.save_for_backward(q, k, v, held)
            ctx.rows = rows
        q, k, v, into = _fewer_first(q, k, v, out)
        samples = zip(q, k.transpose(2, 3), v, into, strict=True)
        for i, (queries, keys, values, results) in enumerate(samples):
            for part, place, shape in _blocks(q, m, i, rows, keep):
                weights = held[place].view(shape)
                put_product(weights, queries[:, part], keys)
                softmax_(weights)
                put_product(results[:, part], weights, values)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, held = ctx.saved_tensors
        grads = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        buffer = q.new_empty(max(q.shape[:2]) * min(q.shape[2], ctx.rows) * k.shape[2])
        q, *others = _fewer_first(q, k, v, grad, *grads)
        for i, sample in enumerate(zip(q, *others, strict=True)):
            for part, place, shape in _blocks(q, k.shape[2], i, ctx.rows, keep=True):
                weights = held[place].view(shape)
                scores = buffer[: place.stop - place.start].view(shape)
                _block_grads(sample, part, weights, scores)
        return *grads, None, None


def _block_grads(sample: tuple[Tensor, ...], part: slice, weights: Tensor, scores: Tensor) -> None:
    """Put or add a block's gradients; ``scores`` is memory for its scores' own."""
    q, k, v, grad, to_q, to_k, to_v = sample
    above = grad[:, part]
    add_product(to_v, weights.transpose(1, 2), above)
    put_product(scores, above, v.transpose(1, 2))
    softmax_grad_(scores, weights)
    put_product(to_q[:, part], scores, k)
    add_product(to_k, scores.transpose(1, 2), q[:, part])


def row_attention(q: Tensor, k: Tensor, v: Tensor, rows: int = ROWS) -> Tensor:
    """softmax(q kᵀ) v, scores unscaled; q (b, h, n, d), k (b, h, m, d), v (b, h, m, d).

    Takes ``rows`` queries of one sample at a time, all heads together, or of one head, all samples
    together, whichever is fewer products. Results and gradients are
    laid out as their operands: where these lie as a projection left them, splitting and merging
    heads copies nothing in either pass. Without autograd live memory beyond inputs and output is
    that of one block of weights; with it all weights are kept.
    """
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    out: Tensor = apply(_RowAttention, q, k, v, rows, keep)
    return out
