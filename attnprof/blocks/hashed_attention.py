"""Attention within buckets: sort by bucket, attend in windows, join the rounds.

Sorted by (bucket, position), the tokens a row may see are one interval. Its two ends pick two
rows of a small table of zeros and minus infinities, which the scores are added to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnprof.blocks.hashing import Indexes, hashed, indexes, places_of
from attnprof.counting.hashed import GROUP, HASHED, ROWS, Plan

#: Score of a row with itself: it weighs nothing unless no other token is in sight.
ALONE = -5e4
#: Floor of the norms keys are divided by.
FLOOR = 1e-12


@dataclass(frozen=True)
class Pass:
    """A few rounds of one sequence: rows and windows by block, and what masks them."""

    plan: Plan
    sees_itself: bool
    table: Tensor
    lower: Tensor
    upper: Tensor
    rows: Tensor
    windows: Tensor

    def scores(self, start: int) -> Tensor:
        """Masked scores of the group of blocks from ``start`` on, (g, ROWS, window)."""
        end = min(start + GROUP, len(self.rows))
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


def pass_of(
    plan: Plan, sees_itself: bool, table: Tensor, gathered: Tensor, at: Indexes, first: int, d: int
) -> Pass:
    """Rounds from ``first`` on, whose columns are ``gathered`` (places, …) in sorted order."""
    rows = gathered[plan.back : len(gathered) - plan.ahead, :d].view(-1, ROWS, d)
    windows = gathered.unfold(0, plan.window, ROWS)
    own = slice(first * plan.rows, first * plan.rows + len(rows) * ROWS)
    return Pass(plan, sees_itself, table, at.lower[own], at.upper[own], rows, windows)


def spans(plan: Plan, rounds: int) -> Iterator[tuple[range, slice]]:
    """The rounds of each pass, and the places its windows read."""
    for first in range(0, rounds, plan.together):
        these = range(first, min(first + plan.together, rounds))
        start = first * plan.rows
        yield these, slice(start, start + plan.places(len(these)))


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


def _attend(one: Pass, start: int, mixed: Tensor, logs: Tensor) -> None:
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


def _attend_rounds(one: Pass, order: Tensor, parts: Tensor, sums: Tensor) -> None:
    """Outputs (r, n, d) and log-sum-exps (r, n, 1) of r rounds, back in the order of tokens."""
    rounds, n, d = parts.shape
    mixed = parts.new_empty(rounds * one.plan.blocks, ROWS, d)
    logs = parts.new_empty(rounds * one.plan.blocks, ROWS, 1)
    for start in range(0, len(mixed), GROUP):
        _attend(one, start, mixed, logs)
    places = places_of(one.plan, order, rounds)
    for r in range(rounds):
        parts[r].index_copy_(0, places[r], mixed.view(rounds, -1, d)[r, :n])
        sums[r].index_copy_(0, places[r], logs.view(rounds, -1, 1)[r, :n])


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
        for these, places in spans(self.plan, self.rounds):
            gathered = joined.index_select(0, at.order[places])
            one = pass_of(self.plan, self.sees_itself, table, gathered, at, these.start, d)
            rounds = slice(these.start, these.stop)
            _attend_rounds(one, at.order[places], parts[rounds], sums[rounds])
            del one, gathered
        _join_rounds(parts, sums, out, norms)
