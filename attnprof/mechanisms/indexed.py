"""Latent attention over the tokens that an indexer picks (DeepSeek-V3.2, 2025)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.norms import angles, normed
from attnprof.blocks.picked import define_indexer, picked_attention, picked_pairs, picks, unpicked
from attnprof.costs import Number, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import Variant
from attnprof.mechanisms.latent import Latent
from attnprof.ops.functional import join, wide_positions
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Workload, pairs


@dataclass
class IndexedRows:
    """Latents with shared keys, and the indexer's keys, of every token so far."""

    rows: Any
    indexed: Any


@dataclass(frozen=True, kw_only=True)
class IndexedLatent(Latent):
    """Absorbed latent attention of a row to the ``top`` latents that an indexer ranks highest.

    Its queries are maps of what the others' are, its one key a token a layer-normed map of x, the
    shares of its heads a map of x; scores are those of ``topk``, and turns of theirs left out.
    ``impl=gathered`` copies the picked latents and multiplies only these, ``dense-mask`` masks the
    products of all. The indexer has no gradient here.
    """

    top: int = 2048
    index_heads: int = 64
    index_dim: int = 128
    impl: str = "gathered"

    name: ClassVar[str] = "dsa"
    title: ClassVar[str] = "Top-k latent attention over an indexer (DeepSeek sparse attention)"
    document: ClassVar[str] = "arXiv:2512.02556"
    family: ClassVar[str] = "sparse"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "keys and values are made from latents, that an indexer picks")
    allowed: ClassVar[dict[str, Any]] = {
        **Latent.allowed,
        "top": 1,
        "index_heads": 1,
        "index_dim": 1,
        "impl": ("gathered", "dense-mask"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_tokens > 1:
            raise RequestError(f"step_tokens={self.step_tokens}: {self.name} takes one at a time")

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """The base's, and those of the indexer's norm."""
        norm = {"index_norm": 1.0, "index_shift": 0.0}
        more = {name: Weight((self.index_dim,), start) for name, start in norm.items()}
        return {**super().core_weights(sizes), **more}

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """The base's, and the indexer's."""
        maps = super().layer_maps(sizes)
        out, source = maps.pop("o_proj"), sizes.d_model if self.q_rank is None else self.q_rank
        maps["index_q"] = source, self.index_heads * self.index_dim
        maps["index_k"] = sizes.d_model, self.index_dim
        maps["index_shares"] = sizes.d_model, self.index_heads
        return {**maps, "o_proj": out}

    # -- what runs -----------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """A prompt."""
        source = self._source(layer, x)
        places = self._places(layer, x, source, self._index_keys(layer, x), causal)
        turns = angles(x, wide_positions(x, x.shape[1]), self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, source, turns)
        rows = latent if rotary is None else join([latent, rotary], -1)
        return layer.o_proj(self._picked(layer, (key, shared), rows, latent, places, causal))

    def _index_keys(self, layer: Any, x: Any) -> Any:
        """Keys (b, n, index_dim): rows less their mean, over their deviation, weighted, shifted."""
        keys = layer.index_k(x)
        centred = keys - keys.mean(-1, keepdim=True)
        return normed(centred, layer.index_norm) + layer.index_shift

    def _places(self, layer: Any, x: Any, source: Any, keys: Any, causal: bool) -> Any:
        """Places (b, n, top) in keys (b, m, index_dim)."""
        b, n, _ = x.shape
        q = layer.index_q(source).view(b, n, self.index_heads, self.index_dim)
        shares = layer.index_shares(x)
        return picks(q.detach(), keys.detach(), shares.detach(), top=self.top, causal=causal)

    def _picked(
        self, layer: Any, asked: tuple[Any, Any], rows: Any, latent: Any, places: Any, causal: bool
    ) -> Any:
        """The heads' outputs of queries over the rows (b, m, c + shared) at their places."""
        h, width = asked[0].shape[1], asked[0].shape[-1] + self.rope_dim
        if self.impl == "dense-mask":
            mask = unpicked(places, h, rows.shape[1], rows, causal=causal)
            return self._absorbed(layer, *asked, rows, latent, mask)
        mixed = picked_attention(
            self._absorbing(layer, *asked), rows.unsqueeze(1), latent.unsqueeze(1), places,
            top=self.top, causal=causal, width=width,
        )  # fmt: skip
        return self._outputs(layer, mixed)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Latents with shared keys, and the indexer's keys."""
        return IndexedRows(super().init_state(sizes, cache), cache(1, self.index_dim))

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """The new token over those that it picks of all so far."""
        place, c = state.rows.length + 1, self.widths(layer.sizes.head_dim)[0]
        source = self._source(layer, x)
        indexed = state.indexed.append(self._index_keys(layer, x))
        places = self._places(layer, x, source, indexed, causal=False)
        turns = angles(x, place, self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, source, turns)
        rows = state.rows.append(latent if rotary is None else join([latent, rotary], -1))
        del latent, rotary
        y = self._picked(layer, (key, shared), rows, rows[..., :c], places, causal=False)
        return layer.o_proj(y), state

    def form(self, head_dim: Number, phase: str) -> str:
        """Latents are never expanded."""
        return "absorbed"

    def state_entries(self, workload: Workload) -> Number:
        """Those of latents, and a key of the indexer a token."""
        w = workload
        return super().state_entries(w) + w.batch_size * w.seq_len * self.index_dim

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """The indexer reads a key of every token, attention the latents that are picked."""
        w = workload
        width = self.widths(w.head_dim)[0] + self.rope_dim
        entries = minimum(self.top, w.seq_len) * width + w.seq_len * self.index_dim
        return w.batch_size * w.item_size * entries

    # -- the definition ------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """The base's over the picked pairs, and the indexer's scores of all."""
        super().define(writer, workload, scope)
        ranked = workload.batch_size * pairs(workload)
        define_indexer(writer, ranked, self.index_heads, self.index_dim)

    def _pairs(self, w: Workload) -> Number:
        """Pairs of a row and one that it picks."""
        return picked_pairs(w, self.top)


MECHANISMS = (IndexedLatent,)
