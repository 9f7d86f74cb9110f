"""Neural Attention (001, Eq 4 to 10 and Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number, ceil_div, floor_div, maximum, minimum
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, Published, Variant, pairs, rows
from attnprof.mechanisms.neural import stages
from attnprof.mechanisms.neural.chunk import Net, root
from attnprof.workload import Workload

#: hidden values a chunk aims at: they stay in a core's cache
CHUNK_ENTRIES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Neural(Mechanism):
    """softmax(A / sqrt d) V, where a network of the pair scores it: A_ij = f(q_i, k_j).

    ``down_dim`` (d') projects queries and keys first, with a bias; none skips that and d' = d.
    The scorer is shared by all heads and pairs. ``depth`` 2 is the network of the published
    sizes, 2d' → d' → d'/2 → 1 (halves rounded down, to at least 1); ``depth`` 1 the one hidden
    layer of Eq 4. ``hidden_dim`` is the width of the first hidden layer, d' where none. The
    document leaves its activation open (sigma); it is ReLU here. ``impl`` ``naive`` writes out C
    (n × n × 2d'), as Algorithm 1; ``factored`` adds the two terms of W_h [q; k] instead, a chunk
    of rows at a time: its memory grows as N·sqrt N, that of ``naive`` as N². Any layer may use
    it; the document uses it in the first layer only.
    """

    down_dim: int | None = None
    hidden_dim: int | None = None
    depth: int = 2
    impl: str = "factored"

    name: ClassVar[str] = "neural"
    title: ClassVar[str] = "Neural Attention"
    document: ClassVar[str] = "001"
    family: ClassVar[str] = "exact"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N^1.5"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "naive"}, "N^2", "N^2", "writes out every pair of a query and a key"),
    )
    transposes_keys: ClassVar[bool] = False
    abilities: ClassVar[Abilities] = Abilities()
    same_as = ("", {"impl": "naive"})

    def __post_init__(self) -> None:
        if self.impl not in ("factored", "naive"):
            raise RequestError(f"impl={self.impl}: possible: factored, naive")
        if self.depth not in (1, 2):
            raise RequestError(f"depth={self.depth}: possible: 1 (Eq 4), 2 (the published sizes)")
        for name in ("down_dim", "hidden_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name}={value}: at least 1, or none for the default")

    # -- sizes ---------------------------------------------------------------------------
    def widths(self, head_dim: Number) -> tuple[Number, ...]:
        """d', and the width of every hidden layer."""
        reduced = head_dim if self.down_dim is None else self.down_dim
        hidden = reduced if self.hidden_dim is None else self.hidden_dim
        if self.depth == 1:
            return reduced, hidden
        return reduced, hidden, maximum(1, floor_div(hidden, 2))

    def chunk(self, heads: Number, n: Number, head_dim: Number) -> tuple[Number, Number]:
        """Heads and rows of a chunk; several heads only where all rows of one fit.

        A head is at most 4 sqrt N chunks: finer ones would make a long sequence a loop of tiny
        steps.
        """
        entries = n * n * self.widths(head_dim)[1]
        parts = minimum(ceil_div(entries, CHUNK_ENTRIES), 4 * root(n))
        heads_each = ceil_div(heads, ceil_div(heads * entries, CHUNK_ENTRIES))
        return heads_each, ceil_div(n, parts)

    # -- what runs -----------------------------------------------------------------------
    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Down-projections, scores by the network, softmax, values."""
        sizes = self.widths(workload.head_dim)
        net = Net.on(tape, workload.head_dim, sizes, self.down_dim is not None)
        rows_, keys = stages.down(tape, net, "query", q), stages.down(tape, net, "key", k)
        if self.impl == "naive":
            out = stages.naive(tape, net, (rows_, keys, v), workload.causal)
        else:
            heads, n = v.shape[:2]
            chunk = self.chunk(heads, n, workload.head_dim)
            out = stages.factored(tape, net, (rows_, keys, v), chunk, workload.causal)
        if net.down:
            tape.free(rows_, keys)
        return out

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """One row of pairs; the cache holds the keys' term of the hidden layer, and values."""
        sizes = self.widths(workload.head_dim)
        net = Net.on(tape, workload.head_dim, sizes, self.down_dim is not None)
        return stages.step(tape, net, (q, k, v), workload.seq_len)

    def state_entries(self, workload: Workload) -> Number:
        """The hidden layer's width and a value for every token of every head."""
        w = workload
        width = self.widths(w.head_dim)[1] + w.head_dim
        return w.batch_size * w.num_heads * w.seq_len * width

    # -- the definition ------------------------------------------------------------------
    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Eq 5 to 10 pair by pair: every layer of the network reads its whole input."""
        w = workload
        heads = w.batch_size * w.num_heads
        if self.down_dim is not None:
            results = heads * rows(w) * self.down_dim
            for name in ("queries", "keys"):
                writer.dots(f"down-projected {name}", results, results * w.head_dim)
                writer.stage(f"down-projected {name}, bias", Cost(additions=results), results)
        scores = heads * pairs(w)
        reduced, *hidden = self.widths(w.head_dim)
        inputs = 2 * reduced
        for name, width in zip(("hidden layer", "second hidden layer"), hidden, strict=False):
            values = scores * width
            writer.dots(name, values, values * inputs)
            writer.stage(f"{name}, bias and activation", Cost(additions=values, other=values))
            inputs = width
        writer.dots("scores", scores, scores * inputs)
        writer.stage("scores, bias", Cost(additions=scores), scores)
        writer.stage("scaling", Cost(divisions=scores), scores)
        writer.stage("exponentials", Cost(exponentials=scores), scores)
        writer.sums("row sums", heads * rows(w), scores)
        writer.stage("normalisation", Cost(divisions=scores), scores)
        outputs = heads * rows(w) * w.value_width
        writer.dots("weighted values", outputs, scores * w.value_width)

    def published(self) -> tuple[Published, ...]:
        """The size of C, the one closed form the document prints; a single head's."""
        return (
            Published(
                "001-EQ7", "peak_entries", "core", "forward", "001: entries of C",
                formula=lambda w: w.seq_len**2 * 2 * self.widths(w.head_dim)[0],
                heads="one",
            ),
        )  # fmt: skip


MECHANISMS = (Neural,)
