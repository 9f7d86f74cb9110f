"""The backward pass of attention within buckets: scores are computed again, window by window."""

from typing import Any

from attnprof.blocks.hashed_attention import (
    ROWS,
    Indexes,
    Pass,
    Plan,
    attended,
    indexes,
    joined_columns,
    mask_table,
    pass_of,
    passes,
    places_of,
)
from attnprof.costs import exact_div
from attnprof.ops.function import Function
from attnprof.ops.functional import arange, join, put_entries, softmax_
from attnprof.ops.loops import each


class Band:
    """Weights of blocks over overlapping windows, stored so that their transpose is one product.

    Block b of ``ROWS`` rows has the window of places b·ROWS … b·ROWS + w - 1. Its weight of row r
    and place p stands at r·w + p, rows and places counted over all blocks. So the weights a block
    of places gets from all rows that see it are a matrix too, of w rows: gradients of keys and
    values need no sum over shifted windows.

    Memory for weights like ``like`` (g, ROWS, w), zeros between and around.

    ``blocks`` (g, ROWS, w) is the same by blocks of rows, ``places`` (g + more, w, ROWS) by
    blocks of places, of which there are ``more`` = w / ROWS - 1 in addition.
    """

    def __init__(self, like: Any) -> None:
        self.count, _, window = like.shape
        self.more = exact_div(window, ROWS) - 1
        self.padded = self.count + 2 * self.more
        step = ROWS * (window + 1)
        memory = like.new_zeros(self.padded * step)
        self.blocks = memory.as_strided(like.shape, (step, window, 1), self.more * step)
        shape = (self.count + self.more, window, ROWS)
        self.places = memory.as_strided(shape, (step, window, 1), self.more * ROWS)

    def rows(self, width: Any) -> Any:
        """Return zeros for rows (…, width) of all blocks, with as many around as windows reach."""
        return self.blocks.new_zeros(self.padded * ROWS, width)

    def inside(self, rows: Any) -> Any:
        """Return (g, ROWS, width): the blocks' own rows in the result of :meth:`rows`."""
        start = self.more * ROWS
        return rows[start : start + self.count * ROWS].view(self.count, ROWS, -1)

    def transposed(self, rows: Any) -> Any:
        """Return (g + more, ROWS, width): weightsᵀ rows, by blocks of places."""
        width = rows.shape[-1]
        shape = (*self.places.shape[:2], width)
        return self.places.transpose(1, 2).bmm(rows.as_strided(shape, (ROWS * width, width, 1)))


def _sequence_grads(
    saved: tuple[Any, ...], grad: Any, dq: Any, dv: Any, table: Any, plan: Plan
) -> None:
    """Write one sequence's gradients, from q, v (n, d), buckets, norms and grad·output (n, 1)."""
    q, v, buckets, *columns = saved
    (n, d), rounds = q.shape, plan.rounds
    at = indexes(plan, buckets)
    joined, norms = joined_columns(q, v, grad)
    stats = join(columns, 1)
    places = places_of(plan, at.order, rounds)
    tokens = arange(places, n).expand(rounds, n)
    inverse = places.new_empty(rounds, n).scatter_(1, places, tokens)
    del tokens
    grads = q.new_zeros(n, 3 * d)
    for span in passes(q, plan):
        _pass_grads(plan, joined, stats, at, span, inverse, grads, table)
    _grad_of_queries(joined[:, d : 2 * d], norms, grads, dq)
    dv.copy_(grads[:, 2 * d :])


def _pass_grads(
    plan: Plan, joined: Any, stats: Any, at: Indexes,
    span: tuple[slice, slice], inverse: Any, grads: Any, table: Any,
) -> None:  # fmt: skip
    rounds, order = span[0], at.order[span[1]]
    gathered, d = joined.index_select(0, order), exact_div(grads.shape[1], 3)
    one = pass_of(plan, table, gathered, at, rounds, d)
    inner = slice(plan.back, order.shape[0] - plan.ahead)
    columns = stats.index_select(0, order[inner]).view(-1, ROWS, 3)
    sums = gathered.new_zeros(exact_div(order.shape[0], ROWS), ROWS, 3 * d)
    for blocks in one.groups():
        _group_grads(one, blocks, columns[blocks], sums)
    count = rounds.stop - rounds.start
    of_rows = sums.view(-1, 3 * d)[inner].view(count, plan.rows, -1)
    for r in each(grads, 0, count):
        grads.add_(of_rows[r].index_select(0, inverse[rounds.start + r]))


def _group_grads(one: Pass, blocks: slice, columns: Any, sums: Any) -> None:
    """Add the gradients of some blocks to those of queries, keys and values, by place."""
    weights = one.scores(blocks)
    d, back, count = one.rows.shape[-1], one.plan.back, weights.shape[0]
    window = one.windows[blocks]
    share = _softmax(weights, columns)
    band = Band(weights)
    band.blocks.copy_(weights)
    del weights
    rows = band.rows(d)
    inside = band.inside(rows)
    put_entries(inside, "mul", window[:, 3 * d :, back : back + ROWS].transpose(1, 2), share)
    window_sums = sums[blocks.start : blocks.stop + band.more]
    window_sums[..., 2 * d :].add_(band.transposed(rows))
    inner = inside.bmm(window[:, 2 * d : 3 * d])
    inner.sub_(share.mul_(columns[..., 2:])).mul_(band.blocks)
    band.blocks.copy_(inner)
    del inner, share
    if not one.plan.sees_itself:
        one.itself(band.blocks).zero_()
    first = exact_div(back, ROWS)
    to_rows = band.blocks.bmm(window[:, d : 2 * d].transpose(1, 2))
    window_sums[first : first + count, :, :d].copy_(to_rows)
    del to_rows
    inside.copy_(one.rows[blocks])
    window_sums[..., d : 2 * d].add_(band.transposed(rows))


def _softmax(scores: Any, columns: Any) -> Any:
    """Return the weights' share in the softmax over all rounds; scores become a window's weights.

    ``columns`` (g, ROWS, 3): H and T of ``_join_rounds``, and a third.
    """
    share = scores.amax(-1, keepdim=True)
    softmax_(scores)
    share.sub_(columns[..., :1]).exp_().div_(scores.amax(-1, keepdim=True))
    return share.div_(columns[..., 1:2])


def _grad_of_queries(keys: Any, norms: Any, grads: Any, dq: Any) -> None:
    """Add the gradient through the keys q / (|q| sqrt d) to that of the queries."""
    d = keys.shape[1]
    to_keys = grads[:, d : 2 * d]
    along = (to_keys * keys).sum(-1, keepdim=True).mul_(d)
    to_keys.addcmul_(keys, along, value=-1).div_(norms)
    put_entries(dq, "add", grads[:, :d], to_keys)


def _grads(saved: tuple[Any, ...], grad: Any, *, plan: Plan) -> tuple[Any, Any, None]:
    q, v, buckets, out, highest, total = saved
    delta = (grad * out).sum(-1, keepdim=True)
    dq, dv = q.new_empty(q.shape), v.new_empty(v.shape)
    table = mask_table(plan, q)
    for i in each(q, 0, q.shape[0]):
        of_one = (q[i], v[i], buckets[i], highest[i], total[i], delta[i])
        _sequence_grads(of_one, grad[i], dq[i], dv[i], table, plan)
    return dq, dv, None


#: Reformer's attention of (b, n, d) queries, which are the keys too, over (b, n, d) values.
#:
#: Buckets follow from the rotations (rounds, half, d), the third operand; None for one bucket.
hashed_attention = Function(attended, _grads)
