"""Attention over the tokens that an indexer ranks highest (DeepSeek-V3.2, 2025): plain, latent."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.indexer import Indexed
from attnprof.blocks.latent_rows import LatentRows, joined
from attnprof.blocks.layer_rows import normed
from attnprof.blocks.softmax import KeyValueState, empty_rows
from attnprof.costs import Number
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.layer import Definition, LayerSizes, Weight, merge_heads, split_heads
from attnprof.workload import Workload, rows


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
    gradient, so the indexer is trained by a loss of its own. The published layer's norms, turns and
    latents are left out.
    """

    name: ClassVar[str] = "topk"
    title: ClassVar[str] = "Top-k attention over an indexer (DSA)"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, attend=False)
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "softmax over the tokens that an indexer picks, once it is trained")

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return maps of queries, keys, values, of the indexer and of the output."""
        return sizes.maps("qkvo", self.index_maps(sizes, sizes.d_model))

    # -- text --------------------------------------------------------------------------------
    def _source(self, layer: Any, x: Any) -> Any:
        """Return the rows that the indexer's queries are projected from."""
        return x

    def operands(self, layer: Any, x: Any, source: Any, state: Any) -> tuple[Any, Any, Any]:
        """Return queries (b, h, n, d), keys and values (b, g, n, ·), in a step of all tokens."""
        g, maps = layer.sizes.num_kv_heads, (layer.q_proj, layer.k_proj, layer.v_proj)
        heads = zip(maps, (layer.sizes.num_heads, g, g), strict=True)
        q, k, v = (split_heads(each(x), count, in_rows=True, group=2) for each, count in heads)
        if state is not None:
            k, v = (rows.view(x.shape[0], g, -1, rows.shape[-1]) for rows in state.append(k, v))
        return q, k, v

    def _outputs(self, layer: Any, mixed: Any) -> Any:
        return merge_heads(mixed)

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return empty caches."""
        return IndexedState(*empty_rows(sizes, cache), self.index_cache(cache))

    def row_width(self, w: Workload) -> Number:
        """Return entries of a token's keys and values."""
        return w.kv_heads * (w.head_dim + w.value_width)

    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define maps, the indexer's scores of all pairs, softmax attention over picked pairs."""
        w = workload
        writer.maps(self.layer_maps(LayerSizes.from_workload(w)), w.batch_size * rows(w))
        self.define_index(writer, w)
        writer.softmax_attention(w, self.index_pairs(w), rows(w))
        writer.projections("o", w)


@dataclass
class IndexedRows:
    """Latents with shared keys, and the indexer's keys, of every token so far."""

    keys: Any
    indexed: Any


@dataclass(frozen=True, kw_only=True)
class IndexedLatent(Indexed, LatentRows):
    """Absorbed latent attention of a row to the ``top`` latents that an indexer ranks highest.

    Queries of the indexer are maps of the same rows as the other queries, its one key a token a
    layer-normed map of x, its heads' shares a map of x. Scores are those of ``topk``, not turned.
    ``impl=gathered`` copies the picked latents and multiplies only these, ``dense-mask`` masks the
    products of all. The indexer has no gradient here.
    """

    name: ClassVar[str] = "dsa"
    title: ClassVar[str] = "Top-k latent attention over an indexer (DeepSeek sparse attention)"
    same_as = ("", {"impl": "dense-mask"})
    to_softmax = ("untrained", "keys and values are made from latents, that an indexer picks")
    allowed: ClassVar[dict[str, Any]] = {**LatentRows.allowed, **Indexed.allowed}

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the base's weights, and the weight and shift of the indexer's norm."""
        norm = {} if self.continues else {"index_norm": 1.0, "index_shift": 0.0}
        more = {name: Weight((self.index_dim,), start) for name, start in norm.items()}
        return {**super().core_weights(sizes), **more}

    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the maps of the indexer."""
        return self.index_maps(sizes, sizes.d_model if self.q_rank is None else self.q_rank)

    # -- text --------------------------------------------------------------------------------
    def index_keys(self, layer: Any, x: Any) -> Any:
        """Return the indexer's keys (b, n, index_dim): layer norm of the rows' map."""
        keys = layer.index_k(x)
        centred = keys - keys.mean(-1, keepdim=True)
        return normed(centred, layer.index_norm) + layer.index_shift

    def operands(self, layer: Any, x: Any, source: Any, state: Any) -> tuple[Any, Any, Any]:
        """Return absorbed queries (b, h, n, c + shared); latents with shared keys; latents."""
        cached = None if state is None else state.keys
        key, shared, latent, rotary = self._rows(layer, x, cached, source)
        rows = joined(latent, rotary)
        if cached is not None:
            rows = cached.append(rows)
            latent = rows[..., : latent.shape[-1]]
        del rotary
        return self._absorbing(layer, key, shared), rows.unsqueeze(1), latent.unsqueeze(1)

    def scaling(self, sizes: LayerSizes) -> dict[str, Any]:
        """Return the width of an expanded key, and the number of a row's latent entries."""
        c, key, _ = self.widths(sizes.head_dim)
        return {"width": key + self.rope_dim, "values": c}

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return latents with shared keys, and the indexer's keys."""
        return IndexedRows(super().init_state(sizes, cache), self.index_cache(cache))

    def row_width(self, w: Workload) -> Number:
        """Return entries of a latent and of the shared key."""
        return self.widths(w.head_dim)[0] + self.rope_dim

    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define latent attention over picked pairs, and the indexer's scores of all pairs."""
        super().define(writer, workload, scope)
        self.define_index(writer, workload)

    def _pairs(self, w: Workload) -> Number:
        """Return pairs of a row and a token that it picks."""
        return self.index_pairs(w)


MECHANISMS = (TopK, IndexedLatent)
