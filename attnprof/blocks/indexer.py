"""An indexer: heads of its own rank all tokens, or blocks of tokens, for each row.

:class:`Indexed` is the part of a mechanism that picks: its parameters, its maps and cache, and
attention over what it picks. Plain and latent attention (``topk``, ``dsa``) give the operands.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

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
from attnprof.costs import Cost, Number, ceil_div, minimum
from attnprof.errors import RequestError
from attnprof.ops.caches import lent_indices
from attnprof.ops.layer import Definition, LayerSizes
from attnprof.workload import Workload, pairs


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
