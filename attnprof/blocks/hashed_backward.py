"""The backward pass of attention within buckets: scores are computed again, window by window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnprof.blocks.hashed_attention import Attention, Pass, joined_columns, pass_of, spans
from attnprof.blocks.hashed_band import Band
from attnprof.blocks.hashing import Indexes, indexes, mask_table, places_of
from attnprof.counting.hashed import GROUP, ROWS


def sequence_backward(
    attention: Attention,
    saved: tuple[Tensor, ...],
    grad: Tensor,
    dq: Tensor,
    dv: Tensor,
    table: Tensor,
) -> None:
    """One sequence: saved q, v (n, d), buckets, two norms and grad·output (n, 1) → grads."""
    q, v, buckets, *columns = saved
    n, d = q.shape
    at = indexes(attention.plan, buckets)
    joined, norms = joined_columns(q, v, grad)
    stats = torch.cat(columns, 1)
    places = places_of(attention.plan, at.order, attention.rounds)
    tokens = torch.arange(n, device=q.device).expand(attention.rounds, n)
    inverse = places.new_empty(attention.rounds, n).scatter_(1, places, tokens)
    del tokens
    grads = q.new_zeros(n, 3 * d)
    for rounds, span in spans(attention.plan, attention.rounds):
        _backward_rounds(attention, joined, stats, at, (rounds, span), inverse, grads, table)
    _grad_of_queries(joined[:, d : 2 * d], norms, grads, dq)
    dv.copy_(grads[:, 2 * d :])


def _backward_rounds(
    attention: Attention, joined: Tensor, stats: Tensor, at: Indexes,
    span: tuple[range, slice], inverse: Tensor, grads: Tensor, table: Tensor,
) -> None:  # fmt: skip
    plan, (rounds, order) = attention.plan, (span[0], at.order[span[1]])
    gathered = joined.index_select(0, order)
    d = joined.shape[1] // 4
    one = pass_of(plan, attention.sees_itself, table, gathered, at, rounds.start, d)
    inner = slice(plan.back, len(order) - plan.ahead)
    columns = stats.index_select(0, order[inner]).view(-1, ROWS, 3)
    sums = gathered.new_zeros(len(order) // ROWS, ROWS, grads.shape[1])
    for start in range(0, len(columns), GROUP):
        _backward_group(one, start, columns, sums)
    own = sums.view(len(order), -1)[inner].view(len(rounds), plan.rows, -1)
    for place, r in enumerate(rounds):
        grads.add_(own[place].index_select(0, inverse[r]))


def _backward_group(one: Pass, start: int, columns: Tensor, sums: Tensor) -> None:
    """Add what the blocks from ``start`` on give to queries, keys and values (in places)."""
    weights = one.scores(start)
    count, d = len(weights), one.rows.shape[-1]
    blocks, back = slice(start, start + count), one.plan.back
    window = one.windows[blocks]
    share = _softmax(weights, columns[blocks])
    band = Band(weights)
    band.blocks.copy_(weights)
    del weights
    rows = band.rows(d)
    own = band.inside(rows)
    torch.mul(window[:, 3 * d :, back : back + ROWS].transpose(1, 2), share, out=own)
    seen = sums[start : start + count + band.more]
    seen[..., 2 * d :].add_(band.transposed(rows))
    inner = torch.bmm(own, window[:, 2 * d : 3 * d])
    inner.sub_(share.mul_(columns[blocks, :, 2:])).mul_(band.blocks)
    band.blocks.copy_(inner)
    del inner, share
    if not one.sees_itself:
        one.itself(band.blocks).zero_()
    first = back // ROWS
    to_rows = torch.bmm(band.blocks, window[:, d : 2 * d].transpose(1, 2))
    seen[first : first + count, :, :d].copy_(to_rows)
    del to_rows
    own.copy_(one.rows[blocks])
    seen[..., d : 2 * d].add_(band.transposed(rows))


def _softmax(scores: Tensor, columns: Tensor) -> Tensor:
    """Scores become weights of their own window; their share in the softmax over all rounds.

    ``columns`` (g, ROWS, 3): H and T of ``_join_rounds``, and a third.
    """
    share = scores.amax(-1, keepdim=True)
    torch.softmax(scores, -1, out=scores)
    share.sub_(columns[..., :1]).exp_().div_(scores.amax(-1, keepdim=True))
    return share.div_(columns[..., 1:2])


def _grad_of_queries(keys: Tensor, norms: Tensor, grads: Tensor, dq: Tensor) -> None:
    """The gradient as queries plus that through the keys q / (|q| sqrt d)."""
    d = keys.shape[1]
    to_keys = grads[:, d : 2 * d]
    along = (to_keys * keys).sum(-1, keepdim=True).mul_(d)
    to_keys.addcmul_(keys, along, value=-1).div_(norms)
    torch.add(grads[:, :d], to_keys, out=dq)


class _HashedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, v: Tensor, attention: Attention) -> Tensor:
        b, n, _ = q.shape
        out, highest, total = v.new_empty(v.shape), q.new_empty(b, n, 1), q.new_empty(b, n, 1)
        buckets = torch.empty(b, attention.rounds, n, dtype=torch.int32, device=q.device)
        table = mask_table(attention.plan, q)
        for i in range(b):
            attention.hash_into(buckets[i], q[i])
            norms = (highest[i], total[i])
            attention.forward(q[i], v[i], buckets[i], out[i], norms, table)
        ctx.save_for_backward(q, v, buckets, out, highest, total)
        ctx.attention = attention
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        q, v, buckets, out, highest, total = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dv = q.new_empty(q.shape), v.new_empty(v.shape)
        table = mask_table(ctx.attention.plan, q)
        for i in range(q.shape[0]):
            saved = (q[i], v[i], buckets[i], highest[i], total[i], delta[i])
            sequence_backward(ctx.attention, saved, grad[i], dq[i], dv[i], table)
        return dq, dv, None


def hashed_attention(q: Tensor, v: Tensor, attention: Attention) -> Tensor:
    """Reformer's attention of (b, n, d) queries, which are the keys too, over (b, n, d) values."""
    out: Tensor = _HashedAttention.apply(q, v, attention)  # type: ignore[no-untyped-call]  # torch
    return out
