"""Kernel attention with a backward pass that recomputes features instead of keeping them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnprof.blocks.features import FeatureMap, key_scale
from attnprof.blocks.scan import (
    State,
    causal_forward,
    decay,
    empty_state,
    full_forward,
    keys_of,
    masked,
    parts,
    push,
    with_ones,
)


@dataclass
class Saved:
    """What a forward pass left: inputs, output rows, their totals and scales."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    totals: Tensor
    tops: Tensor | None
    maps: FeatureMap
    rows: int

    def sums_grad(self, grad: Tensor, part: slice) -> Tensor:
        """(batch, c, dv + 1): gradient of a row's sums from that of the row."""
        share = grad[:, part] / self.totals[:, part]
        against = (share * self.out[:, part]).sum(-1, keepdim=True).mul_(-1.0)
        return torch.cat((share, against), -1)

    def tops_of(self, part: slice) -> Tensor | None:
        """Scales of a chunk's rows."""
        return None if self.tops is None else self.tops[:, part]

    def top_before(self, part: slice, first: Tensor | None) -> Tensor | None:
        """Scale of the last row before a chunk; ``first`` before the first row."""
        if self.tops is None or part.start == 0:
            return first
        return self.tops[:, part.start - 1 : part.start]


def put_key_grads(
    s: Saved, part: slice, grads: tuple[Tensor, Tensor], rows: Tensor, into: tuple[Tensor, Tensor]
) -> None:
    """Keep a block's gradients of keys and of [V, 1] rows; a key's scale pulls on it too."""
    keys_grad, rows_grad = grads
    into[1][:, part] = rows_grad[..., :-1]
    if s.maps.softmax:
        k = s.k[:, part]
        scale_grad = rows.mul_(rows_grad).sum(-1, keepdim=True).mul_(1 / math.sqrt(k.shape[-1]))
        keys_grad.sub_(k * scale_grad)
    into[0][:, part] = keys_grad


def causal_query_grads(s: Saved, grad: Tensor) -> Tensor:
    """Forward rescan: (batch, n, d) gradient of the queries."""
    queries_grad = torch.empty_like(s.q, memory_format=torch.contiguous_format)
    width = s.maps.width(s.q)
    state = empty_state(s.q.shape[0], width, s.v.shape[-1], s.v, s.maps.softmax)
    for part in parts(s.q.shape[1], s.rows):
        queries_grad[:, part] = _causal_query_chunk(s, grad, part, state)
    return queries_grad


def _causal_query_chunk(s: Saved, grad: Tensor, part: slice, state: State) -> Tensor:
    keys, scale = keys_of(s.k[:, part], s.maps)
    rows = with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops = s.tops_of(part)
    factors = None if scale is None or tops is None else decay(scale, tops)
    weights_grad = masked(torch.bmm(sums_grad, rows.transpose(1, 2)), factors)
    del factors
    features_grad = torch.bmm(weights_grad, keys)
    del weights_grad
    if tops is not None and state.top is not None:
        sums_grad.mul_((state.top - tops).exp_())
    features_grad.add_(torch.bmm(sums_grad, state.like(keys).transpose(1, 2)))
    push(state, keys, rows, scale, None if tops is None else tops[:, -1:])
    del keys, rows, sums_grad
    return s.maps.input_grad(features_grad, s.maps.slope(s.q[:, part]))


