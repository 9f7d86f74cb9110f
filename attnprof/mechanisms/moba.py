"""Mixture of block attention (MoBA): softmax over the blocks whose mean keys a head likes best."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.picked import (
    PickedForms,
    block_picks,
    block_sums,
    blocks_before,
    define_block_sums,
    over_picks,
    pairs_of_blocks,
)
from attnprof.blocks.softmax import KeyValueState, empty_rows
from attnprof.costs import Number, minimum
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.layer import Definition, LayerSizes, flat, kept
from attnprof.workload import Workload, rows


@dataclass
class BlockState(KeyValueState):
    """Keys and values of every token so far, and sums of each block's keys, (b·g, blocks, d)."""

    sums: Any


@dataclass(frozen=True, kw_only=True)
class BlockMixture(PickedForms, Mechanism):
    """A row attends to its own block of ``block`` tokens and to ``top`` - 1 blocks before it.

    Each head picks blocks whose mean key has the largest product with its query (Lu et al. 2025),
    of equal ones the earlier. Causal by nature, so ``causal`` changes nothing. Choosing has no
    gradient. ``impl`` is a form of :class:`attnprof.blocks.picked.PickedForms`.
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
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True)
    same_as = ("", {"impl": "dense-mask"})
    tuned: ClassVar[tuple[str, ...]] = ("top",)
    to_softmax = ("approximates", "softmax over the blocks that a head picks: over all in the end")
    allowed: ClassVar[dict[str, Any]] = {"top": 1, "block": 1, "impl": PickedForms.forms}

    @property
    def picked_tokens(self) -> int:
        """Number of tokens that a row picks, if there are as many."""
        return self.top * self.block

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """Pick blocks for every row and head, then attend to them."""
        keys, values = flat(k), flat(v)
        sums = block_sums(keys.detach(), self.block)
        return self._attended(q, keys, values, sums, weights, causal=True)

    def _attended(
        self, q: Any, k: Any, v: Any, sums: Any, weights: Any, *, causal: bool, start: Any = 0
    ) -> Any:
        """Return rows (b, h, n, dv) of q (b, h, n, d); the first is token number ``start``."""
        rows = flat(q)
        picked = block_picks(rows.detach(), sums, top=self.top, block=self.block, start=start)
        rows, group = rows.unsqueeze(1), weights.sizes.group
        y = self.over_blocks(rows, k, v, picked, causal=causal, start=start, share=group)
        return y.view(*q.shape[:3], -1)

    def over_blocks(self, q: Any, k: Any, v: Any, picked: Any, **rows: Any) -> Any:
        """Return rows of q (samples, heads, n, d) over blocks (samples, n, top) of k (g, m, d)."""
        gathered = self.gathers(k.shape[1], step=not rows["causal"])
        return over_picks(
            q, k.unsqueeze(1), v.unsqueeze(1), picked, gathered=gathered, top=self.top,
            block=self.block, **rows,
        )  # fmt: skip

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return empty caches."""
        keys, values = empty_rows(sizes, cache)
        sums = cache.block_sums(sizes.num_kv_heads, sizes.head_dim, self.block)
        return BlockState(keys, values, sums)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to its own block and the blocks that each head picks."""
        (keys, values), sums = state.append(k, v), state.sums.append(flat(k))
        start = keys.shape[1] - 1
        return self._attended(q, keys, values, sums, weights, causal=False, start=start), state

    def rows_read(self, w: Workload) -> Number:
        """Return rows of keys that a sequence's heads pick, at most all of them."""
        pairs = self.pairs(w.with_(phase="decode"))
        return minimum(w.num_heads * pairs, w.kv_heads * w.seq_len)

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return bytes of the rows that a step reads, and of all sums."""
        w, (_keys, _values, *sums) = workload, kept(self, workload, "core").entries
        read = w.batch_size * self.rows_read(w) * (w.head_dim + w.value_width)
        return w.item_size * (read + sum(sums))

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> Number:
        """Return query-key pairs of a head; in a step, the tokens that it sees."""
        return pairs_of_blocks(w, self.top, self.block)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define sums of keys, products of rows with earlier blocks, softmax attention."""
        w = workload
        define_block_sums(writer, w, self.block, w.kv_heads * w.head_dim)
        ranked = w.batch_size * w.num_heads * blocks_before(w, self.block)
        writer.dots("products with blocks", ranked, ranked * w.head_dim)
        writer.softmax_attention(w, self.pairs(w), rows(w))


MECHANISMS = (BlockMixture,)
