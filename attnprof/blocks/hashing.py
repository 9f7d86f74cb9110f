"""Where tokens go: buckets, their sorted order, and the masks of the windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.counting.hashed import ROWS, Plan


@dataclass(frozen=True)
class Indexes:
    """Of one sequence, all rounds in a row: whom each place holds, the masks' two table rows.

    A round takes ``plan.rows`` places; windows of the first and the last reach beyond them.
    """

    order: Tensor
    lower: Tensor
    upper: Tensor


def hashed(x: Tensor, rotations: Tensor) -> Tensor:
    """Buckets (n, rounds) of x (n, d): the largest of [xR; -xR] for R (rounds, half, d)."""
    rounds, half, d = rotations.shape
    turned = torch.mm(x, rotations.view(-1, d).t()).view(-1, rounds, half)
    index = turned.abs().max(-1, keepdim=True)[1]
    negative = turned.gather(-1, index) < 0
    del turned
    return index.add_(negative * half).squeeze(-1)


def indexes(plan: Plan, buckets: Tensor) -> Indexes:
    """Sort buckets (rounds, n); a token's rank in its bucket says what it may see."""
    rounds, n = buckets.shape
    device = buckets.device
    values, order = torch.sort(buckets, dim=-1, stable=True)
    places = plan.back + rounds * plan.rows + plan.ahead  # in full: Dynamo inlines no method here
    padded = order.new_zeros(places)
    places_of(plan, padded, rounds).copy_(order)
    del order
    edges = torch.arange(plan.num_buckets + 1, dtype=buckets.dtype, device=device)
    bounds = torch.searchsorted(values, edges.repeat(rounds, 1))
    bucket = values.long()
    del values, edges
    rank = torch.arange(n, device=device) - bounds.gather(1, bucket)
    inside = rank.remainder(plan.bucket_size)
    base = torch.arange(plan.rows, device=device).remainder_(ROWS).neg_()
    base.add_(plan.ahead + ROWS)
    upper = (base + (plan.window - 1)).expand(rounds, -1)
    if not plan.causal:
        later = bounds.gather(1, bucket.add_(1)).sub_(torch.arange(n, device=device))
        rest = torch.minimum(later, plan.bucket_size - inside)
        del later
    upper = upper.clone(memory_format=torch.contiguous_format)
    if not plan.causal:
        upper[:, :n].sub_(rest).add_(1)
        del rest
    del bucket, bounds
    rank = torch.minimum(rank, inside.add_(plan.bucket_size))
    del inside
    lower = base.repeat(rounds, 1)
    lower[:, :n].add_(rank)
    return Indexes(padded, lower.view(-1), upper.view(-1))


def places_of(plan: Plan, order: Tensor, rounds: int) -> Tensor:
    """(rounds, n): the part of an order that holds tokens."""
    inner = order[plan.back : plan.back + rounds * plan.rows]
    return inner.view(rounds, plan.rows)[:, : plan.seq_len]


def mask_table(plan: Plan, like: Tensor) -> Tensor:
    """(2 w + 1, w): row w - l hides the first l of w keys, row 2 w - h all from h on."""
    window = plan.window
    line = like.new_full((3 * window,), float("-inf"))
    line[window : 2 * window].zero_()
    return line.unfold(0, window, 1)
