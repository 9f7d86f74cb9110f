"""Sparse Transformer (003, sparse family): strided and fixed patterns in O(N·sqrt N)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import (
    Cost,
    Number,
    ceil_div,
    exact_div,
    floor_div,
    is_plain,
    is_symbolic,
    maximum,
    minimum,
)
from attnprof.counting.band import band_blocks, reached, write_band_mask
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.gathered import Blocks, write_gathered, write_hidden
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.mechanisms.standard.spec import weighted_values
from attnprof.workload import Workload


def root(n: Number) -> Number:
    """⌈sqrt n⌉, exactly."""
    if is_plain(n):
        return math.isqrt(n - 1) + 1
    if is_symbolic(n):
        import sympy

        return sympy.ceiling(sympy.sqrt(n))
    import numpy as np

    return np.vectorize(root, otypes=["int64"])(n)


@dataclass(frozen=True, kw_only=True)
class Sparse(Mechanism):
    """Each row sees about 2·sqrt N tokens, in one of two patterns of stride l.

    ``strided``: the tokens nearer than l, and those a multiple of l away. ``fixed``: the tokens of
    its own block of l, and the last token of every other block. ``stride`` none is ⌈sqrt N⌉,
    which makes the order N·sqrt N; with a given stride it is N²/l in the end. A row whose own
    block is cut short by the end of the sequence has no last token to offer.
    """

    stride: int | None = None
    pattern: str = "strided"

    name: ClassVar[str] = "sparse"
    title: ClassVar[str] = "Sparse Transformer attention"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^1.5"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities()
    transposes_keys: ClassVar[bool] = False
    reasons: ClassVar[dict[str, str]] = {
        "decode": "needs a stride that does not change while it decodes: set stride",
    }

    def __post_init__(self) -> None:
        if self.pattern not in ("strided", "fixed"):
            raise RequestError(f"pattern={self.pattern}: possible: strided, fixed")
        if self.stride is not None and self.stride < 1:
            raise RequestError(f"stride={self.stride}: at least 1, or none for sqrt N")

    def stride_for(self, n: Number) -> Number:
        """The stride at a length."""
        return root(n) if self.stride is None else self.stride

    # -- what runs -----------------------------------------------------------------------
    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Gathered blocks; strided joins the near and the far tokens in one softmax."""
        w, stride = workload, self.stride_for(workload.seq_len)
        if self.pattern == "strided":
            masks = self._strided_masks(tape, w, stride)
            blocks = self.strided_blocks(w, stride)
            return write_gathered(tape, q, k, v, blocks, masks, merges=True)
        own = minimum(stride, w.seq_len)
        masks = [write_hidden(tape, tape.booleans("own mask", own, own))] if w.causal else []
        return write_gathered(tape, q, k, v, self.fixed_blocks(w, stride), masks)

    @staticmethod
    def _strided_masks(tape: Tape, w: Workload, stride: Number) -> list[Tensor]:
        n = w.seq_len
        near = write_band_mask(tape, minimum(stride, n), stride - 1, 0 if w.causal else stride - 1)
        classes = ceil_div(n, stride)
        far = (classes - (1 if w.causal else 0)) * reached(classes - 1)
        mask = tape.booleans("far mask", far, far, passes=1 if w.causal else 2)
        return [near, write_hidden(tape, mask)]

    def strided_blocks(self, w: Workload, stride: Number) -> list[Blocks]:
        """The band nearer than a stride, then one residue class after the other."""
        n, full = w.seq_len, floor_div(w.seq_len, stride)
        more = n - full * stride
        near = band_blocks(n, stride, stride - 1, 0 if w.causal else stride - 1)
        far = []
        for name, classes, tokens in (
            ("longer classes", more, full + 1),
            ("shorter classes", stride - more, full),
        ):
            rows = tokens - 1 if w.causal else tokens
            times = classes * reached(tokens - 1)
            far.append(Blocks(name, times, rows, rows, merges=True))
        return near + [group for group in far if not (is_plain(group.times) and group.times == 0)]

    def fixed_blocks(self, w: Workload, stride: Number) -> list[Blocks]:
        """Blocks of a stride over themselves and the last tokens of the others."""
        n, full = w.seq_len, floor_div(w.seq_len, stride)
        last = n - full * stride
        end = [Blocks("cut block", reached(last), last, last + full, 2, w.causal, full)]
        if w.causal:
            middle = self._growing(full, stride)
        else:
            others = full - 1
            middle = [Blocks("blocks", full, stride, stride + others, 3, masked=False)]
        found = [*middle, *end]
        return [group for group in found if not (is_plain(group.times) and group.times == 0)]

    @staticmethod
    def _growing(count: Number, stride: Number) -> list[Blocks]:
        """Causal blocks: block m sees the last tokens of the m blocks before it.

        Work is linear in m, so the mean stands for the early blocks; the latest stand alone, for
        the memory and for a whole mean.
        """
        plain = is_plain(count)
        single = min(count, 1 + count % 2) if plain else 1
        early = maximum(0, count - single)
        mean = maximum(0, early - 1) // 2 if plain else (early - 1) / 2
        groups = [Blocks("early blocks", early, stride, stride + mean, 2, open_keys=mean)]
        for back in range(single, 0, -1):
            seen = count - back
            name = f"full block {back} from the end"
            groups.append(Blocks(name, reached(seen + 1), stride, stride + seen, 2, open_keys=seen))
        return groups

    # -- decoding ------------------------------------------------------------------------
    def seen(self, t: Number, stride: Number) -> Number:
        """Tokens the new token number t sees, at a stride."""
        before = floor_div(t - 1, stride)
        if self.pattern == "fixed":
            return t - before * stride + before
        return minimum(t, stride) + before

    def check(self, workload: Workload, scope: str) -> None:
        """Decoding needs a stride of its own: sqrt N would move with every token."""
        super().check(workload, scope)
        if workload.phase == "decode" and self.stride is None:
            raise RequestError(f"{self.name} {self.refusal('decode')} (--set stride=128)")

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """The tokens in sight are gathered from the cache, then attended to."""
        w = workload
        batch = w.batch_size * w.num_heads
        seen = self.seen(w.seq_len, self.stride_for(w.seq_len))
        tape.record("append to cache", (batch, 1), Cost(bytes_moved=2 * (k.size + v.size)))
        source = tape.constant(batch, seen, w.head_dim)
        keys = tape.emit("gathered keys", source.shape, Cost(), [source])
        values = tape.emit("gathered values", source.shape, Cost(), [source])
        out = weighted_values(tape, q, keys, values)
        tape.free(keys, values)
        return out

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Query-key pairs of the definition."""
        n = w.seq_len
        stride = self.stride_for(n)
        if w.phase == "decode":
            return self.seen(n, stride)
        full = floor_div(n, stride)
        last = n - full * stride
        if self.pattern == "fixed":
            return self._fixed_pairs(w.causal, full, last, stride)
        reach = minimum(stride - 1, n - 1)
        side = n * reach - exact_div(reach * (reach + 1), 2)
        # tokens a multiple of the stride before each row
        far = exact_div(stride * full * (full - 1), 2) + last * full
        return n + side + far if w.causal else n + 2 * (side + far)

    @staticmethod
    def _fixed_pairs(causal: bool, full: Number, last: Number, stride: Number) -> Number:
        if causal:
            own = full * exact_div(stride * (stride + 1), 2) + exact_div(last * (last + 1), 2)
            return own + stride * exact_div(full * (full - 1), 2) + last * full
        own = full * stride * stride + last * last
        return own + stride * full * maximum(0, full - 1) + last * full

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Softmax attention over the pairs a row sees."""
        rows = 1 if workload.phase == "decode" else workload.seq_len
        writer.softmax_attention(workload, self.pairs(workload), rows)


MECHANISMS = (Sparse,)
