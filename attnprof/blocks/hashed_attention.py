"""Attention within buckets: sort by bucket, attend in windows, join the rounds.

Buckets come from a hash. Sorted by (bucket, position), the tokens a row may see are one interval.
Its two ends pick two rows of a small table of zeros and minus infinities, which the scores are
added to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.costs import Number, ceil_div, floor_div, maximum, minimum
from attnprof.ops import functional
from attnprof.ops.functional import arange, copy_in_rows, searchsorted
from attnprof.ops.loops import each, in_blocks

#: Sorted rows of a block: few, so that a window is hardly longer than the keys that a row may see.
ROWS = 32
#: Blocks of a group: its scores stay in the processor's cache.
GROUP = 64


@dataclass(frozen=True)
class Plan:
    """Tokens sorted by bucket stand in ``blocks`` blocks of ``ROWS``, the last one filled up.

    A row sees keys at most ``back`` places before its block (own and previous chunk) and ``ahead``
    after it (the rest of the chunk, none if causal), whatever the buckets are, so every
    block reads one window of fixed length. A pass takes rounds ``together``: as many as make one
    group, and at least one. ``sees_itself``: False if a row sees itself only without other tokens.
    """

    seq_len: Number
    num_buckets: Number
    bucket_size: int
    causal: bool
    blocks: Number
    back: Number
    ahead: Number
    together: Number
    sees_itself: bool
    rounds: int

    @property
    def window(self) -> Number:
        """Keys a block reads."""
        return self.back + ROWS + self.ahead

    @property
    def rows(self) -> Number:
        """Sorted rows, filled up to whole blocks."""
        return self.blocks * ROWS

    def place_count(self, rounds: Number) -> Number:
        """Return the number of sorted rows of rounds, and of places read beyond both ends."""
        return self.back + rounds * self.rows + self.ahead


def plan_of(
    n: Number, num_buckets: Number, bucket_size: int, causal: bool, sees_itself: bool, rounds: int
) -> Plan:
    """Return the layout of n tokens in ``rounds`` rounds."""
    blocks = ceil_div(n, ROWS)
    back = ROWS * minimum(ceil_div(2 * bucket_size - 1, ROWS), blocks - 1)
    ahead = 0 if causal else ROWS * minimum(ceil_div(bucket_size - 1, ROWS), blocks - 1)
    together = maximum(1, floor_div(GROUP, blocks))
    return Plan(
        n, num_buckets, bucket_size, causal, blocks, back, ahead, together, sees_itself, rounds
    )


@dataclass(frozen=True)
class Indexes:
    """Index tensors of one sequence, all rounds in a row: the token at each place, its mask's rows.

    A round takes ``plan.rows`` places; windows of the first and the last reach beyond them.
    """

    order: Any
    lower: Any
    upper: Any


def hashed(x: Any, rotations: Any) -> Any:
    """Return buckets (n, rounds) of x (n, d): the largest of [xR; -xR] for R (rounds, half, d)."""
    rounds, half, d = rotations.shape
    rotated = x.mm(rotations.view(-1, d).t())
    rotated = rotated.view(-1, rounds, half)
    index = rotated.abs().max(-1, keepdim=True)[1]
    negative = rotated.gather(-1, index) < 0
    del rotated
    return index.add_(negative * half).squeeze(-1)


def indexes(plan: Plan, buckets: Any) -> Indexes:
    """Sort buckets (rounds, n); a token's rank in its bucket decides which keys it sees."""
    rounds, n = buckets.shape
    values, order = buckets.sort(dim=-1, stable=True)
    padded = order.new_zeros(plan.place_count(rounds))
    places_of(plan, padded, rounds).copy_(order)
    del order
    edges = arange(buckets, plan.num_buckets + 1)
    bounds = searchsorted(values, edges.repeat(rounds, 1))
    bucket = values.long()
    del values, edges
    rank = arange(padded, n) - bounds.gather(1, bucket)
    inside = rank.remainder(plan.bucket_size)
    base = arange(padded, plan.rows).remainder_(ROWS).neg_()
    base.add_(plan.ahead + ROWS)
    upper = (base + (plan.window - 1)).expand(rounds, -1)
    if not plan.causal:
        later = bounds.gather(1, bucket.add_(1)).sub_(arange(padded, n))
        rest = later.minimum(plan.bucket_size - inside)
        del later
    upper = copy_in_rows(upper)
    if not plan.causal:
        upper[:, :n].sub_(rest).add_(1)
        del rest
    del bucket, bounds
    rank = rank.minimum(inside.add_(plan.bucket_size))
    del inside
    lower = base.repeat(rounds, 1)
    lower[:, :n].add_(rank)
    return Indexes(padded, lower.view(-1), upper.view(-1))


def places_of(plan: Plan, order: Any, rounds: Any) -> Any:
    """Return the places (rounds, n) of an order that hold tokens, without its padding."""
    inner = order[plan.back : plan.back + rounds * plan.rows]
    return inner.view(rounds, plan.rows)[:, : plan.seq_len]


def mask_table(plan: Plan, like: Any) -> Any:
    """Return (2 w + 1, w): row w - l hides the first l of w keys, row 2 w - h all from h on."""
    window = plan.window
    line = like.new_full((3 * window,), float("-inf"))
    line[window : 2 * window].zero_()
    return line.unfold(0, window, 1)


#: Score of a row with itself: its weight is 0 unless the row sees no other token.
ALONE = -5e4
#: Floor of the norms keys are divided by.
FLOOR = 1e-12
#: Tokens hashed at a time.
HASHED = 512


