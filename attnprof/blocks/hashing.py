"""Where tokens go: buckets, their sorted order, and the masks of the windows."""

from dataclasses import dataclass
from typing import Any

from attnprof.costs import Number, ceil_div, floor_div, maximum, minimum
from attnprof.ops.functional import arange, copy_in_rows, searchsorted

#: Sorted rows of a block: few enough that a window is hardly longer than what rows may see.
ROWS = 32
#: Blocks of a group: its scores stay in the processor's cache.
GROUP = 64


@dataclass(frozen=True)
class Plan:
    """Tokens sorted by bucket stand in ``blocks`` blocks of ``ROWS``, the last one filled up.

    What a row may see lies at most ``back`` places before its block (own and previous chunk) and
    ``ahead`` after it (the rest of the chunk, none if causal), whatever the buckets are, so every
    block reads one window of fixed length. A pass takes rounds ``together``: as many as make one
    group, and at least one. ``sees_itself``: a row does not only where no other is in sight.
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

    def places(self, rounds: Number) -> Number:
        """Sorted rows of so many rounds, and what windows read beyond both ends."""
        return self.back + rounds * self.rows + self.ahead


def plan_of(
    n: Number, num_buckets: Number, bucket_size: int, causal: bool, sees_itself: bool, rounds: int
) -> Plan:
    """The layout of n tokens in so many rounds."""
    blocks = ceil_div(n, ROWS)
    back = ROWS * minimum(ceil_div(2 * bucket_size - 1, ROWS), blocks - 1)
    ahead = 0 if causal else ROWS * minimum(ceil_div(bucket_size - 1, ROWS), blocks - 1)
    together = maximum(1, floor_div(GROUP, blocks))
    return Plan(
        n, num_buckets, bucket_size, causal, blocks, back, ahead, together, sees_itself, rounds
    )


@dataclass(frozen=True)
class Indexes:
    """Of one sequence, all rounds in a row: whom each place holds, the masks' two table rows.

    A round takes ``plan.rows`` places; windows of the first and the last reach beyond them.
    """

    order: Any
    lower: Any
    upper: Any


def hashed(x: Any, rotations: Any) -> Any:
    """Buckets (n, rounds) of x (n, d): the largest of [xR; -xR] for R (rounds, half, d)."""
    rounds, half, d = rotations.shape
    rotated = x.mm(rotations.view(-1, d).t())
    rotated = rotated.view(-1, rounds, half)
    index = rotated.abs().max(-1, keepdim=True)[1]
    negative = rotated.gather(-1, index) < 0
    del rotated
    return index.add_(negative * half).squeeze(-1)


def indexes(plan: Plan, buckets: Any) -> Indexes:
    """Sort buckets (rounds, n); a token's rank in its bucket says what it may see."""
    rounds, n = buckets.shape
    values, order = buckets.sort(dim=-1, stable=True)
    padded = order.new_zeros(plan.places(rounds))
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
    """(rounds, n): the part of an order that holds tokens."""
    inner = order[plan.back : plan.back + rounds * plan.rows]
    return inner.view(rounds, plan.rows)[:, : plan.seq_len]


def mask_table(plan: Plan, like: Any) -> Any:
    """(2 w + 1, w): row w - l hides the first l of w keys, row 2 w - h all from h on."""
    window = plan.window
    line = like.new_full((3 * window,), float("-inf"))
    line[window : 2 * window].zero_()
    return line.unfold(0, window, 1)
