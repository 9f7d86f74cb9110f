"""TaylorShift (004, Algorithm 1): both forms, written on the tape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Abilities, Mechanism, Published, pairs, rows
from attnprof.mechanisms.taylorshift import boxed, published, scan, stages, symmetric
from attnprof.workload import Workload

IMPLS = ("boxed", "symmetric")


@dataclass(frozen=True, kw_only=True)
class Taylor(Mechanism):
    """What both forms share; ``temperature`` is the initial value, learned, one a head.

    A zero query or key stays zero: its scores are 0, its Taylor map 1.
    """

    temperature: float = 1.0

    document: ClassVar[str] = "004"
    family: ClassVar[str] = "taylor"
    transposes_keys: ClassVar[bool] = False
    abilities: ClassVar[Abilities] = Abilities()

    def define_rows(self, writer: Definition, workload: Workload) -> None:
        """Norms, their division, and the queries' temperature."""
        w = workload
        heads = w.batch_size * w.num_heads * rows(w)
        entries = heads * w.head_dim
        writer.dots("norms", 2 * heads, 2 * entries)
        writer.stage("norms", Cost(other=2 * heads), 2 * heads)
        writer.stage("unit rows", Cost(divisions=2 * entries), 2 * entries)
        writer.stage("temperature", Cost(multiplications=entries), entries)


@dataclass(frozen=True, kw_only=True)
class TaylorDirect(Taylor):
    """The Taylor map of N × N scores (Eq 1)."""

    name: ClassVar[str] = "taylor-direct"
    title: ClassVar[str] = "TaylorShift, direct form"
    same_as = ("taylor-efficient", {})
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N^2"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms: Eq 4, entries, Sec 4.3."""
        return published.DIRECT

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores, their Taylor map into a second N × N tensor, sums, values, division."""
        w = workload
        temperature = tape.parameter(w.num_heads)
        scale = stages.row_scale(tape, w.seq_len) if w.causal else None
        queries, keys = stages.normalised(tape, w, q, k, temperature)
        scores = tape.bmm("scores", queries, keys, tb=True)
        out = self._weighted(tape, scores, (queries, keys), v, scale, causal=w.causal)
        if scale is not None:
            tape.free(scale)
        return out

    def _weighted(
        self,
        tape: Tape,
        scores: Tensor,
        done: tuple[Tensor, ...],
        v: Tensor,
        scale: Tensor | None,
        *,
        causal: bool,
    ) -> Tensor:
        shifted = tape.shift("scores + 1", scores, inplace=True)
        tape.free(*done)
        weights = stages.taylor_map(tape, shifted, causal=causal)
        tape.free(shifted)
        bottom = tape.sum("row sums", weights, (*weights.shape[:-1], 1))
        top = tape.bmm("weighted values", weights, v)
        out = stages.ratio(tape, top, bottom, scale)
        tape.free(weights, top, bottom)
        return out

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """One query against the cached normalised keys and values."""
        w = workload
        batch = w.batch_size * w.num_heads
        queries, key = stages.normalised(tape, w, q, k, tape.parameter(w.num_heads))
        keys = tape.constant(batch, w.seq_len, w.head_dim)
        tape.record("append to cache", (batch, 1), Cost(bytes_moved=2 * (k.size + v.size)))
        tape.free(key)
        scores = tape.bmm("scores", queries, keys, tb=True)
        return self._weighted(tape, scores, (queries,), keys, None, causal=False)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Eq 1 with Algorithm 1's normalisation: 1 + x + x²/2, row sums, divisions."""
        w = workload
        self.define_rows(writer, w)
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs(w), heads * rows(w) * w.head_dim
        writer.dots("scores", scores, scores * w.head_dim)
        writer.stage("Taylor map", Cost(multiplications=2, additions=2) * scores, scores)
        writer.sums("row sums", heads * rows(w), scores)
        writer.stage("normalisation", Cost(divisions=scores), scores)
        writer.dots("weighted values", outputs, scores * w.head_dim)
        writer.stage("output scale", Cost(multiplications=outputs), outputs)