@dataclass(frozen=True)
class Pass:
    """A few rounds of one sequence: rows and windows by block, and their masks."""

    plan: Plan
    table: Any
    lower: Any
    upper: Any
    rows: Any
    windows: Any

    def groups(self) -> Iterator[slice]:
        """Yield the pass's blocks, as many at a time as fit the cache."""
        return in_blocks(self.rows, self.rows.shape[0], GROUP)

    def scores(self, blocks: slice) -> Any:
        """Return masked scores of a group of blocks, (g, ROWS, window)."""
        d, rows = self.rows.shape[-1], slice(blocks.start * ROWS, blocks.stop * ROWS)
        scores = self.table.index_select(0, self.lower[rows])
        scores.add_(self.table.index_select(0, self.upper[rows]))
        scores = scores.view(blocks.stop - blocks.start, ROWS, self.plan.window)
        functional.add_product(scores, self.rows[blocks], self.windows[blocks, d : 2 * d])
        if not self.plan.sees_itself:
            self.itself(scores).fill_(ALONE)
        return scores

    def itself(self, scores: Any) -> Any:
        """Return the score of each row with itself."""
        return scores.diagonal(self.plan.back, 1, 2)


def pass_of(plan: Plan, table: Any, gathered: Any, at: Indexes, rounds: slice, d: Number) -> Pass:
    """Return a pass over rounds whose columns are ``gathered`` (places, …) in sorted order."""
    span = slice(rounds.start * plan.rows, rounds.stop * plan.rows)
    inner = gathered[plan.back : gathered.shape[0] - plan.ahead, :d]
    rows = inner.view((rounds.stop - rounds.start) * plan.blocks, ROWS, d)
    windows = gathered.unfold(0, plan.window, ROWS)
    return Pass(plan, table, at.lower[span], at.upper[span], rows, windows)


def passes(like: Any, plan: Plan) -> Iterator[tuple[slice, slice]]:
    """Yield the rounds of each pass, and the places its windows read."""
    for rounds in in_blocks(like, plan.rounds, plan.together):
        start = rounds.start * plan.rows
        yield rounds, slice(start, start + plan.place_count(rounds.stop - rounds.start))


def joined_columns(q: Any, v: Any, *more: Any) -> tuple[Any, Any]:
    """Return queries, keys / (norm·sqrt d), values (and more) side by side, and the divisors."""
    n, d = q.shape
    norms = functional.row_norms(q).clamp_(min=FLOOR).mul_(functional.square_root(d))
    joined = q.new_empty(n, (3 + len(more)) * d)
    joined[:, :d] = q
    functional.put_entries(joined[:, d : 2 * d], "div", q, norms)
    for place, part in enumerate((v, *more), 2):
        joined[:, place * d : (place + 1) * d] = part
    return joined, norms


def _attend(one: Pass, blocks: slice, mixed: Any, logs: Any) -> None:
    """Write rows' softmax over their window, and its log-sum-exp.

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
    """Write outputs (r, n, d) and log-sum-exps (r, n, 1) of r rounds in the order of tokens."""
    rounds, n, d = parts.shape
    mixed = parts.new_empty(rounds * one.plan.blocks, ROWS, d)
    logs = parts.new_empty(rounds * one.plan.blocks, ROWS, 1)
    for blocks in one.groups():
        _attend(one, blocks, mixed, logs)
    places = places_of(one.plan, order, rounds)
    for r in each(parts, 0, rounds):
        parts[r].index_copy_(0, places[r], mixed.view(rounds, one.plan.rows, d)[r, :n])
        sums[r].index_copy_(0, places[r], logs.view(rounds, one.plan.rows, 1)[r, :n])


def _join_rounds(parts: Any, sums: Any, out: Any, highest: Any, total: Any) -> None:
    """Add up rounds (rounds, n, d), weighted by their log-sum-exp, as one softmax over all rounds.

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
    """Write buckets (rounds, n) of x (n, d); one bucket needs no hash."""
    if rotations is None:
        buckets.zero_()
        return
    for part in in_blocks(x, x.shape[0], HASHED):
        buckets[:, part].copy_(hashed(x[part], rotations).t())


def _attend_sequence(
    q: Any, v: Any, buckets: Any, into: tuple[Any, Any, Any], table: Any, plan: Plan
) -> None:
    """Write one sequence's output (n, d) and two norms (n, 1) of its softmax, from q, v (n, d)."""
    (n, d), rounds = q.shape, plan.rounds
    at = indexes(plan, buckets)
    joined = joined_columns(q, v)[0]
    parts, sums = q.new_empty(rounds, n, d), q.new_empty(rounds, n, 1)
    for these, places in passes(q, plan):
        gathered = joined.index_select(0, at.order[places])
        one = pass_of(plan, table, gathered, at, these, d)
        _attend_rounds(one, at.order[places], parts[these], sums[these])
        del one, gathered
    _join_rounds(parts, sums, *into)


def attended(q: Any, v: Any, rotations: Any, *, plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """Attend by sequences: q, v (b, n, d), rotations (rounds, half, d) or None → (b, n, d)."""
    b, n, _ = q.shape
    out, highest, total = v.new_empty(v.shape), q.new_empty(b, n, 1), q.new_empty(b, n, 1)
    buckets = functional.empty_int32(q, b, plan.rounds, n)
    table = mask_table(plan, q)
    for i in each(q, 0, b):
        _hash_into(buckets[i], q[i], rotations)
        into = out[i], highest[i], total[i]
        _attend_sequence(q[i], v[i], buckets[i], into, table, plan)
    return out, (q, v, buckets, out, highest, total)
