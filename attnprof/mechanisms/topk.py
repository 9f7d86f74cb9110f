"""Softmax attention over the tokens that an indexer ranks highest (DeepSeek-V3.2, 2025)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.picked import (
    define_indexer,
    picked_attention,
    picked_pairs,
    picks,
    unpicked,
)
from attnprof.blocks.softmax import KeyValueState, weighted_values
from attnprof.costs import Number, minimum
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.ops.layer import Definition, LayerSizes, flat, merge_heads, split_heads
from attnprof.workload import Workload, pairs, rows


@dataclass
class IndexedState(KeyValueState):
    """Keys and values of every token so far, and the keys of the indexer, (b, t, d)."""

    indexed: Any


@dataclass(frozen=True, kw_only=True)
class TopK(Mechanism):
    """A row attends to the ``top`` tokens of highest score, the same ones for all heads.

    Scores are those of an indexer with heads of its own and one key a token, Σ_j w_j relu(q_j · k),
    of q, k and w mapped from x. Equal scores go to the earlier token. ``impl=gathered`` copies the
    picked keys and multiplies only these, ``dense-mask`` masks the products of all. Choosing has no
    gradient, so the indexer is trained by a loss of its own. Norms, turns and latents of the
    published layer are not in it.
    """

    top: int = 2048
    index_heads: int = 64
    index_dim: int = 128
    impl: str = "gathered"

    name: ClassVar[str] = "topk"
    title: ClassVar[str] = "Top-k attention over an indexer (DSA)"
    document: ClassVar[str] = "arXiv:2512.02556"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, attend=False)
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "softmax over the tokens that an indexer picks, once it is trained")
    allowed: ClassVar[dict[str, Any]] = {
        "top": 1,
        "index_heads": 1,
        "index_dim": 1,
        "impl": ("gathered", "dense-mask"),
    }

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Queries, keys and values; those of the indexer, and its heads' shares; output."""
        maps = sizes.maps("qkvo")
        out = {"o_proj": maps.pop("o_proj")}
        widths = {
            "index_q": self.index_heads * self.index_dim,
            "index_k": self.index_dim,
            "index_shares": self.index_heads,
        }
        return {**maps, **{name: (sizes.d_model, width) for name, width in widths.items()}, **out}

    # -- what runs -----------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Tokens are picked for every row, then attended to."""
        places = self._places(layer, x, layer.index_k(x), causal)
        q, k, v = self._heads(layer, x)
        y = self._attended(q, k, v, places, causal)
        return layer.o_proj(merge_heads(y))

    def _heads(self, layer: Any, x: Any) -> tuple[Any, ...]:
        """Queries (b, h, n, d), keys and values (b, g, n, ·)."""
        g, maps = layer.sizes.num_kv_heads, (layer.q_proj, layer.k_proj, layer.v_proj)
        heads = zip(maps, (layer.sizes.num_heads, g, g), strict=True)
        return tuple(split_heads(each(x), count, in_rows=True, group=2) for each, count in heads)

    def _places(self, layer: Any, x: Any, keys: Any, causal: bool) -> Any:
        """Places (b, n, top) in keys (b, m, index_dim)."""
        b, n, _ = x.shape
        q = layer.index_q(x).view(b, n, self.index_heads, self.index_dim)
        shares = layer.index_shares(x)
        return picks(q.detach(), keys.detach(), shares.detach(), top=self.top, causal=causal)

    def _attended(self, q: Any, k: Any, v: Any, places: Any, causal: bool) -> Any:
        """(b, h, n, dv)."""
        if self.impl == "gathered":
            return picked_attention(q, k, v, places, top=self.top, causal=causal)
        (b, h, n, d), g, m = q.shape, k.shape[1], k.shape[2]
        hidden = unpicked(places, h, m, q, causal=causal, share=g)
        out = weighted_values(q.reshape(b * g, -1, d), flat(k), flat(v), hidden)
        return out.view(b, h, n, -1)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Empty caches."""
        g = sizes.num_kv_heads
        keys, values = cache(g, sizes.head_dim), cache(g, sizes.value_head_dim)
        return IndexedState(keys, values, cache(1, self.index_dim))

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """The new token over those that it picks of all so far."""
        b, g = x.shape[0], layer.sizes.num_kv_heads
        places = self._places(layer, x, state.indexed.append(layer.index_k(x)), causal=False)
        q, k, v = self._heads(layer, x)
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        k_all, v_all = (seen.view(b, g, -1, seen.shape[-1]) for seen in (keys, values))
        y = self._attended(q, k_all, v_all, places, causal=False)
        return layer.o_proj(merge_heads(y)), state

    def state_entries(self, workload: Workload) -> Number:
        """Keys, values, and a key of the indexer, of every token."""
        w = workload
        width = w.kv_heads * (w.head_dim + w.value_width) + self.index_dim
        return w.batch_size * w.seq_len * width

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """The indexer reads a key of every token, attention the rows that are picked."""
        w = workload
        picked = minimum(self.top, w.seq_len) * w.kv_heads * (w.head_dim + w.value_width)
        return w.batch_size * w.item_size * (picked + w.seq_len * self.index_dim)

    # -- the definition ------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Maps, scores of the indexer for all pairs, softmax attention over the picked ones."""
        w = workload
        tokens = w.batch_size * rows(w)
        sizes = LayerSizes.of(w)
        for name, (inner, outer) in self.layer_maps(sizes).items():
            if name != "o_proj":
                writer.dots(name, tokens * outer, tokens * inner * outer, tokens, outer)
        ranked = w.batch_size * pairs(w)
        define_indexer(writer, ranked, self.index_heads, self.index_dim)
        writer.softmax_attention(w, picked_pairs(w, self.top), rows(w))
        writer.projections("o", w)


MECHANISMS = (TopK,)
