"""Attention within buckets: sort by bucket, attend in windows, join the rounds.

Sorted by (bucket, position), the tokens a row may see are one interval. Its two ends pick two
rows of a small table of zeros and minus infinities, which the scores are added to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.blocks import hashing
from attnprof.costs import Number
from attnprof.ops import functional
from attnprof.ops.loops import each, in_blocks

#: Score of a row with itself: it weighs nothing unless no other token is in sight.
ALONE = -5e4
#: Floor of the norms keys are divided by.
FLOOR = 1e-12
#: Tokens hashed at a time.
HASHED = 512


@dataclass(frozen=True)
class Pass:
    """A few rounds of one sequence: rows and windows by block, and what masks them."""

    plan: hashing.Plan
    table: Any
    lower: Any
    upper: Any
    rows: Any
    windows: Any

    def groups(self) -> Iterator[slice]:
        """Its blocks, as many at a time as fit the cache."""
        return in_blocks(self.rows, self.rows.shape[0], hashing.GROUP)

    def scores(self, blocks: slice) -> Any:
        """Masked scores of a group of blocks, (g, ROWS, window)."""
        d, own = self.rows.shape[-1], slice(blocks.start * hashing.ROWS, blocks.stop * hashing.ROWS)
        scores = self.table.index_select(0, self.lower[own])
        scores.add_(self.table.index_select(0, self.upper[own]))
        scores = scores.view(blocks.stop - blocks.start, hashing.ROWS, self.plan.window)
        functional.add_product(scores, self.rows[blocks], self.windows[blocks, d : 2 * d])
        if not self.plan.sees_itself:
            self.itself(scores).fill_(ALONE)
        return scores

    def itself(self, scores: Any) -> Any:
        """The score of each row with itself."""
        return scores.diagonal(self.plan.back, 1, 2)


def pass_of(
    plan: hashing.Plan, table: Any, gathered: Any, at: hashing.Indexes, rounds: slice, d: Number
) -> Pass:
    """A pass over rounds whose columns are ``gathered`` (places, …) in sorted order."""
    own = slice(rounds.start * plan.rows, rounds.stop * plan.rows)
    inner = gathered[plan.back : gathered.shape[0] - plan.ahead, :d]
    rows = inner.view((rounds.stop - rounds.start) * plan.blocks, hashing.ROWS, d)
    windows = gathered.unfold(0, plan.window, hashing.ROWS)
    return Pass(plan, table, at.lower[own], at.upper[own], rows, windows)


def passes(like: Any, plan: hashing.Plan) -> Iterator[tuple[slice, slice]]:
    """The rounds of each pass, and the places its windows read."""
    for rounds in in_blocks(like, plan.rounds, plan.together):
        start = rounds.start * plan.rows
        yield rounds, slice(start, start + plan.places(rounds.stop - rounds.start))


def joined_columns(q: Any, v: Any, *more: Any) -> tuple[Any, Any]:
    """Queries, keys / sqrt d, values (and more) side by side, and what keys were divided by."""
    n, d = q.shape
    norms = functional.row_norms(q).clamp_(min=FLOOR).mul_(functional.square_root(d))
    joined = q.new_empty(n, (3 + len(more)) * d)
    joined[:, :d] = q
    functional.put_entries(joined[:, d : 2 * d], "div", q, norms)
    for place, part in enumerate((v, *more), 2):
        joined[:, place * d : (place + 1) * d] = part
    return joined, norms


def _attend(one: Pass, blocks: slice, mixed: Any, logs: Any) -> None:
    """Rows' softmax over their window, and its log-sum-exp.

    The largest weight is 1 / the sum of exp(score - largest score).
    """
    scores, d = one.scores(blocks), mixed.shape[-1]
    log_sum_exp = logs[blocks]
    functional.put_along(log_sum_exp, "amax", scores, -1)
    functional.softmax_(scores)
    log_sum_exp.sub_(scores.amax(-1, keepdim=True).log_())
    values = one.windows[blocks, 2 * d : 3 * d].transpose(1, 2)
    functional.put_product(mixed[blocks], scores, values)


def _attend_rounds(one: Pass, order: Any, parts: Any, sums: Any) -> None:
    """Outputs (r, n, d) and log-sum-exps (r, n, 1) of r rounds, back in the order of tokens."""
    rounds, n, d = parts.shape
    mixed = parts.new_empty(rounds * one.plan.blocks, hashing.ROWS, d)
    logs = parts.new_empty(rounds * one.plan.blocks, hashing.ROWS, 1)
    for blocks in one.groups():
        _attend(one, blocks, mixed, logs)
    places = hashing.places_of(one.plan, order, rounds)
    for r in each(parts, 0, rounds):
        parts[r].index_copy_(0, places[r], mixed.view(rounds, one.plan.rows, d)[r, :n])
        sums[r].index_copy_(0, places[r], logs.view(rounds, one.plan.rows, 1)[r, :n])


def _join_rounds(parts: Any, sums: Any, out: Any, highest: Any, total: Any) -> None:
    """Rounds (rounds, n, d) weighted by their log-sum-exp, as one softmax over all of them.

    ``highest`` and ``total`` (n, 1) become the largest log-sum-exp H and the sum T of
    exp(log-sum-exp - H). Backward needs both: H + log T of a token that sees itself alone would be
    ``ALONE`` + log T, where float32 has two digits left for T.
    """
    functional.put_along(highest, "amax", sums, 0)
    sums.sub_(highest).exp_()
    functional.put_along(total, "sum", sums, 0)
    parts.mul_(sums)
    functional.put_along(out, "sum", parts, 0)
    out.div_(total)


def _hash_into(buckets: Any, x: Any, rotations: Any) -> None:
    """Buckets (rounds, n) of x (n, d); one bucket needs no hash."""
    if rotations is None:
        buckets.zero_()
        return
    for part in in_blocks(x, x.shape[0], HASHED):
        buckets[:, part].copy_(hashing.hashed(x[part], rotations).t())


def _attend_sequence(
    q: Any, v: Any, buckets: Any, into: tuple[Any, Any, Any], table: Any, plan: hashing.Plan
) -> None:
    """One sequence: q, v (n, d) → the output (n, d) and the two norms (n, 1) of its softmax."""
    (n, d), rounds = q.shape, plan.rounds
    at = hashing.indexes(plan, buckets)
    joined = joined_columns(q, v)[0]
    parts, sums = q.new_empty(rounds, n, d), q.new_empty(rounds, n, 1)
    for these, places in passes(q, plan):
        gathered = joined.index_select(0, at.order[places])
        one = pass_of(plan, table, gathered, at, these, d)
        _attend_rounds(one, at.order[places], parts[these], sums[these])
        del one, gathered
    _join_rounds(parts, sums, *into)


def attended(q: Any, v: Any, rotations: Any, *, plan: hashing.Plan) -> tuple[Any, tuple[Any, ...]]:
    """Sequence by sequence: q, v (b, n, d), rotations (rounds, half, d) or None → (b, n, d)."""
    b, n, _ = q.shape
    out, highest, total = v.new_empty(v.shape), q.new_empty(b, n, 1), q.new_empty(b, n, 1)
    buckets = functional.empty_int32(q, b, plan.rounds, n)
    table = hashing.mask_table(plan, q)
    for i in each(q, 0, b):
        _hash_into(buckets[i], q[i], rotations)
        into = out[i], highest[i], total[i]
        _attend_sequence(q[i], v[i], buckets[i], into, table, plan)
    return out, (q, v, buckets, out, highest, total)
