"""Reformer (003, sparse family): softmax attention within buckets of a hash."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof import costs
from attnprof.blocks.hashed_attention import ALONE, FLOOR, hashed, plan_of
from attnprof.blocks.hashed_backward import hashed_attention
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism, Variant
from attnprof.ops.functional import arange, join, row_norms, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, rows


@dataclass
class BucketState:
    """The last two chunks' worth of keys and values of every bucket, and how many it has seen.

    ``rows`` (b·rounds·buckets, 2·bucket_size, 2d): the token of rank p stands at p modulo that.
    """

    rows: Any
    counts: Any

    def advance(self, tokens: int) -> None:
        """Fill the state with random rows, spread evenly over buckets, as if by steps."""
        self.rows.normal_()
        self.counts.fill_(tokens // max(1, self.counts.shape[0]))


@dataclass(frozen=True, kw_only=True)
class Reformer(Mechanism):
    """Locality-sensitive hashing attention (Kitaev et al. 2020), causal without a leak.

    Queries are the keys too, there divided by their norm; scores are over sqrt d. In each of
    ``num_hashes`` rounds a token's bucket is the largest of [xR; -xR], R random and frozen; there
    are 2·⌈N/(2·bucket_size)⌉ buckets, or ``num_buckets`` (1 or even). A bucket's tokens, in order
    of time, fill chunks of ``bucket_size``; a token sees its own chunk and the one before, if
    causal no later token, and itself only where no round shows another (``self_attention``: as
    any other). So a chunk's border depends on earlier tokens alone, unlike that of chunks cut
    from all buckets in a row. Rounds are joined by their log-sum-exp: a token met in two rounds
    counts twice, as in the public code.

    The document claims N log N. Attention here is linear in N, sorting N log N comparisons of
    integers (no FLOPs, its bytes are counted), but hashing to N/bucket_size buckets is
    num_hashes·N²·d/bucket_size FLOPs: the stages ``rotated`` make it quadratic in the end. A fixed
    ``num_buckets`` makes hashing linear (and buckets longer; decoding needs it).
    """

    num_hashes: int = 8
    bucket_size: int = 64
    num_buckets: int | None = None
    self_attention: bool = False

    name: ClassVar[str] = "reformer"
    title: ClassVar[str] = "Reformer (LSH attention)"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "sparse"
    projections: ClassVar[str] = "qvo"
    not_split: ClassVar[str] = (
        "sorts all tokens into buckets: which rows another rank needs depends on values"
    )
    allowed: ClassVar[dict[str, Any]] = {"num_hashes": 1, "bucket_size": 1}
    time_order: ClassVar[str] = "N log N"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({}, "N^2", "N", "N log N leaves out hashing to N/bucket_size buckets"),
    )
    decodes_with: ClassVar[str] = "num_buckets"
    tuned = ("num_hashes",)
    to_softmax = (
        "another",
        "its keys are its queries over their norm, less a token's own: those given are not read",
    )
    reasons: ClassVar[dict[str, str]] = {
        "decode": "needs a number of buckets that does not change while it decodes: set "
        "num_buckets (--set num_buckets=64)"
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        buckets = self.num_buckets
        if buckets is not None and buckets != 1 and (buckets < 2 or buckets % 2):
            raise RequestError(
                f"num_buckets={buckets}: 1 or an even number (directions come in pairs), "
                "or none for one a bucket_size of tokens"
            )

    def buckets_for(self, n: costs.Number) -> costs.Number:
        """Return buckets of a round at a length."""
        return self.num_buckets or 2 * costs.ceil_div(n, 2 * self.bucket_size)

    def half_buckets(self, n: costs.Number) -> costs.Number:
        """Return directions of a round's hash, each with its opposite; none for one bucket."""
        return 0 if self.num_buckets == 1 else costs.exact_div(self.buckets_for(n), 2)

    # -- text --------------------------------------------------------------------------------
    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return a note on the comparisons of sorting, which are no FLOPs."""
        note = (
            "sort: N log2 N comparisons of integers a head and round are 0 FLOPs; the stages "
            "'rotated' (hashing) grow with N^2 unless num_buckets is set"
        )
        return () if workload.phase == "decode" else (note,)

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the rotations (num_hashes, half the buckets, head_dim), drawn and not learned."""
        n = 1 if sizes.seq_len is None else sizes.seq_len
        shape = (self.num_hashes, self.half_buckets(n), sizes.head_dim)
        return {"rotations": Weight(shape, drawn=True)}

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute the core, sequence by sequence, with its own backward pass; ``k`` is not read."""
        n = q.shape[2]
        sizes = n, self.buckets_for(n), self.bucket_size
        plan = plan_of(*sizes, causal, self.self_attention, self.num_hashes)
        return hashed_attention(flat(q), flat(v), self._rotations(weights), plan=plan).view(q.shape)

    def _rotations(self, weights: Any) -> Any:
        return None if self.num_buckets == 1 else weights.rotations

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> BucketState:
        """Return empty buckets; their number must not move with the length."""
        self.refuse_unless(decode=True)
        buckets = sizes.num_heads * self.num_hashes * self.buckets_for(1)
        rows = cache.zeros(buckets, 2 * self.bucket_size, 2 * sizes.head_dim)
        return BucketState(rows, cache.counts(buckets))

    def step(
        self, q: Any, k: Any, v: Any, state: BucketState, weights: Any
    ) -> tuple[Any, BucketState]:
        """Add the new token to its bucket of every round, and attend to the tokens there."""
        query, d = flat(q), q.shape[-1]
        bucket = self._bucket(query, self._rotations(weights))
        rank = state.counts.index_select(0, bucket)
        state.counts.index_copy_(0, bucket, rank + 1)
        self._write(state, query, flat(v), bucket, rank)
        bucket_rows = state.rows.index_select(0, bucket).view(query.shape[0], -1, 2 * d)
        scores = query.bmm(bucket_rows[..., :d].transpose(1, 2))
        self._hide(scores.view(rank.shape[0], -1), rank.unsqueeze(1))
        return scores.softmax(-1).bmm(bucket_rows[..., d:]).view(q.shape), state

    def _bucket(self, query: Any, rotations: Any) -> Any:
        """Return the place of the token's bucket in the state, (b·rounds)."""
        buckets = self.buckets_for(1)
        first = arange(query, query.shape[0] * self.num_hashes, buckets)
        return first if rotations is None else first.add_(hashed(query[:, 0], rotations).view(-1))

    def _write(self, state: BucketState, query: Any, v: Any, bucket: Any, rank: Any) -> None:
        length, d = state.rows.shape[1], v.shape[-1]
        norm = row_norms(query).clamp_(min=FLOOR)
        row = join([query / norm.mul_(square_root(d)), v], -1)
        rows = row.repeat(1, self.num_hashes, 1).view(-1, 2 * d)
        state.rows.view(-1, 2 * d).index_copy_(0, bucket * length + rank % length, rows)

    def _hide(self, scores: Any, rank: Any) -> None:
        """Hide tokens older than the chunk before the token's; itself unless it is alone."""
        size = self.bucket_size
        age = (rank - arange(rank, 2 * size)).remainder_(2 * size)
        reach = rank.minimum(rank % size + size)
        scores.masked_fill_(age > reach, float("-inf"))
        if not self.self_attention:
            scores.masked_fill_(age.eq(0), ALONE)

    def state_entries(self, workload: Workload) -> costs.Number:
        """Return two chunks of keys and values per bucket and round, and a count, at any length."""
        buckets = self.whole_entries(workload)
        return buckets * (4 * self.bucket_size * workload.head_dim + 1)

    def whole_entries(self, workload: Workload) -> costs.Number:
        """Return the counts of tokens, one per bucket and round."""
        w = workload
        return w.batch_size * w.num_heads * self.num_hashes * self.buckets_for(1)

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> costs.Number:
        """Return query-key pairs of a round, where buckets are filled evenly."""
        n, size = w.seq_len, self.bucket_size
        buckets = self.buckets_for(n)
        if w.phase == "decode":
            rank = costs.floor_div(n - 1, buckets)
            alone = 1 if self.self_attention else 1 - costs.more_than_one(rank + 1)
            # its own chunk and the one before
            return costs.minimum(rank, size + rank - size * costs.floor_div(rank, size)) + alone
        full = costs.floor_div(n, buckets)
        longer = n - full * buckets
        parts = ((longer, full + 1), (buckets - longer, full))
        if w.causal:
            pairs = sum(times * seen_until(tokens, size) for times, tokens in parts)
            return pairs + (n if self.self_attention else costs.minimum(n, buckets))
        pairs = sum(times * seen_in_bucket(tokens, size) for times, tokens in parts)
        if self.self_attention:
            return pairs
        # a token alone in its bucket sees itself
        alone = sum(
            times * (costs.at_least_one(tokens) - costs.at_least_one(costs.maximum(0, tokens - 1)))
            for times, tokens in parts
        )
        return pairs - n + alone

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define norms, hashes, one softmax over the pairs of all rounds."""
        w = workload
        count = rows(w)
        heads = w.batch_size * w.num_heads * count
        d, buckets = w.head_dim, self.buckets_for(w.seq_len)
        writer.dots("squared norms", heads, heads * d)
        writer.stage("norms", costs.Cost(other=heads), heads)
        writer.stage("keys", costs.Cost(divisions=heads * d), heads, d)
        if self.num_buckets != 1:
            directions = heads * self.num_hashes * costs.exact_div(buckets, 2)
            writer.dots("rotated", directions, directions * d)
            writer.stage("buckets", costs.Cost(other=2 * directions), heads, self.num_hashes)
        writer.softmax_attention(w, self.num_hashes * self.pairs(w), count)


# -- pairs of buckets that are filled evenly ---------------------------------------------------
def seen_until(ranks: costs.Number, size: int) -> costs.Number:
    """Return pairs of the first ranks with earlier ones of their chunk and the chunk before."""
    first = costs.minimum(ranks, size)
    rest = ranks - first
    whole = costs.floor_div(rest, size)
    last = rest - whole * size
    inside = whole * costs.exact_div(size * (size - 1), 2) + costs.exact_div(last * (last - 1), 2)
    return costs.exact_div(first * (first - 1), 2) + rest * size + inside


def seen_in_bucket(tokens: costs.Number, size: int) -> costs.Number:
    """Return a bucket's pairs within chunks and with the chunk before, own pairs included."""
    whole = costs.floor_div(tokens, size)
    last = tokens - whole * size
    before = costs.maximum(0, whole - 1) * size * size + costs.at_least_one(whole) * last * size
    return whole * size * size + last * last + before


MECHANISMS = (Reformer,)
