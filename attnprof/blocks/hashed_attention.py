"""Attention within buckets: sort by bucket, attend in windows, join the rounds.

Sorted by (bucket, position), the tokens a row may see are one interval. Its two ends pick two
rows of a small table of zeros and minus infinities, which the scores are added to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.blocks.hashing import Indexes, hashed, indexes
from attnprof.counting.hashed import GROUP, HASHED, ROWS, Plan

#: Score of a row with itself: it weighs nothing unless no other token is in sight.
ALONE = -5e4
#: Floor of the norms keys are divided by.
FLOOR = 1e-12


@dataclass(frozen=True)
class Round:
    """One round of one sequence: rows and windows by block, and what masks them."""

    plan: Plan
    sees_itself: bool
    table: Tensor
    lower: Tensor
    upper: Tensor
    rows: Tensor
    windows: Tensor

    def scores(self, start: int) -> Tensor:
        """Masked scores of the group of blocks from ``start`` on, (g, ROWS, window)."""
        end = min(start + GROUP, self.plan.blocks)
        flat = slice(start * ROWS, end * ROWS)
        scores = self.table.index_select(0, self.lower[flat])
        scores.add_(self.table.index_select(0, self.upper[flat]))
        d = self.rows.shape[-1]
        scores = scores.view(end - start, ROWS, -1)
        keys = self.windows[start:end, d : 2 * d]
        torch.baddbmm(scores, self.rows[start:end], keys, out=scores)
        if not self.sees_itself:
            self.itself(scores).fill_(ALONE)
        return scores

    def itself(self, scores: Tensor) -> Tensor:
        """The score of each row with itself."""
        return scores.diagonal(self.plan.back, 1, 2)


def round_of(
    plan: Plan, sees_itself: bool, table: Tensor, gathered: Tensor, at: Indexes, r: int, d: int
) -> Round:
    """Round ``r`` of a sequence whose columns are ``gathered`` (places, …) in sorted order."""
    rows = gathered[plan.back : plan.back + plan.rows, :d].view(plan.blocks, ROWS, d)
    windows = gathered.unfold(0, plan.window, ROWS)
    return Round(plan, sees_itself, table, at.lower[r], at.upper[r], rows, windows)


def joined_columns(q: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    """Queries, keys / sqrt d, values (and more) side by side, and what keys were divided by."""
    n, d = q.shape
    norms = torch.linalg.vector_norm(q, dim=-1, keepdim=True).clamp_min_(FLOOR).mul_(math.sqrt(d))
    joined = q.new_empty(n, (3 + len(more)) * d)
    joined[:, :d] = q
    torch.div(q, norms, out=joined[:, d : 2 * d])
    for place, part in enumerate((v, *more), 2):
        joined[:, place * d : (place + 1) * d] = part
    return joined, norms


def _attend(one: Round, start: int, mixed: Tensor, logs: Tensor) -> None:
    """Blocks from ``start`` on: rows' softmax over their window, and its log-sum-exp.

    The largest weight is 1 / the sum of exp(score - largest score).
    """
    scores = one.scores(start)
    blocks = slice(start, start + len(scores))
    d = mixed.shape[-1]
    lse = torch.amax(scores, -1, keepdim=True, out=logs[blocks])
    torch.softmax(scores, -1, out=scores)
    lse.sub_(scores.amax(-1, keepdim=True).log_())
    values = one.windows[blocks, 2 * d : 3 * d].transpose(1, 2)
    torch.bmm(scores, values, out=mixed[blocks])


def _attend_round(one: Round, order: Tensor, part: Tensor, sums: Tensor) -> None:
    """One round's outputs (n, d) and log-sum-exps (n, 1), back in the order of tokens."""
    n, d = part.shape
    mixed = part.new_empty(one.plan.blocks, ROWS, d)
    logs = part.new_empty(one.plan.blocks, ROWS, 1)
    for start in range(0, one.plan.blocks, GROUP):
        _attend(one, start, mixed, logs)
    places = order[one.plan.back : one.plan.back + n]
    part.index_copy_(0, places, mixed.view(-1, d)[:n])
    sums.index_copy_(0, places, logs.view(-1, 1)[:n])


def _join_rounds(parts: Tensor, sums: Tensor, out: Tensor, norms: tuple[Tensor, Tensor]) -> None:
    """Rounds (rounds, n, d) weighted by their log-sum-exp, as one softmax over all of them.

    ``norms`` (n, 1) become the largest log-sum-exp H and the sum T of exp(log-sum-exp - H).
    Backward needs both: H + log T of a token that sees itself alone would be ``ALONE`` + log T,
    where float32 has two digits left for T.
    """
    highest = torch.amax(sums, 0, out=norms[0])
    sums.sub_(highest).exp_()
    torch.sum(sums, 0, out=norms[1])
    parts.mul_(sums)
    torch.sum(parts, 0, out=out)
    out.div_(norms[1])


@dataclass(frozen=True)
class Attention:
    """Hashed attention of one call."""

    plan: Plan
    sees_itself: bool
    rotations: Tensor | None
    rounds: int

    def hash_into(self, buckets: Tensor, x: Tensor) -> None:
        """Buckets (rounds, n) of x (n, d); one bucket needs no hash."""
        if self.rotations is None:
            buckets.zero_()
            return
        for start in range(0, x.shape[0], HASHED):
            part = slice(start, start + HASHED)
            buckets[:, part].copy_(hashed(x[part], self.rotations).t())

    def forward(
        self, q: Tensor, v: Tensor, buckets: Tensor, out: Tensor, norms: tuple[Tensor, Tensor],
        table: Tensor,
    ) -> None:  # fmt: skip
        """One sequence: q, v (n, d) → out (n, d) and the two norms (n, 1) of its softmax."""
        n, d = q.shape
        at = indexes(self.plan, buckets)
        joined = joined_columns(q, v)[0]
        parts, sums = q.new_empty(self.rounds, n, d), q.new_empty(self.rounds, n, 1)
        for r in range(self.rounds):
            gathered = joined.index_select(0, at.order[r])
            one = round_of(self.plan, self.sees_itself, table, gathered, at, r, d)
            _attend_round(one, at.order[r], parts[r], sums[r])
            del one, gathered
        _join_rounds(parts, sums, out, norms)
