"""Longformer (003, sparse family): a window around each token, and global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number, exact_div, maximum, minimum
from attnprof.counting.band import band_blocks, reached, write_band_mask
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.gathered import Blocks, write_gathered, write_hidden
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.mechanisms.standard.spec import causal_mask, weighted_values
from attnprof.workload import Workload

#: Rows of a block: small windows still make products worth their start-up.
SMALLEST_BLOCK = 64


def block_rows(window: int) -> int:
    """Rows of a block: a quarter of the window; few of its keys lie outside a row's own band."""
    return max(-(-window // 4), SMALLEST_BLOCK)


@dataclass(frozen=True, kw_only=True)
class Longformer(Mechanism):
    """Row i sees the tokens at most ``window`` away, and the first ``global_tokens`` tokens.

    Global tokens see everything. Blocks of rows meet a slice of the keys, so memory is linear in
    the length. ``impl=dense-mask`` is the document's own listing: the whole N×N product, then a
    mask (window only in the listing; here with the same global tokens).
    """

    window: int = 256
    global_tokens: int = 0
    impl: str = "blocks"

    name: ClassVar[str] = "longformer"
    title: ClassVar[str] = "Longformer"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    abilities: ClassVar[Abilities] = Abilities()
    same_as = ("", {"impl": "dense-mask"})
    transposes_keys: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.window < 1 or self.global_tokens < 0:
            raise RequestError(
                f"window={self.window} global_tokens={self.global_tokens}: a window is at least 1 "
                "token a side, global tokens at least 0"
            )
        if self.impl not in ("blocks", "dense-mask"):
            raise RequestError(f"impl={self.impl}: possible: blocks, dense-mask")

    # -- what runs -----------------------------------------------------------------------
    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of global tokens over everything, the others block by block."""
        if self.impl == "dense-mask":
            return self._dense(tape, workload, q, k, v)
        masks = self._write_masks(tape, workload)
        return write_gathered(tape, q, k, v, self.groups(workload), masks)

    def _write_masks(self, tape: Tape, w: Workload) -> list[Tensor]:
        """The band's mask, shared by all blocks, and that of the global rows if causal."""
        masks = []
        if w.causal and self.global_tokens:
            g = minimum(self.global_tokens, w.seq_len)
            masks.append(write_hidden(tape, tape.booleans("mask of the global rows", g, g)))
        others = self._others(w.seq_len)
        rows, after = minimum(block_rows(self.window), others), 0 if w.causal else self.window
        with tape.repeat(reached(others)):
            masks.append(write_band_mask(tape, rows, self.window, after))
        return masks

    def _others(self, n: Number) -> Number:
        """Tokens that are not global."""
        return maximum(0, n - self.global_tokens)

    def groups(self, w: Workload) -> list[Blocks]:
        """The rows of global tokens over everything, then the band."""
        after = 0 if w.causal else self.window
        g = minimum(self.global_tokens, w.seq_len) if self.global_tokens else 0
        rows = block_rows(self.window)
        band = band_blocks(self._others(w.seq_len), rows, self.window, after, g)
        if not self.global_tokens:
            return band
        keys = g if w.causal else w.seq_len
        return [Blocks("global rows", 1, g, keys, masked=w.causal), *band]

    def _dense(self, tape: Tape, w: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The document's listing: full scores, then everything outside the window masked."""
        n = w.seq_len
        mask = causal_mask(tape, n)
        lower = tape.emit("window mask, below", (n, n), Cost(bytes_moved=2 * n * n), item_size=1)
        mask = tape.emit("window mask", (n, n), Cost(), [mask, lower], item_size=1, into=mask)
        tape.free(lower)
        if self.global_tokens:
            cost = Cost(bytes_moved=self._global_bytes(n, causal=w.causal))
            tape.record("mask of the global tokens", (n, n), cost)
        out = weighted_values(tape, q, k, v, mask)
        tape.free(mask)
        return out

    def _global_bytes(self, n: Number, *, causal: bool) -> Number:
        """Rows and columns of the global tokens opened; a triangle of them, the rest closed."""
        g, seen = self.global_tokens, minimum(self.global_tokens, n)
        opened = 2 * (seen * n + 1)
        return opened + 3 * g * g + 2 * seen * seen + seen * (n - seen) + 1 if causal else opened

    # -- decoding ------------------------------------------------------------------------
    def seen(self, t: Number) -> Number:
        """Tokens the new token number t sees: globals, and the window before it."""
        g = self.global_tokens
        return minimum(t, g) + minimum(maximum(t - g, 0), self.window + 1)

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """One row over the window and the globals; older tokens are forgotten."""
        w = workload
        batch, seen = w.batch_size * w.num_heads, self.seen(w.seq_len)
        keys, values = (tape.constant(batch, seen, w.head_dim) for _ in range(2))
        tape.record("append to cache", (batch, 1), Cost(bytes_moved=2 * (k.size + v.size)))
        return weighted_values(tape, q, keys, values)

    def state_entries(self, workload: Workload) -> Number:
        """Keys and values of the tokens that can still be seen."""
        w = workload
        return 2 * w.batch_size * w.num_heads * self.seen(w.seq_len) * w.head_dim

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Query-key pairs of the definition: band, global columns, global rows."""
        if w.phase == "decode":
            return self.seen(w.seq_len)
        g = minimum(self.global_tokens, w.seq_len)
        n, reach = w.seq_len - g, minimum(self.window, maximum(0, w.seq_len - g - 1))
        side = n * reach - exact_div(reach * (reach + 1), 2)
        if w.causal:
            return n + side + n * g + exact_div(g * (g + 1), 2)
        return n + 2 * side + n * g + g * w.seq_len

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Softmax attention over the pairs a row sees."""
        rows = 1 if workload.phase == "decode" else workload.seq_len
        writer.softmax_attention(workload, self.pairs(workload), rows)


MECHANISMS = (Longformer,)
