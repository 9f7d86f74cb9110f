"""Reformer (003, sparse family): softmax attention within buckets of a hash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from attnprof.costs import (
    Cost,
    CostTable,
    Number,
    ceil_div,
    exact_div,
    floor_div,
    minimum,
    more_than_one,
)
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Backward, Gradients, Tensor
from attnprof.counting.hashed import Plan
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.mechanisms.reformer.definition import (
    only_one,
    seen_before,
    seen_in_bucket,
    seen_until,
)
from attnprof.mechanisms.reformer.stages import (
    write_sequence,
    write_sequence_backward,
    write_step,
)
from attnprof.mechanisms.reformer.writer import Writer
from attnprof.workload import Workload, rows


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
    num_hashes·N²·d/bucket_size FLOPs: the stage ``rotated`` makes it quadratic in the end. A fixed
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
    time_order: ClassVar[str] = "N log N"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({}, "N^2", "N", "N log N leaves out hashing to N/bucket_size buckets"),
    )
    abilities: ClassVar[Abilities] = Abilities()
    reasons: ClassVar[dict[str, str]] = {
        "decode": "needs a number of buckets that does not change while it decodes: set "
        "num_buckets (--set num_buckets=64)",
    }

    def __post_init__(self) -> None:
        if self.num_hashes < 1 or self.bucket_size < 1:
            raise RequestError(
                f"num_hashes={self.num_hashes} bucket_size={self.bucket_size}: at least 1 each"
            )
        buckets = self.num_buckets
        if buckets is not None and buckets != 1 and (buckets < 2 or buckets % 2):
            raise RequestError(
                f"num_buckets={buckets}: 1 or an even number (directions come in pairs), "
                "or none for one a bucket_size of tokens"
            )

    def buckets_for(self, n: Number) -> Number:
        """Buckets of a round at a length."""
        return self.num_buckets or 2 * ceil_div(n, 2 * self.bucket_size)

    def plan(self, n: Number, causal: bool) -> Plan:
        """The layout at a length."""
        return Plan(n, self.buckets_for(n), self.bucket_size, causal)

    def check(self, workload: Workload, scope: str) -> None:
        """Decoding needs a number of buckets of its own."""
        super().check(workload, scope)
        if workload.phase == "decode" and self.num_buckets is None:
            raise RequestError(f"{self.name} {self.refusal('decode')}")

    # -- what runs -----------------------------------------------------------------------
    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """The stages, and what sorting does that is not a FLOP."""
        table = super().cost(workload, scope)
        if workload.phase == "decode":
            return table
        note = (
            "sort: N log2 N comparisons of integers a head and round are 0 FLOPs; the stage "
            "'rotated' (hashing) grows with N^2 unless num_buckets is set"
        )
        return replace(table, notes=(*table.notes, note))

    def writer(self, tape: Tape, n: Number, head_dim: Number, *, causal: bool) -> Writer:
        """A writer of this layout."""
        plan = self.plan(n, causal)
        half = 0 if self.num_buckets == 1 else exact_div(plan.num_buckets, 2)
        return Writer(tape, plan, self.num_hashes, half, head_dim, self.self_attention)

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One function with its own backward, sequence by sequence."""
        w = workload
        writer = self.writer(tape, w.seq_len, w.head_dim, causal=w.causal)
        batch, n = w.batch_size * w.num_heads, w.seq_len
        out = writer.empty("output", batch, n, w.head_dim)
        norms = [writer.empty(f"{name} of rows", batch, n, 1) for name in ("largest", "sums")]
        buckets = writer.empty("buckets", batch, self.num_hashes, n, size=4)
        table = writer.table()
        with tape.repeat(batch):
            write_sequence(writer)
        tape.free(table)
        if tape.grad:
            backward = self._backward(writer, q, v, out)
            tape.attach(out, self.name, backward, (q, v, buckets, out, *norms))
        tape.free(*norms, buckets)
        return out

    @staticmethod
    def _backward(writer: Writer, q: Tensor, v: Tensor, out: Tensor) -> Backward:
        tape = writer.tape

        def backward(grad: Tensor) -> Gradients:
            product = Cost(multiplications=out.count)
            weighted = writer.new("grad times output", out.shape, grad, out, cost=product)
            column = (*out.shape[:2], 1)
            added = Cost(additions=out.count, reduction_outputs=out.shape[0] * out.shape[1])
            delta = writer.new("row sums", column, weighted, cost=added)
            tape.free(weighted)
            dq, dv = (writer.empty(f"grad {name}", *out.shape) for name in "qv")
            table = writer.table()
            with tape.repeat(out.shape[0]):
                write_sequence_backward(writer)
            tape.free(delta, table)
            return [(q, dq), (v, dv)]

        return backward

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Hash, store in the bucket of every round, softmax over their last two chunks."""
        w = workload
        writer = self.writer(tape, 1, w.head_dim, causal=True)
        return write_step(writer, w.batch_size * w.num_heads, self.bucket_size, q)

    def state_entries(self, workload: Workload) -> Number:
        """Two chunks of keys and values a bucket and round, and a count, whatever the length."""
        w = workload
        buckets = w.batch_size * w.num_heads * self.num_hashes * self.buckets_for(1)
        return buckets * (4 * self.bucket_size * w.head_dim + 1)

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Query-key pairs of a round, where buckets are filled evenly."""
        n, size = w.seq_len, self.bucket_size
        buckets = self.buckets_for(n)
        if w.phase == "decode":
            rank = floor_div(n - 1, buckets)
            alone = 1 if self.self_attention else 1 - more_than_one(rank + 1)
            return seen_before(rank, size) + alone
        full = floor_div(n, buckets)
        longer = n - full * buckets
        parts = ((longer, full + 1), (buckets - longer, full))
        if w.causal:
            seen = sum(times * seen_until(tokens, size) for times, tokens in parts)
            return seen + (n if self.self_attention else minimum(n, buckets))
        seen = sum(times * seen_in_bucket(tokens, size) for times, tokens in parts)
        if self.self_attention:
            return seen
        # a token alone in its bucket sees itself
        alone = sum(times * only_one(tokens) for times, tokens in parts)
        return seen - n + alone

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Norms, hashes, one softmax over all rounds' pairs."""
        w = workload
        count = rows(w)
        heads = w.batch_size * w.num_heads * count
        d, buckets = w.head_dim, self.buckets_for(w.seq_len)
        writer.dots("squared norms", heads, heads * d)
        writer.stage("norms", Cost(other=heads), heads)
        writer.stage("keys", Cost(divisions=heads * d), heads, d)
        if self.num_buckets != 1:
            directions = heads * self.num_hashes * exact_div(buckets, 2)
            writer.dots("rotated", directions, directions * d)
            writer.stage("buckets", Cost(other=2 * directions), heads, self.num_hashes)
        writer.softmax_attention(w, self.num_hashes * self.pairs(w), count)


MECHANISMS = (Reformer,)