@dataclass(frozen=True, kw_only=True)
class TaylorEfficient(Taylor):
    """Box products N × d² instead of scores; causal by a scan over chunks of ``chunk`` tokens.

    ``impl=symmetric`` makes each pair of entries once, d(d+1)/2 products, and in chunks with or
    without a mask (two at once with one, eight without), so that nothing of N × d² is ever held.
    """

    impl: str = "boxed"
    chunk: int = 64

    name: ClassVar[str] = "taylor-efficient"
    title: ClassVar[str] = "TaylorShift, efficient form"
    same_as = ("taylor-direct", {})
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise RequestError(f"chunk must be at least 1 token, not {self.chunk}")
        if self.impl not in IMPLS:
            possible = closest(self.impl, list(IMPLS))
            raise RequestError(f"unknown impl '{self.impl}' of {self.name}: {possible}")

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms: Eq 5, entries, Sec 4.3."""
        return published.EFFICIENT

    def state_entries(self, workload: Workload) -> Number:
        """Features × (d + 1) a head, whatever the length."""
        w, d = workload, workload.head_dim
        return w.batch_size * w.num_heads * self.features.width(d) * (d + 1)

    @property
    def features(self) -> scan.RowFeatures:
        """d² + d + 1 a row, or d(d+1)/2 + d + 1 with each pair once."""
        return symmetric.SYMMETRIC if self.impl == "symmetric" else boxed.BOXED

    def at_once(self, causal: bool) -> int:
        """Tokens that are taken together."""
        if self.impl == "boxed":
            return self.chunk
        return self.chunk * (symmetric.SCANNED if causal else symmetric.AT_ONCE)

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Algorithm 1; a scan where causal."""
        w = workload
        temperature = tape.parameter(w.num_heads)
        queries, keys = stages.normalised(tape, w, q, k, temperature)
        values = stages.padded(tape, v)
        if self.impl == "boxed" and not w.causal:
            values = tape.scale("values / N", values, divide=True, inplace=True)
            y = self._boxed(tape, queries, keys, values)
            tape.free(queries, keys)
            out = stages.split_ratio(tape, y)
            tape.free(y)
            return out
        kind = scan.Scan if w.causal else scan.Sums
        size = self.at_once(w.causal)
        sums = kind(tape, self.features, q.shape, values.shape[-1], size)
        y = sums.forward(queries, keys, values)
        tape.free(values, queries, keys)
        scale = stages.row_scale(tape, w.seq_len) if w.causal else None
        out = stages.split_ratio(tape, y, scale)
        tape.free(y, *([] if scale is None else [scale]))
        return out

    @staticmethod
    def _boxed(tape: Tape, q: Tensor, k: Tensor, values: Tensor) -> Tensor:
        b, _, width = values.shape
        total = tape.sum("sum of values", values, (b, 1, width))
        total = tape.scale("sum of values: factor", total, inplace=True)
        box = stages.box(tape, "keys ⊠ keys", k)
        mixed = tape.bmm("A_mod", values, box, ta=True)
        tape.free(box)
        box = stages.box(tape, "queries ⊠ queries", q)
        y = tape.bmm("squared part", box, mixed, tb=True)
        y = tape.scale("squared part: factor", y, inplace=True)
        tape.free(box, mixed)
        linear = tape.bmm("keysᵀ values", k, values, ta=True)
        part = tape.bmm("linear part", q, linear)
        part = tape.scale("linear part: factor", part, inplace=True)
        y = tape.add("add linear part", y, part, inplace=True)
        tape.free(part, linear)
        y = stages.add_row(tape, "add sum of values", y, total)
        tape.free(total, values)
        return y

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The state takes the new token in and is read."""
        w, d = workload, workload.head_dim
        queries, key = stages.normalised(tape, w, q, k, tape.parameter(w.num_heads))
        state = tape.constant(w.batch_size * w.num_heads, self.features.width(d), d + 1)
        values = stages.padded(tape, v)
        self.features.absorb(tape, state, key, values)
        tape.free(values)
        y = self.features.read(tape, "queries", queries, state, doubled=True)
        out = stages.split_ratio(tape, y)
        tape.free(y, queries, key)
        return out

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Algorithm 1; causal rows read running sums, to which every token adds."""
        w, d = workload, workload.head_dim
        self.define_rows(writer, w)
        heads = w.batch_size * w.num_heads
        tokens, width = heads * rows(w), d + 1
        sums = 0 if w.causal or w.phase == "decode" else heads  # every token adds to its sums
        writer.stage("values / N", Cost(divisions=tokens * width), tokens, width)
        writer.stage("box products", Cost(multiplications=2 * tokens * d * d), tokens, d * d)
        writer.dots("A_mod", sums * d * d * width, tokens * d * d * width)
        writer.dots("squared part", tokens * width, tokens * d * d * width)
        writer.dots("keysᵀ values", sums * d * width, tokens * d * width)
        writer.dots("linear part", tokens * width, tokens * d * width)
        writer.sums("sum of values", sums * width, tokens * width)
        writer.stage("factors", Cost(multiplications=3 * tokens * width), tokens, width)
        writer.stage("sums", Cost(additions=2 * tokens * width), tokens, width)
        writer.stage("division", Cost(divisions=tokens * d), tokens, d)
