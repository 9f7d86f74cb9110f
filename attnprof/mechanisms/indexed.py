"""Attention over the tokens that an indexer ranks highest (DeepSeek-V3.2, 2025): plain, latent."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import angles, normed
from attnprof.blocks.picked import define_indexer, picked_attention, picked_pairs, picks, unpicked
from attnprof.blocks.softmax import KeyValueState, weighted_values
from attnprof.costs import Number, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, Variant
from attnprof.mechanisms.latent import Latent
from attnprof.ops.functional import join, wide_positions
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, merge_heads, split_heads
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What mechanisms share whose rows attend to the tokens that an indexer ranks highest."""

    top: int = 2048
    index_heads: int = 64
    index_dim: int = 128
    impl: str = "gathered"

    document: ClassVar[str] = "arXiv:2512.02556"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask"),
    )
    allowed: ClassVar[dict[str, Any]] = {
        "top": 1,
        "index_heads": 1,
        "index_dim": 1,
        "impl": ("gathered", "dense-mask"),
    }

    def index_maps(self, sizes: LayerSizes, source: Number) -> dict[str, tuple[Number, Number]]:
        """Return maps of the indexer: queries, from ``source`` entries; key; heads' weights."""
        return {
            "index_q": (source, self.index_heads * self.index_dim),
            "index_k": (sizes.d_model, self.index_dim),
            "index_shares": (sizes.d_model, self.index_heads),
        }

    def places(self, layer: Any, x: Any, source: Any, keys: Any, causal: bool) -> Any:
        """Return places (b, n, top) in keys (b, m, index_dim); queries are maps of ``source``."""
        b, n, _ = x.shape
        q = layer.index_q(source).view(b, n, self.index_heads, self.index_dim)
        shares = layer.index_shares(x)
        return picks(q.detach(), keys.detach(), shares.detach(), top=self.top, causal=causal)

    def define_index(self, writer: Definition, workload: Workload) -> None:
        """Write the operations of the scores of all pairs."""
        ranked = workload.batch_size * pairs(workload)
        define_indexer(writer, ranked, self.index_heads, self.index_dim)

    def picked_traffic(self, w: Workload, width: Number) -> Number:
        """Return a step's bytes: picked rows of ``width`` entries, an indexer's key per token."""
        entries = minimum(self.top, w.seq_len) * width + w.seq_len * self.index_dim
        return w.batch_size * w.item_size * entries


@dataclass
class IndexedState(KeyValueState):
    """Keys and values of every token so far, and the keys of the indexer, (b, t, d)."""

    indexed: Any


@dataclass(frozen=True, kw_only=True)
class TopK(Indexed, Mechanism):
    """A row attends to the ``top`` tokens of highest score, the same ones for all heads.

    Scores are those of an indexer with heads of its own and one key a token, Σ_j w_j relu(q_j · k),
    of q, k and w mapped from x. Equal scores go to the earlier token. ``impl=gathered`` copies the
    picked keys and multiplies only these, ``dense-mask`` masks the products of all. Choosing has no
    gradient, so the indexer is trained by a loss of its own. Norms, turns and latents of the
    published layer are not in it.
    """

    name: ClassVar[str] = "topk"
    title: ClassVar[str] = "Top-k attention over an indexer (DSA)"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, attend=False)
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "softmax over the tokens that an indexer picks, once it is trained")

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return maps of queries, keys, values, of the indexer and of the output."""
        maps = sizes.maps("qkvo")
        out = {"o_proj": maps.pop("o_proj")}
        return {**maps, **self.index_maps(sizes, sizes.d_model), **out}

    # -- what runs -----------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Pick tokens for every row, then attend to them."""
        places = self.places(layer, x, x, layer.index_k(x), causal)
        q, k, v = self._heads(layer, x)
        y = self._attended(q, k, v, places, causal)
        return layer.o_proj(merge_heads(y))

    def _heads(self, layer: Any, x: Any) -> tuple[Any, ...]:
        """Return queries (b, h, n, d), keys and values (b, g, n, ·)."""
        g, maps = layer.sizes.num_kv_heads, (layer.q_proj, layer.k_proj, layer.v_proj)
        heads = zip(maps, (layer.sizes.num_heads, g, g), strict=True)
        return tuple(split_heads(each(x), count, in_rows=True, group=2) for each, count in heads)

    def _attended(self, q: Any, k: Any, v: Any, places: Any, causal: bool) -> Any:
        """Return (b, h, n, dv)."""
        if self.impl == "gathered":
            return picked_attention(q, k, v, places, top=self.top, causal=causal)
        (b, h, n, d), g, m = q.shape, k.shape[1], k.shape[2]
        hidden = unpicked(places, h, m, q, causal=causal, share=g)
        out = weighted_values(q.reshape(b * g, -1, d), flat(k), flat(v), hidden)
        return out.view(b, h, n, -1)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return empty caches."""
        g = sizes.num_kv_heads
        keys, values = cache(g, sizes.head_dim), cache(g, sizes.value_head_dim)
        return IndexedState(keys, values, cache(1, self.index_dim))

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Attend from the new token to those that it picks of all so far."""
        b, g = x.shape[0], layer.sizes.num_kv_heads
        places = self.places(layer, x, x, state.indexed.append(layer.index_k(x)), causal=False)
        q, k, v = self._heads(layer, x)
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        k_all, v_all = (seen.view(b, g, -1, seen.shape[-1]) for seen in (keys, values))
        y = self._attended(q, k_all, v_all, places, causal=False)
        return layer.o_proj(merge_heads(y)), state

    def state_entries(self, workload: Workload) -> Number:
        """Return keys, values, and a key of the indexer, of every token."""
        w = workload
        width = w.kv_heads * (w.head_dim + w.value_width) + self.index_dim
        return w.batch_size * w.seq_len * width

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return the bytes of the indexer's key of every token, and of the rows that are picked."""
        w = workload
        return self.picked_traffic(w, w.kv_heads * (w.head_dim + w.value_width))

    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define maps, the indexer's scores of all pairs, softmax attention over picked ones."""
        w = workload
        writer.maps(self.layer_maps(LayerSizes.of(w)), w.batch_size * rows(w))
        self.define_index(writer, w)
        writer.softmax_attention(w, picked_pairs(w, self.top), rows(w))
        writer.projections("o", w)


