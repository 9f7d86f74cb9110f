"""Attention over the tokens that an indexer ranks highest (DeepSeek-V3.2, 2025): plain, latent.

Heads of the indexer's own rank all tokens, or blocks of tokens, for each row. :class:`Indexed` has
its parameters, its maps and cache, and attention over what it picks; plain and latent attention
(``topk``, ``dsa``) give the operands.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.latent_rows import LatentRows, joined
from attnprof.blocks.layer_rows import normed
from attnprof.blocks.picked import (
    PickedForms,
    block_sums,
    blocks_before,
    define_block_sums,
    over_picks,
    pairs_of_blocks,
    picked_pairs,
    picks,
)
from attnprof.blocks.softmax import KeyValueState, empty_rows
from attnprof.costs import Cost, Number, ceil_div, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.caches import lent_indices
from attnprof.ops.layer import Definition, LayerSizes, Weight, merge_heads, split_heads
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Indexed(PickedForms):
    """A mixin of mechanisms whose rows attend to the tokens that an indexer ranks highest.

    ``index_block`` tokens are ranked together, by the mean of their keys (as in MoBA and Qwen4): a
    row's own block, and the earlier blocks of highest score, ``top`` tokens in all. That
    is causal with and without a mask. ``index=lent`` is for a layer that hands its picked places to
    later layers, which are ``shared`` and have no indexer (as in GLM-5): ``dsa@index=lent`` before
    ``dsa@index=shared@3``.
    """

    top: int = 2048
    index_heads: int = 64
    index_dim: int = 128
    index_block: int = 1
    index: str = "own"
    impl: str = "gathered"

    document: ClassVar[str] = "arXiv:2512.02556"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N"
    allowed: ClassVar[dict[str, Any]] = {
        "top": 1, "index_heads": 1, "index_dim": 1, "index_block": 1,
        "index": ("own", "lent", "shared"), "impl": PickedForms.forms,
    }  # fmt: skip

    @property
    def continues(self) -> bool:
        """Whether it reuses the places that a layer before it picked."""
        return self.index == "shared"

    @property
    def picked_blocks(self) -> int:
        """Number of blocks, or of tokens, that a row picks."""
        return max(1, self.top // self.index_block)

    @property
    def picked_tokens(self) -> int:
        """Number of tokens that a row picks, if there are as many."""
        return self.picked_blocks * self.index_block

    def index_maps(self, sizes: LayerSizes, source: Number) -> dict[str, tuple[Number, Number]]:
        """Return maps of the indexer: queries (of ``source`` entries), a key, the heads' shares."""
        if self.continues:
            return {}
        return {
            "index_q": (source, self.index_heads * self.index_dim),
            "index_k": (sizes.d_model, self.index_dim),
            "index_shares": (sizes.d_model, self.index_heads),
        }

    # -- text --------------------------------------------------------------------------------
    def index_keys(self, layer: Any, x: Any) -> Any:
        """Return the indexer's keys (b, n, index_dim)."""
        return layer.index_k(x)

    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Compute a prompt; blocks after a row's own are hidden even without a mask."""
        return self._run(layer, x, causal or self.index_block > 1)

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Attend from the new token to the tokens that it picks among all so far."""
        return self._run(layer, x, False, state), state

    def _run(self: Any, layer: Any, x: Any, causal: bool, state: Any = None) -> Any:
        """Pick tokens for each row of a prompt, or for a step's one row, then attend to them."""
        source, start = self._source(layer, x), 0 if state is None else state.keys.length
        indices = self._indices(layer, x, source, causal, start, state)
        heads: tuple[Any, Any, Any] = self.operands(layer, x, source, state)
        y = over_picks(
            *heads, indices, gathered=self.gathers(x.shape[1], step=state is not None),
            top=self.picked_blocks, block=self.index_block, causal=causal, start=start,
            **self.scaling(layer.sizes),
        )  # fmt: skip
        del heads
        return layer.o_proj(self._outputs(layer, y))

    def operands(self, layer: Any, x: Any, source: Any, state: Any) -> tuple[Any, Any, Any]:
        """Return queries (b, h, n, ·), keys and values (b, g, n, ·); in a step of all tokens."""
        raise NotImplementedError

    def scaling(self, sizes: LayerSizes) -> dict[str, Any]:
        """Return settings of :func:`over_picks` for keys that contain their values."""
        return {}

    def _indices(
        self, layer: Any, x: Any, source: Any, causal: bool, start: Any, state: Any
    ) -> Any:
        """Return indices (b, n, picked) for rows from ``start`` on; ``source`` gives queries."""
        b, n, _ = x.shape
        if self.continues:
            return self._indices_before(layer, x, n + start)
        keys = self.index_keys(layer, x).detach()
        if state is not None:
            keys = state.indexed.append(keys)
        elif self.index_block > 1:
            keys = block_sums(keys, self.index_block)
        q = layer.index_q(source).view(b, n, self.index_heads, self.index_dim)
        indices = picks(
            q.detach(), keys, layer.index_shares(x).detach(), top=self.picked_blocks,
            causal=causal, block=self.index_block, start=start,
        )  # fmt: skip
        if self.index == "lent":
            layer.handed = indices
        return indices

    def _indices_before(self, layer: Any, x: Any, tokens: Any) -> Any:
        """Return the indices that the layer before picked; RequestError if there is none."""
        if (indices := getattr(layer, "handed", None)) is not None:
            return indices
        few = minimum(self.picked_blocks, ceil_div(tokens, self.index_block))
        if (indices := lent_indices(x, *x.shape[:2], few)) is not None:
            return indices
        raise RequestError(
            "a layer with index=shared runs after one that lends it its places: for example "
            "dsa@index=lent+dsa@index=shared@3"
        )

    # -- decoding ------------------------------------------------------------------------
    def index_cache(self, cache: Any) -> Any:
        """Return an empty cache of the indexer's keys or block sums; None without an indexer."""
        if self.continues:
            return None
        if self.index_block == 1:
            return cache(1, self.index_dim)
        return cache.block_sums(1, self.index_dim, self.index_block)

    def row_width(self, w: Workload) -> Number:
        """Return cached entries a token, without its key of the indexer."""
        raise NotImplementedError

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return bytes of a step: the rows that it picks, and the whole cache of the indexer."""
        w = workload
        indexed = 0 if self.continues else ceil_div(w.seq_len, self.index_block) * self.index_dim
        rows = self.index_pairs(w.with_(phase="decode")) * self.row_width(w)
        return w.item_size * w.batch_size * (rows + indexed)

    def lent_bytes(self, w: Workload) -> Number:
        """Return bytes of the places that later layers reuse; 0 unless ``index=lent``."""
        if self.index != "lent":
            return 0
        n = 1 if w.phase == "decode" else w.seq_len
        few = minimum(self.picked_blocks, ceil_div(w.seq_len, self.index_block))
        return w.batch_size * n * few * (4 if w.item_size > 1 else 1)

    # -- the definition ------------------------------------------------------------------
    def index_pairs(self, w: Workload) -> Number:
        """Return pairs of a row and a token that it picks."""
        if self.index_block > 1:
            return pairs_of_blocks(w, self.picked_blocks, self.index_block)
        return picked_pairs(w, self.top)

    def define_index(self, writer: Definition, workload: Workload) -> None:
        """Define Σ_j w_j relu(q_j · k) for all pairs of a row and a token, or a block before it."""
        w = workload
        if self.continues:
            return
        ranked = pairs(w)
        if self.index_block > 1:
            define_block_sums(writer, w, self.index_block, self.index_dim)
            ranked = blocks_before(w, self.index_block)
        scores = w.batch_size * ranked
        products = scores * self.index_heads
        writer.dots("likeness", products, products * self.index_dim)
        writer.stage("relu", Cost(other=products), products)
        writer.dots("scores of the indexer", scores, products)


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
