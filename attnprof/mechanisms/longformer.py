"""Longformer (003, sparse family): a window around each token, and global tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attnprof.blocks.gathered import Block, band_mask, gathered_attention, hidden, in_band
from attnprof.blocks.softmax import KeyValueState, causal_mask, row_products, weighted_values
from attnprof.costs import Number, exact_div, maximum, minimum
from attnprof.mechanism import Mechanism, Variant
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.workload import Workload, rows

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
    time_order = memory_order = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    same_as = ("", {"impl": "dense-mask"})
    tuned = ("window",)
    counted: ClassVar[dict[str, str]] = {
        "window": "tokens a side; sliding_window of a configuration counts all that a token sees, "
        "itself included: window + 1 if causal",
    }
    to_softmax = (
        "approximates", "softmax over the pairs in its window: all of them from N - 1 tokens on",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {
        "window": 1,
        "global_tokens": 0,
        "impl": ("blocks", "dense-mask"),
    }

    # -- what runs -----------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        """Rows of global tokens over everything, the others block by block; or a masked product."""
        n, operands = q.shape[2], (flat(q), flat(k), flat(v))
        if self.impl == "dense-mask":
            # gradients lie as those of the blocks do
            return weighted_values(*operands, self._dense_mask(n, causal, q), row_products).view(
                q.shape
            )
        masks, pattern = [], partial(self._blocks, causal)
        if causal and self.global_tokens:  # that of the global rows
            masks.append(hidden(causal_mask(minimum(self.global_tokens, n), q), q))
        rows = minimum(block_rows(self.window), self._others(n))
        masks.append(band_mask(rows, self.window, self._after(causal), q))  # shared by all blocks
        return gathered_attention(*operands, *masks, pattern=pattern, merges=False).view(q.shape)

    def _others(self, n: Any) -> Any:
        """Tokens that are not global."""
        return maximum(0, n - self.global_tokens)

    def _after(self, causal: bool) -> int:
        return 0 if causal else self.window

    def _blocks(self, causal: bool, q: Any, masks: tuple[Any, ...]) -> Iterator[Block]:
        """The rows of global tokens; the others in blocks, which see neighbours and globals."""
        n = q.shape[1]
        g = minimum(self.global_tokens, n) if self.global_tokens else 0
        front = [slice(0, g)] if self.global_tokens else []
        if front and causal:
            yield Block(front[0], (front[0],), masks[0])
        elif front:
            yield Block(front[0], (slice(0, n),))
        rows, after = block_rows(self.window), self._after(causal)
        for rows_of_block, seen, columns in in_band(
            q, self._others(n), rows, self.window, after, g
        ):
            mask = masks[-1][: rows_of_block.stop - rows_of_block.start, columns]
            yield Block(rows_of_block, (*front, seen), mask, g)

    def _dense_mask(self, n: Any, causal: bool, like: Any) -> Any:
        """The document's listing, (n, n): True where a row must not look."""
        window, g, seen = self.window, self.global_tokens, minimum(self.global_tokens, n)
        mask = like.new_ones(n, n, dtype=bool).triu_(1 if causal else window + 1)
        mask.logical_or_(like.new_ones(n, n, dtype=bool).tril_(-window - 1))
        if g:
            mask[:seen] = False
            mask[:, :seen] = False
        if g and causal:
            mask[:seen, :seen] = causal_mask(g, like)[:seen, :seen]
            mask[:seen, seen:] = True
        return mask

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Room for the global tokens and one window; older tokens are forgotten."""
        width, first, latest = sizes.head_dim, self.global_tokens, self.window + 1
        return KeyValueState(
            *(cache.window(sizes.num_heads, width, first, latest) for _ in range(2))
        )

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """The new token over what is still in sight; the order of keys does not matter."""
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        return weighted_values(flat(q), keys, values).view(q.shape), state

    def seen(self, t: Number) -> Number:
        """Tokens the new token number t sees: globals, and the window before it."""
        g = self.global_tokens
        return minimum(t, g) + minimum(maximum(t - g, 0), self.window + 1)

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
        writer.softmax_attention(workload, self.pairs(workload), rows(workload))


MECHANISMS = (Longformer,)