@dataclass
class IndexedRows:
    """Latents with shared keys, and the indexer's keys, of every token so far."""

    rows: Any
    indexed: Any


@dataclass(frozen=True, kw_only=True)
class IndexedLatent(Indexed, Latent):
    """Absorbed latent attention of a row to the ``top`` latents that an indexer ranks highest.

    Its queries are maps of what the others' are, its one key a token a layer-normed map of x, the
    shares of its heads a map of x; scores are those of ``topk``, and turns of theirs left out.
    ``impl=gathered`` copies the picked latents and multiplies only these, ``dense-mask`` masks the
    products of all. The indexer has no gradient here.
    """

    name: ClassVar[str] = "dsa"
    title: ClassVar[str] = "Top-k latent attention over an indexer (DeepSeek sparse attention)"
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "keys and values are made from latents, that an indexer picks")
    allowed: ClassVar[dict[str, Any]] = {**Latent.allowed, **Indexed.allowed}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_tokens > 1:
            raise RequestError(f"step_tokens={self.step_tokens}: {self.name} takes one at a time")

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the weights of the base, and those of the indexer's norm."""
        norm = {"index_norm": 1.0, "index_shift": 0.0}
        more = {name: Weight((self.index_dim,), start) for name, start in norm.items()}
        return {**super().core_weights(sizes), **more}

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the maps of the base and of the indexer."""
        maps = super().layer_maps(sizes)
        out, source = maps.pop("o_proj"), sizes.d_model if self.q_rank is None else self.q_rank
        return {**maps, **self.index_maps(sizes, source), "o_proj": out}

    # -- what runs -----------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Compute a prompt."""
        source = self._source(layer, x)
        places = self.places(layer, x, source, self._index_keys(layer, x), causal)
        turns = angles(x, wide_positions(x, x.shape[1]), self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, source, turns)
        rows = latent if rotary is None else join([latent, rotary], -1)
        return layer.o_proj(self._picked(layer, (key, shared), rows, latent, places, causal))

    def _index_keys(self, layer: Any, x: Any) -> Any:
        """Return the indexer's keys (b, n, index_dim): layer norm of the rows' map."""
        keys = layer.index_k(x)
        centred = keys - keys.mean(-1, keepdim=True)
        return normed(centred, layer.index_norm) + layer.index_shift

    def _picked(
        self, layer: Any, q: tuple[Any, Any], rows: Any, latent: Any, places: Any, causal: bool
    ) -> Any:
        """Return the heads' outputs of queries over the rows (b, m, c + shared) at their places."""
        h, width = q[0].shape[1], q[0].shape[-1] + self.rope_dim
        if self.impl == "dense-mask":
            mask = unpicked(places, h, rows.shape[1], rows, causal=causal)
            return self._absorbed(layer, *q, rows, latent, mask)
        mixed = picked_attention(
            self._absorbing(layer, *q), rows.unsqueeze(1), latent.unsqueeze(1), places,
            top=self.top, causal=causal, width=width,
        )  # fmt: skip
        return self._outputs(layer, mixed)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return latents with shared keys, and the indexer's keys."""
        return IndexedRows(super().init_state(sizes, cache), cache(1, self.index_dim))

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Attend from the new token to those that it picks of all so far."""
        place, c = state.rows.length + 1, self.widths(layer.sizes.head_dim)[0]
        source = self._source(layer, x)
        indexed = state.indexed.append(self._index_keys(layer, x))
        places = self.places(layer, x, source, indexed, causal=False)
        turns = angles(x, place, self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, source, turns)
        rows = state.rows.append(latent if rotary is None else join([latent, rotary], -1))
        del latent, rotary
        y = self._picked(layer, (key, shared), rows, rows[..., :c], places, causal=False)
        return layer.o_proj(y), state

    def form(self, head_dim: Number, phase: str) -> str:
        """Return the form: latents are never expanded."""
        return "absorbed"

    def state_entries(self, workload: Workload) -> Number:
        """Return the entries of latents, and of an indexer's key per token."""
        w = workload
        return super().state_entries(w) + w.batch_size * w.seq_len * self.index_dim

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return the bytes of the indexer's key of every token, and of the picked latents."""
        width = self.widths(workload.head_dim)[0] + self.rope_dim
        return self.picked_traffic(workload, width)

    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define the base mechanism over picked pairs, and the indexer's scores of all."""
        super().define(writer, workload, scope)
        self.define_index(writer, workload)

    def _pairs(self, w: Workload) -> Number:
        """Return pairs of a row and one that it picks."""
        return picked_pairs(w, self.top)


MECHANISMS = (TopK, IndexedLatent)
