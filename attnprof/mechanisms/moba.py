"""Mixture of block attention (MoBA): softmax over the blocks whose mean keys a head likes best."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.picked import (
    block_picks,
    block_sums,
    blocks_before,
    define_block_sums,
    pairs_of_blocks,
    picked_attention,
    tokens_of_blocks,
    unpicked,
)
from attnprof.blocks.softmax import KeyValueState, weighted_values
from attnprof.costs import Number, ceil_div, minimum
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.workload import Workload, rows


@dataclass
class BlockState(KeyValueState):
    """Keys and values of every token so far, and sums of each block's keys, (b·g, blocks, d)."""

    sums: Any


@dataclass(frozen=True, kw_only=True)
class BlockMixture(Mechanism):
    """A row attends to its own block of ``block`` tokens and to ``top`` - 1 blocks before it.

    Each head picks those whose mean key has the largest product with its query (Lu et al. 2025), of
    equal ones the earlier. Causal by nature, so ``causal`` changes nothing. Choosing has no
    gradient. ``impl=gathered`` copies the picked keys and multiplies only these, ``dense-mask``
    masks the products of all.
    """

    top: int = 3
    block: int = 512
    impl: str = "gathered"

    name: ClassVar[str] = "moba"
    title: ClassVar[str] = "Mixture of block attention (MoBA)"
    document: ClassVar[str] = "arXiv:2502.13189"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True)
    same_as = ("", {"impl": "dense-mask"})
    tuned: ClassVar[tuple[str, ...]] = ("top",)
    to_softmax = ("approximates", "softmax over the blocks that a head picks: over all in the end")
    allowed: ClassVar[dict[str, Any]] = {"top": 1, "block": 1, "impl": ("gathered", "dense-mask")}

    # -- what runs -----------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """Pick blocks for every row and head, then attend to them."""
        keys, values = flat(k), flat(v)
        sums = block_sums(keys.detach(), self.block)
        return self._attended(flat(q), keys, values, sums, weights).view(*q.shape[:3], -1)

    def _attended(self, q: Any, k: Any, v: Any, sums: Any, weights: Any, start: Any = None) -> Any:
        """Return rows (b·h, n, dv) of q (b·h, n, d): of all tokens, or from number ``start`` on."""
        first = 0 if start is None else start
        picked = block_picks(q.detach(), sums, top=self.top, block=self.block, start=first)
        return self.over_blocks(q.unsqueeze(1), k, v, picked, weights.sizes.group, start)

    def over_blocks(
        self, q: Any, k: Any, v: Any, picked: Any, share: Any, start: Any = None
    ) -> Any:
        """Return rows of q (samples, heads, n, d) over blocks (samples, n, top) of k (g, m, d).

        ``share`` samples have the same keys.
        """
        heads, d, (groups, m, _) = q.shape[1], q.shape[-1], k.shape
        if self.impl == "gathered":
            return picked_attention(
                q, k.unsqueeze(1), v.unsqueeze(1), picked, causal=True, share=share,
                top=self.top * self.block, block=self.block, start=0 if start is None else start,
            )  # fmt: skip
        causal = start is None
        hidden = unpicked(picked, heads, m, q, causal=causal, groups=groups, block=self.block)
        return weighted_values(q.reshape(groups, -1, d), k, v, hidden)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return empty caches."""
        g, d = sizes.num_kv_heads, sizes.head_dim
        sums = cache.block_sums(g, d, self.block)
        return BlockState(cache(g, d), cache(g, sizes.value_head_dim), sums)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to its own block and those that each head picks."""
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        sums = state.sums.append(flat(k))
        y = self._attended(flat(q), keys, values, sums, weights, keys.shape[1] - 1)
        return y.view(*q.shape[:3], -1), state

    def state_entries(self, workload: Workload) -> Number:
        """Return keys and values of every token, and a row of sums a block."""
        w = workload
        sums = ceil_div(w.seq_len, self.block) * w.head_dim
        return w.batch_size * w.kv_heads * (w.seq_len * (w.head_dim + w.value_width) + sums)

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return all sums, and the rows that heads pick: no more than there are."""
        w, t = workload, workload.seq_len
        picked = minimum(w.num_heads * self.seen(t), w.kv_heads * t)
        sums = w.kv_heads * ceil_div(t, self.block) * w.head_dim
        return w.batch_size * w.item_size * (picked * (w.head_dim + w.value_width) + sums)

    def seen(self, t: Number) -> Number:
        """Return tokens that the new token number t sees."""
        return tokens_of_blocks(t, self.top, self.block)

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Query-key pairs of a head."""
        return pairs_of_blocks(w, self.top, self.block)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define sums of keys, products of rows with earlier blocks, softmax attention."""
        w = workload
        define_block_sums(writer, w, self.block, w.kv_heads * w.head_dim)
        ranked = w.batch_size * w.num_heads * blocks_before(w, self.block)
        writer.dots("products with blocks", ranked, ranked * w.head_dim)
        writer.softmax_attention(w, self.pairs(w), rows(w))


MECHANISMS = (BlockMixture,)
