"""Standard multi-head attention (000, Definition 1; 002, Eq 10-17) and torch's fused form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from attnprof.costs import Cost, CostTable, Number, exact_div, is_plain, more_than_one
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanism import Abilities, Mechanism, Published, pairs, rows
from attnprof.mechanisms.standard.fused import fused_attention
from attnprof.mechanisms.standard.published import published_counts
from attnprof.workload import Workload


def eq24(constant: int) -> Published:
    """000, Eq 24: C·l·d_m + 15·h·l², one forward and backward pass."""
    return Published(
        source="000-EQ24",
        quantity="flops",
        scope="layer",
        phase="train",
        convention="000: one per output element, times 3",
        formula=lambda w: constant * w.seq_len * w.d_model + 15 * w.num_heads * w.seq_len**2,
    )


def causal_mask(tape: Tape, n: Number, group: Number = 1) -> Tensor:
    """(group·n, n) booleans, a byte each; filled, cut to a triangle, repeated for grouped heads."""
    mask = tape.emit("causal mask", (n, n), Cost(bytes_moved=2 * n * n), item_size=1)
    if is_plain(group) and group == 1:
        return mask
    many, size = more_than_one(group), group * n * n
    moved, shape = Cost(bytes_moved=many * (n * n + size)), (group * n, n)
    tape.record("mask a group", shape, moved, many * size, frees=many * n * n)
    mask.shape, mask.storage.size = shape, size
    return mask


def weighted_values(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    columns: bool = False,
) -> Tensor:
    """Rows of softmax((q / sqrt d) kᵀ) v; ``columns``: v comes as (batch, d, m)."""
    scaled = tape.scale("scaling", q, divide=True)
    scores = tape.bmm("scores", scaled, k, tb=True)
    tape.free(scaled)
    if mask is not None:
        scores = tape.masked_fill("masking", scores, mask)
    weights = tape.softmax("softmax", scores)
    tape.free(scores)
    out = tape.bmm("weighted values", weights, v, tb=columns)
    tape.free(weights)
    return out


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention(Mechanism):
    """Softmax attention over scores that are written out; the family of document 000."""

    bias: bool = True

    abilities: ClassVar[Abilities] = Abilities()
    hands_over: ClassVar[str] = "k"
    family: ClassVar[str] = "exact"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N^2"

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scaled queries, scores, softmax, values; grouped heads share their keys."""
        w = workload
        group = 1 if w.num_kv_heads is None else exact_div(w.num_heads, w.kv_heads)
        mask = causal_mask(tape, w.seq_len, group) if w.causal else None
        q = tape.view(q, w.batch_size * w.kv_heads, group * w.seq_len, w.head_dim)
        out = weighted_values(tape, q, k, v, mask)
        tape.free(q, *([mask] if mask else []))
        return tape.rearrange(
            "heads", out, (w.batch_size * w.num_heads, w.seq_len, w.value_width), 0
        )

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The same for one row against the cache."""
        w = workload
        keys, values = self.cached(tape, w, k, v)
        group = exact_div(w.num_heads, w.kv_heads)
        q = tape.view(q, w.batch_size * w.kv_heads, group, w.head_dim)
        out = weighted_values(tape, q, keys, values)
        tape.free(q)
        return tape.rearrange("heads", out, (w.batch_size * w.num_heads, 1, w.value_width), 0)

    def cached(self, tape: Tape, workload: Workload, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append one row of keys and values and return the caches; one cache where they are one."""
        w, batch = workload, workload.batch_size * workload.kv_heads
        added = k.size if self.shares_rows else k.size + v.size
        tape.record("append to cache", (batch, 1), Cost(bytes_moved=2 * added))
        keys = tape.constant(batch, w.seq_len, w.head_dim)
        return keys, keys if self.shares_rows else tape.constant(batch, w.seq_len, w.value_width)

    def state_entries(self, workload: Workload) -> Number:
        """Keys and values of every token; counted once where they are the same rows."""
        w = workload
        width = w.head_dim if self.shares_rows else w.head_dim + w.value_width
        return w.batch_size * w.kv_heads * w.keys * width

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """002, Eq 10 to 17: two divisions a score."""
        writer.softmax_attention(workload, pairs(workload), rows(workload))


@dataclass(frozen=True, kw_only=True)
class Standard(SoftmaxAttention):
    """Projections, scores, softmax and values written out, one operation at a time."""

    name: ClassVar[str] = "standard"
    title: ClassVar[str] = "Standard multi-head attention"
    document: ClassVar[str] = "000"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, cross=True)
    same_as = ("sdpa", {})

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(15), *published_counts())


WORKSPACE = (
    "the fused kernel's own workspace is not in peak_bytes: it depends on threads and blocks"
)


@dataclass(frozen=True, kw_only=True)
class Sdpa(Standard):
    """``scaled_dot_product_attention``: never holds the N×N scores."""

    name: ClassVar[str] = "sdpa"
    title: ClassVar[str] = "torch's fused softmax attention"
    memory_order: ClassVar[str] = "N"
    strided_heads: ClassVar[bool] = True
    hands_over: ClassVar[str] = "qkv"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=False, cross=True)
    same_as = ("standard", {})

    def published(self) -> tuple[Published, ...]:
        """None: no document of ours prints a form for the fused kernel."""
        return ()

    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Like the base's, with a note on what its peak leaves out."""
        return replace(super().cost(workload, scope), notes=(WORKSPACE,))

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One kernel."""
        return fused_attention(tape, workload, q, k, v, pairs(workload))

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The same kernel for one row against the cache."""
        keys, values = self.cached(tape, workload, k, v)
        return fused_attention(tape, workload, q, keys, values, pairs(workload))


MECHANISMS = (Standard, Sdpa)