def causal_key_grads(s: Saved, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Reverse scan: (batch, n, ·) gradients of keys and values."""
    into = (
        torch.empty_like(s.k, memory_format=torch.contiguous_format),
        torch.empty_like(s.v, memory_format=torch.contiguous_format),
    )
    width = s.maps.width(s.q)
    later = empty_state(s.q.shape[0], width, s.v.shape[-1], s.v, s.maps.softmax)
    for part in reversed(list(parts(s.q.shape[1], s.rows))):
        _causal_key_chunk(s, grad, part, later, into)
    return into


def _causal_key_chunk(
    s: Saved, grad: Tensor, part: slice, later: State, into: tuple[Tensor, Tensor]
) -> None:
    queries = s.maps.values(s.q[:, part])[0]
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    scale = None if top is None else key_scale(s.k[:, part], top)
    rows = with_ones(s.v[:, part])
    sums_grad = s.sums_grad(grad, part)
    tops, before = s.tops_of(part), s.top_before(part, later.top)
    sums = later.like(rows)
    rows_grad = torch.bmm(keys, sums)
    factors, held = None, rows
    if scale is not None and tops is not None:
        factors = decay(scale, tops)
        share = (scale - tops[:, -1:]).exp_()
        rows_grad.mul_(share)
        held = rows * share
    weights = masked(torch.bmm(queries, keys.transpose(1, 2)), factors)
    del keys
    rows_grad.add_(torch.bmm(weights.transpose(1, 2), sums_grad))
    del weights
    weights_grad = masked(torch.bmm(sums_grad, rows.transpose(1, 2)), factors)
    del factors
    features_grad = torch.bmm(weights_grad.transpose(1, 2), queries)
    del weights_grad
    features_grad.add_(torch.bmm(held, sums.transpose(1, 2)))
    del held, sums
    if tops is not None and before is not None:
        sums_grad.mul_((before - tops).exp_())
        later.sums.mul_((before - tops[:, -1:]).exp_())
    later.add(queries, sums_grad)
    del queries, sums_grad
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


def full_grads(s: Saved, grad: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values: one pass over queries, one over keys."""
    into = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (s.q, s.k, s.v)]
    seen = empty_state(s.q.shape[0], s.maps.width(s.q), s.v.shape[-1], s.v, False)
    for part in parts(s.q.shape[1], s.rows):
        into[0][:, part] = _full_query_block(s, grad, part, state, seen)
    for part in parts(s.k.shape[1], s.rows):
        _full_key_block(s, part, state, seen, (into[1], into[2]))
    return into[0], into[1], into[2]


def _full_query_block(s: Saved, grad: Tensor, part: slice, state: State, seen: State) -> Tensor:
    queries, slope, _ = s.maps.values_and_slope(s.q[:, part])
    sums_grad = s.sums_grad(grad, part)
    seen.add(queries, sums_grad)
    del queries
    features_grad = torch.bmm(sums_grad, state.like(sums_grad).transpose(1, 2))
    del sums_grad
    return s.maps.input_grad(features_grad, slope)


def _full_key_block(
    s: Saved, part: slice, state: State, seen: State, into: tuple[Tensor, Tensor]
) -> None:
    keys, slope, top = s.maps.values_and_slope(s.k[:, part])
    rows = with_ones(s.v[:, part])
    sums = seen.like(rows)
    rows_grad = torch.bmm(keys, sums)
    del keys
    held = rows
    if top is not None and state.top is not None:
        share = (key_scale(s.k[:, part], top) - state.top).exp_()
        rows_grad.mul_(share)
        held = rows * share
    features_grad = torch.bmm(held, sums.transpose(1, 2))
    del held, sums
    keys_grad = s.maps.input_grad(features_grad, slope)
    del features_grad, slope
    put_key_grads(s, part, (keys_grad, rows_grad), rows, into)


class _KernelAttention(torch.autograd.Function):
    """Inputs q, k, v, projection; then softmax, causal, rows a block, floor, keep."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, projection: Tensor | None,
        softmax: bool, causal: bool, rows: int, floor: float, keep: bool,
    ) -> Tensor:  # fmt: skip
        maps = FeatureMap(projection, softmax, q.shape[0])
        run = causal_forward if causal else full_forward
        result, state = run(q, k, v, maps, rows, floor, keep)
        if keep:
            held = (None, None) if state is None else (state.sums, state.top)
            ctx.save_for_backward(
                q, k, v, projection, result.out, result.totals, result.tops, *held
            )
            ctx.asked = (softmax, causal, rows)
        return result.out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, projection, out, totals, tops, sums, top = ctx.saved_tensors
        softmax, causal, rows = ctx.asked
        maps = FeatureMap(projection, softmax, q.shape[0])
        saved = Saved(q, k, v, out, totals, tops, maps, rows)
        if causal:
            grads = (causal_query_grads(saved, grad), *causal_key_grads(saved, grad))
        else:
            grads = full_grads(saved, grad, State(sums, top))
        return (*grads, *(None,) * 6)


def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, projection: Tensor | None = None, *,
    softmax: bool = False, causal: bool = False, rows: int = 128, floor: float = 0.0,
) -> Tensor:  # fmt: skip
    """Rows (batch, n, dv) of kernel attention; q (batch, n, d), k (batch, m, d), v (batch, m, dv).

    ``projection`` and ``softmax`` choose the features (:class:`FeatureMap`), ``rows`` the tokens
    of a block, ``floor`` is added to each denominator. Live memory beyond inputs and output is
    that of one block and one state.
    """
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    asked = (softmax, causal, rows, floor, keep)
    out: Tensor = _KernelAttention.apply(q, k, v, projection, *asked)  # type: ignore[no-untyped-call]  # torch
    return out
