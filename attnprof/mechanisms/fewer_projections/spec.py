"""Optimised, Efficient and Super Attention (000, Definitions 2 to 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number, more_than_one
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape
from attnprof.mechanism import Abilities, Published, pairs, rows
from attnprof.mechanisms.standard.spec import (
    SoftmaxAttention,
    causal_mask,
    eq24,
    weighted_values,
)
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Optimised(SoftmaxAttention):
    """No value projection: a head's values are a column slice of the input (000, Def 2)."""

    name: ClassVar[str] = "optimised"
    title: ClassVar[str] = "Optimised Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qko"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(12),)


@dataclass(frozen=True, kw_only=True)
class Efficient(SoftmaxAttention):
    """Neither key nor value projection: both are column slices of the input (000, Def 3)."""

    name: ClassVar[str] = "efficient"
    title: ClassVar[str] = "Efficient Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qo"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(9),)


@dataclass(frozen=True, kw_only=True)
class Super(Efficient):
    """Efficient Attention whose values a map over tokens mixes first (000, Def 4)."""

    per_head: bool = False

    name: ClassVar[str] = "super"
    title: ClassVar[str] = "Super Attention"
    transposes_values: ClassVar[bool] = True
    hands_over: ClassVar[str] = "kv"
    abilities: ClassVar[Abilities] = Abilities(needs_seq_len=True)

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(12),)

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Values mixed over tokens, then softmax attention over them."""
        w = workload
        columns = self._mixed(tape, w, v)
        mask = causal_mask(tape, w.seq_len) if w.causal else None
        out = weighted_values(tape, q, k, columns, mask, columns=True)
        tape.free(columns, *([mask] if mask else []))
        return out

    def _mixed(self, tape: Tape, w: Workload, v: Tensor) -> Tensor:
        """W^A v + bias as columns, (b·h, d, n); the values are transposed by one copy."""
        b, h, n, d = w.batch_size, w.num_heads, w.seq_len, w.head_dim
        maps = (h, n, n) if self.per_head else (n, n)
        weight = tape.parameter(*maps)
        bias = tape.parameter(*maps[:-1]) if self.bias else None
        if w.causal:
            weight = lower_triangle(tape, weight)
        shape = (h, b * d, n) if self.per_head else (b * h * d, n)
        columns = tape.move("transposed values", v, shape)
        copies = 0
        if self.per_head:
            if not w.causal:  # the map's gradient arrives transposed: a leaf keeps a copy
                weight = tape.rearrange("map", weight, maps, 0, more_than_one(n))
            mixed = tape.bmm("mixed values", columns, weight, tb=True)
            if bias is not None:
                mixed = tape.add("mixing bias", mixed, tape.view(bias, h, 1, n), inplace=True)
            copies = more_than_one(b) * more_than_one(h)
            back = more_than_one(b) * more_than_one(d) * more_than_one(n * h)
        else:
            mixed = tape.linear("mixed values", columns, weight, bias)
            back = more_than_one(b * h) * more_than_one(n) * more_than_one(d)
        tape.free(columns, weight)
        return tape.rearrange("columns by head", mixed, (b * h, d, n), copies, back)

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Row t of W^A mixes the cached values into one new value, which is cached too."""
        w, batch = workload, workload.batch_size * workload.num_heads
        keys, values = self.cached(tape, w, k, v)
        row = tape.constant(batch, 1, w.seq_len)
        if self.per_head:
            many = more_than_one(w.batch_size) * more_than_one(w.num_heads)
            row = tape.rearrange("row a head", row, row.shape, many)
        mixed = tape.bmm("mixed value", row, values)
        tape.free(row)
        if self.bias:
            bias = tape.constant(w.num_heads if self.per_head else 1)
            mixed = tape.pointwise("mixing bias", [mixed, bias], Cost(additions=1), inplace=True)
        tape.record("append mixed value", (batch, 1), Cost(bytes_moved=2 * mixed.size))
        cache = tape.constant(batch, w.seq_len, w.head_dim)
        tape.free(mixed)
        return weighted_values(tape, q, keys, cache)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """The mixing's direct sums, then softmax attention."""
        w = workload
        width = w.batch_size * w.num_heads * w.head_dim
        writer.dots("mixed values", width * rows(w), width * pairs(w))
        super().define_core(writer, w)

    def state_entries(self, workload: Workload) -> Number:
        """The input's rows and the mixed values."""
        return 2 * super().state_entries(workload)


def lower_triangle(tape: Tape, weight: Tensor) -> Tensor:
    """The weight without what lies above its diagonal; its gradient is cut the same way."""

    def backward(grad: Tensor) -> Gradients:
        return [(weight, tape.emit("lower triangle: grad", weight.shape, Cost(), [grad]))]

    return tape.emit("lower triangle", weight.shape, Cost(), [weight], backward=backward)


MECHANISMS = (Optimised, Efficient, Super)
