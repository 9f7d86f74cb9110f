"""Native sparse attention (NSA): means of windows, the blocks that they point to, latest tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.compressed import (
    define_windows,
    summed_blocks,
    window_attention,
    window_means,
)
from attnprof.blocks.layer_rows import define_gate
from attnprof.blocks.softmax import empty_rows, weighted_values
from attnprof.costs import Cost, Number, minimum
from attnprof.errors import RequestError
from attnprof.mechanisms.moba import BlockMixture, BlockState
from attnprof.mechanisms.window import SlidingWindow
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.workload import Workload, rows


@dataclass
class StrideState(BlockState):
    """Keys and values of every token so far, and sums of each stride's, (b·g, strides, ·)."""

    value_sums: Any


@dataclass(frozen=True, kw_only=True)
class NativeSparse(BlockMixture):
    """A row attends to means of windows, to ``top`` blocks, and to the latest ``window`` tokens.

    Each is a softmax of its own over the same keys and values; a head adds the three, each times a
    gate σ(x W_g) (Yuan et al. 2025). Means of ``pool`` tokens, one every ``stride``, take the place
    of the paper's learned map. Weights of windows, summed over heads that share keys, pick the
    blocks; the first, the row's own and the one before are always among them. Causal by nature;
    picking has no gradient. A core alone adds without gates. ``impl`` is that of ``moba``.
    """

    top: int = 16
    block: int = 64
    pool: int = 32
    stride: int = 16
    window: int = 512

    name: ClassVar[str] = "nsa"
    title: ClassVar[str] = "Native sparse attention (NSA)"
    document: ClassVar[str] = "arXiv:2502.11089"
    tuned = ("top", "window")
    to_softmax = ("another", "three softmaxes, added with gates of its own")
    allowed: ClassVar[dict[str, Any]] = {
        **BlockMixture.allowed, "top": 3, "pool": 1, "stride": 1, "window": 1,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool % self.stride or self.block % self.stride or self.pool > self.block:
            raise RequestError(
                f"pool={self.pool} and block={self.block} are multiples of stride={self.stride}, "
                "pool at most block; for example pool=32 block=64 stride=16"
            )

    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the map of three gates a head."""
        return {"gate_proj": (sizes.d_model, 3 * sizes.num_heads)}

    def latest(self, *, gathered: bool = True) -> SlidingWindow:
        """Return attention to the latest tokens, by blocks as picks are gathered, or masked."""
        return SlidingWindow(window=self.window, impl="blocks" if gathered else "dense-mask")

    # -- text --------------------------------------------------------------------------------
    def gates(self, layer: Any, x: Any) -> dict[str, Any]:
        """Return the gates' logits (b, n, 3 h)."""
        return {"gates": layer.gate_proj(x)}

    def core(self, q: Any, k: Any, v: Any, weights: Any, gates: Any = None) -> Any:
        """Compute all tokens."""
        sums = [summed_blocks(flat(x), block=self.stride) for x in (k, v)]
        gathered = self.gathers(q.shape[2], step=False)
        latest = self.latest(gathered=gathered).core(q, k, v, True, weights)
        return self._added(q, flat(k), flat(v), sums, latest, gates, causal=True)

    def _added(
        self, q: Any, k: Any, v: Any, sums: Any, latest: Any, gates: Any, *,
        causal: bool, start: Any = 0,
    ) -> Any:  # fmt: skip
        """Return the gated sum (b, h, n, dv) of windows, picked blocks and ``latest`` tokens."""
        queries, tokens = q.reshape(k.shape[0], -1, *q.shape[2:]), k.shape[1]
        pooled = {"pool": self.pool, "stride": self.stride}
        means, picked = window_attention(
            queries, *(window_means(x, tokens, **pooled) for x in sums), tokens=tokens,
            top=self.top, block=self.block, start=start, **pooled,
        )  # fmt: skip
        among = self.over_blocks(queries, k, v, picked.detach(), causal=causal, start=start)
        branches = [means.view(latest.shape), among.view(latest.shape), latest]
        if gates is not None:
            shares = gates.sigmoid().chunk(3, -1)
            each = zip(branches, shares, strict=True)
            branches = [y * share.transpose(1, 2).unsqueeze(-1) for y, share in each]
        return branches[0] + branches[1] + branches[2]

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return empty caches."""
        g, widths = sizes.num_kv_heads, (sizes.head_dim, sizes.value_head_dim)
        sums = (cache.block_sums(g, width, self.stride) for width in widths)
        return StrideState(*empty_rows(sizes, cache), *sums)

    def step(
        self, q: Any, k: Any, v: Any, state: Any, weights: Any, gates: Any = None
    ) -> tuple[Any, Any]:
        """Attend to all windows, the blocks that they pick, and the latest tokens."""
        keys, values = state.append(k, v)
        sums = [state.sums.append(flat(k)), state.value_sums.append(flat(v))]
        t, rows = keys.shape[1], q.reshape(keys.shape[0], -1, q.shape[-1])
        first = t - minimum(t, self.window)
        latest = weighted_values(rows, keys[:, first:], values[:, first:]).view(*q.shape[:3], -1)
        y = self._added(q, keys, values, sums, latest, gates, causal=False, start=t - 1)
        return y, state

    def rows_read(self, w: Workload) -> Number:
        """Return rows of a sequence that are picked or among the latest, at most all of them."""
        t, pairs = w.seq_len, self.pairs(w.with_(phase="decode"))
        return w.kv_heads * minimum(pairs + minimum(self.window, t), t)

    # -- the definition ------------------------------------------------------------------
    def define_inputs(self, writer: Definition, workload: Workload) -> None:
        """Define three gates a head, and projections."""
        w, gates = workload, 3 * workload.batch_size * rows(workload) * workload.num_heads
        define_gate(writer, gates, gates * w.value_width, w.d_model)
        super().define_inputs(writer, w)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define means of new windows, and softmaxes over windows, picked and latest tokens."""
        w = workload
        define_windows(writer, w, self.pool, self.stride)
        writer.softmax_attention(w, self.pairs(w), rows(w))
        writer.softmax_attention(w, self.latest().pairs(w.with_(causal=True)), rows(w))
        outputs = w.batch_size * w.num_heads * rows(w) * w.value_width
        writer.stage("branches added", Cost(additions=2 * outputs), outputs)


MECHANISMS = (NativeSparse,)
