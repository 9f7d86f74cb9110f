"""A window around each token: Longformer (003) with global tokens, and sliding windows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attnprof.blocks.gathered import (
    Block,
    band_mask,
    gathered_attention,
    hidden,
    in_band,
    sink_attention,
)
from attnprof.blocks.softmax import KeyValueState, causal_mask, row_products, weighted_values
from attnprof.costs import Number, exact_div, maximum, minimum
from attnprof.mechanism import DENSE_MASK, Abilities, Mechanism, Variant
from attnprof.ops.caches import in_sight
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, repeat_heads
from attnprof.workload import Workload, rows

#: Rows of a block: small windows still make products worth their start-up.
SMALLEST_BLOCK = 64


def block_rows(window: int) -> int:
    """Return rows of a block: a quarter of the window; most keys are in each row's band."""
    return max(-(-window // 4), SMALLEST_BLOCK)


@dataclass(frozen=True, kw_only=True)
class Neighbours(Mechanism):
    """Row i sees the tokens at most ``reach`` away, and the ``first`` tokens, which see everything.

    Blocks of rows meet a slice of the keys; ``impl=dense-mask`` masks the whole N×N product.
    """

    window: int = 256
    impl = "blocks"  #: a parameter in subclasses

    family: ClassVar[str] = "sparse"
    time_order = memory_order = "N"
    variants: ClassVar[tuple[Variant, ...]] = (DENSE_MASK,)
    same_as = ("", {"impl": "dense-mask"})
    tuned = ("window",)
    itself: ClassVar[int] = 0  #: 1 where the window counts the row's own token
    seen_by_all: ClassVar[str] = "global_tokens"  #: the parameter that counts the first tokens

    @property
    def reach(self) -> Any:
        """Largest distance at which a row sees a token."""
        return self.window - self.itself

    @property
    def first(self) -> Any:
        """Number of leading tokens that every row sees."""
        return getattr(self, self.seen_by_all)

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute global rows over all tokens and other rows by blocks; or a masked product."""
        n, operands, sink = q.shape[2], (flat(q), flat(k), flat(v)), self.sinks(q, weights)
        shape = *q.shape[:3], v.shape[-1]
        if self.impl == "dense-mask":
            mask = self._dense_mask(n, causal, q)
            # gradients lie as those of the blocks do
            return weighted_values(*operands, mask, row_products, sink).view(shape)
        masks, pattern = [], partial(self._blocks, causal)
        if causal and self.first:  # the mask of the global rows
            masks.append(hidden(causal_mask(minimum(self.first, n), q), q))
        rows = minimum(block_rows(self.reach), self._others(n))
        masks.append(band_mask(rows, self.reach, self._after(causal), q))  # shared by all blocks
        if sink is not None:
            return sink_attention(*operands, sink, *masks, pattern=pattern).view(shape)
        return gathered_attention(*operands, *masks, pattern=pattern, merges=False).view(shape)

    def sinks(self, q: Any, weights: Any) -> Any:
        """Return a sink's logits (b·h, 1, 1), one more score of each softmax; None without one."""
        return None

    def _others(self, n: Any) -> Any:
        """Return the number of tokens that are not global."""
        return maximum(0, n - self.first)

    def _after(self, causal: bool) -> int:
        return 0 if causal else self.reach

    def _blocks(self, causal: bool, q: Any, masks: tuple[Any, ...]) -> Iterator[Block]:
        """Yield the global rows, then blocks of other rows with neighbours and global tokens."""
        n = q.shape[1]
        g = minimum(self.first, n) if self.first else 0
        front = [slice(0, g)] if self.first else []
        if front and causal:
            yield Block(front[0], (front[0],), masks[0])
        elif front:
            yield Block(front[0], (slice(0, n),))
        rows, after = block_rows(self.reach), self._after(causal)
        for block, near_keys, columns in in_band(q, self._others(n), rows, self.reach, after, g):
            mask = masks[-1][: block.stop - block.start, columns]
            yield Block(block, (*front, near_keys), mask, g)

    def _dense_mask(self, n: Any, causal: bool, like: Any) -> Any:
        """Return the mask of the document's listing (n, n): True where a row must not look."""
        first = minimum(self.first, n)
        mask = like.new_ones(n, n, dtype=bool).tril_(-self.reach - 1)
        if not causal:
            mask.logical_or_(like.new_ones(n, n, dtype=bool).triu_(self.reach + 1))
        if self.first:
            mask[:first] = False
            mask[:, :first] = False
        return mask.logical_or_(causal_mask(n, like)) if causal else mask

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return caches of the global tokens and one window; older tokens are forgotten."""
        widths = sizes.head_dim, sizes.value_head_dim
        heads, first, latest = sizes.num_kv_heads, self.first, self.reach + 1
        return KeyValueState(*(cache.window(heads, width, first, latest) for width in widths))

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to the tokens in its window; keys are in any order."""
        b, h, _, d = q.shape
        keys, values = state.append(k, v)
        sink, heads = self.sinks(q, weights), b * k.shape[1]
        sink = None if sink is None else sink.view(heads, -1, 1)
        rows = q.reshape(heads, -1, d)
        return weighted_values(rows, keys, values, sink=sink).view(b, h, 1, -1), state

    def tokens_in_sight(self, t: Number) -> Number:
        """Return how many tokens the new token number t sees: global ones, and its window."""
        return in_sight(t, self.first, self.reach + 1)

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Return query-key pairs of the definition: band, global columns, global rows."""
        if w.phase == "decode":
            return self.tokens_in_sight(w.seq_len)
        g = minimum(self.first, w.seq_len)
        n, reach = w.seq_len - g, minimum(self.reach, maximum(0, w.seq_len - g - 1))
        side = n * reach - exact_div(reach * (reach + 1), 2)
        if w.causal:
            return n + side + n * g + exact_div(g * (g + 1), 2)
        return n + 2 * side + n * g + g * w.seq_len

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define softmax attention over the pairs of the band and the global tokens."""
        writer.softmax_attention(workload, self.pairs(workload), rows(workload))


@dataclass(frozen=True, kw_only=True)
class Longformer(Neighbours):
    """Row i sees the tokens at most ``window`` away, and the first ``global_tokens`` tokens.

    Global tokens see everything. Blocks of rows meet a slice of the keys, so memory is linear in
    the length. ``impl=dense-mask`` is the document's own listing: the whole N×N product, then a
    mask (window only in the listing; here with the same global tokens).
    """

    global_tokens: int = 0
    impl: str = "blocks"

    name: ClassVar[str] = "longformer"
    title: ClassVar[str] = "Longformer"
    document: ClassVar[str] = "003"
    counted: ClassVar[dict[str, str]] = {
        "window": "tokens a side; sliding_window of a configuration counts all that a token sees, "
        "itself included: window + 1 if causal",
    }
    to_softmax = (
        "approximates", "softmax over the pairs in its window: all of them from N - 1 tokens on",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {
        "window": 1, "global_tokens": 0, "impl": ("blocks", "dense-mask"),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Neighbours):
    """A causal row sees the latest ``window`` tokens, itself included, and ``first_tokens``.

    As ``sliding_window`` of configurations counts (Jiang et al. 2023); without a mask also
    window - 1 tokens ahead. ``first_tokens`` are seen from everywhere (Xiao et al. 2024; positions
    stay as they are). ``sink`` is one more logit of each head's softmax, learned and without a
    value (gpt-oss, 2025). A cache holds ``window`` tokens with the newest; window - 1 of them
    serve the next.
    """

    window: int = 128
    first_tokens: int = 0
    sink: bool = False
    impl: str = "blocks"

    name: ClassVar[str] = "sliding-window"
    title: ClassVar[str] = "Sliding-window attention"
    document: ClassVar[str] = "arXiv:2309.17453"
    itself = 1
    seen_by_all = "first_tokens"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True)
    counted: ClassVar[dict[str, str]] = {
        "window": "tokens that a causal row sees, itself included; longformer's counts one fewer",
    }
    to_softmax = (
        "approximates", "softmax over the pairs in its window: all of them from N tokens on",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {
        "window": 1, "first_tokens": 0, "impl": ("blocks", "dense-mask"),
    }  # fmt: skip

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return one logit per head."""
        return {"sink": Weight((sizes.num_heads,), 0.0) if self.sink else None}

    def sinks(self, q: Any, weights: Any) -> Any:
        """Return each head's learned logit, for all samples."""
        if not self.sink:
            return None
        b, h = q.shape[:2]
        return weights.sink.unsqueeze(0).expand(b, h).reshape(b * h, 1, 1)

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute the core with shared keys and values repeated per head: linear in the length."""
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        return super().core(q, k, v, causal, weights)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define softmax attention over the band's pairs; the sink is one more score."""
        w = workload
        super().define_core(writer, w)
        if self.sink:
            more: Number = w.batch_size * w.num_heads * rows(w)
            writer.softmax(more, 0, prefix="sink: ")


MECHANISMS = (Longformer, SlidingWindow)
