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

Block = tuple[int, slice, slice, tuple[int, int, int]]


def _blocks(q: Tensor, k: Tensor, rows: int, keep: bool) -> Iterator[Block]:
    """For each block: its sample, its rows, its weights' place in one flat tensor, their shape.

    "Sample" is whatever axis comes first.
    Kept weights lie one block after the other; weights that are not kept share one place.
    """
    samples, heads, n, _ = q.shape
    m = k.shape[2]
    for sample in range(samples):
        for start in range(0, n, rows):
            end = min(n, start + rows)
            shape = (heads, end - start, m)
            first = (sample * n + start) * heads * m if keep else 0
            place = slice(first, first + heads * (end - start) * m)
            yield sample, slice(start, end), place, shape


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
        for i, part, place, shape in _blocks(q, k, rows, keep):
            weights = held[place].view(shape)
            put_product(weights, q[i, :, part], k[i].transpose(1, 2))
            softmax_(weights)
            put_product(into[i, :, part], weights, v[i])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, held = ctx.saved_tensors
        grads = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        buffer = q.new_empty(max(q.shape[:2]) * min(q.shape[2], ctx.rows) * k.shape[2])
        q, k, v, grad, to_q, to_k, to_v = _fewer_first(q, k, v, grad, *grads)
        for i, part, place, shape in _blocks(q, k, ctx.rows, keep=True):
            weights = held[place].view(shape)
            above = grad[i, :, part]
            add_product(to_v[i], weights.transpose(1, 2), above)
            scores = buffer[: place.stop - place.start].view(shape)
            put_product(scores, above, v[i].transpose(1, 2))
            softmax_grad_(scores, weights)
            put_product(to_q[i, :, part], scores, k[i])
            add_product(to_k[i], scores.transpose(1, 2), q[i, :, part])
        return *grads, None, None


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
