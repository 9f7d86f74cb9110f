"""Native sparse attention (NSA): means of windows, the blocks that they point to, latest tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.compressed import (
    summed_blocks,
    window_attention,
    window_means,
    window_pairs,
    windows,
)
from attnprof.blocks.softmax import weighted_values
from attnprof.costs import Cost, Number, ceil_div, minimum
from attnprof.errors import RequestError
from attnprof.mechanisms.moba import BlockMixture, BlockState
from attnprof.mechanisms.window import SlidingWindow
from attnprof.ops.arithmetic import SIGMOID
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
    gate σ(x W_g) (Yuan et al. 2025). Means of ``pool`` tokens, one every ``stride``, stand in place
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

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Queries, keys, values, three gates a head, output."""
        maps = super().layer_maps(sizes)
        out = {"o_proj": maps.pop("o_proj")}
        return {**maps, "gate_proj": (sizes.d_model, 3 * sizes.num_heads), **out}

    @property
    def latest(self) -> SlidingWindow:
        """The attention to the latest tokens."""
        impl = "blocks" if self.impl == "gathered" else self.impl
        return SlidingWindow(window=self.window, impl=impl)

    # -- what runs -----------------------------------------------------------------------
    def gates(self, layer: Any, x: Any) -> dict[str, Any]:
        """Return logits (b, n, 3 h)."""
        return {"gates": layer.gate_proj(x)}

    def core(self, q: Any, k: Any, v: Any, weights: Any, gates: Any = None) -> Any:
        """All tokens."""
        sums = [summed_blocks(flat(x), block=self.stride) for x in (k, v)]
        latest = self.latest.core(q, k, v, True, weights)
        return self._added(q, flat(k), flat(v), sums, latest, gates)

    def _added(
        self, q: Any, k: Any, v: Any, sums: Any, latest: Any, gates: Any, start: Any = None
    ) -> Any:
        """Return the gated sum (b, h, n, dv) of three branches, of which ``latest`` is one."""
        asked, tokens = q.reshape(k.shape[0], -1, *q.shape[2:]), k.shape[1]
        pooled = {"pool": self.pool, "stride": self.stride}
        means, picked = window_attention(
            asked, *(window_means(x, tokens, **pooled) for x in sums), tokens=tokens,
            top=self.top, block=self.block, start=0 if start is None else start, **pooled,
        )  # fmt: skip
        among = self.over_blocks(asked, k, v, picked.detach(), 1, start)
        branches = [means.view(latest.shape), among.view(latest.shape), latest]
        if gates is not None:
            h = q.shape[1]
            shares = gates.sigmoid().split([h, h, h], -1)
            each = zip(branches, shares, strict=True)
            branches = [y * share.transpose(1, 2).unsqueeze(-1) for y, share in each]
        return branches[0] + branches[1] + branches[2]

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Empty caches."""
        g, widths = sizes.num_kv_heads, (sizes.head_dim, sizes.value_head_dim)
        sums = [cache.block_sums(g, width, self.stride) for width in widths]
        return StrideState(*(cache(g, width) for width in widths), *sums)

    def step(
        self, q: Any, k: Any, v: Any, state: Any, weights: Any, gates: Any = None
    ) -> tuple[Any, Any]:
        """Attend to all windows, the blocks that they pick, and the latest tokens."""
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        sums = [state.sums.append(flat(k)), state.value_sums.append(flat(v))]
        t, groups = keys.shape[1], keys.shape[0]
        first = t - minimum(t, self.window)
        latest = weighted_values(
            q.reshape(groups, -1, q.shape[-1]), keys[:, first:], values[:, first:]
        )
        latest = latest.view(*q.shape[:3], -1)
        return self._added(q, keys, values, sums, latest, gates, t - 1), state

    def _sums(self, w: Workload) -> Number:
        """Return entries of the sums of all strides."""
        return w.kv_heads * ceil_div(w.seq_len, self.stride) * (w.head_dim + w.value_width)

    def state_entries(self, workload: Workload) -> Number:
        """Return keys and values of every token, and the same again for every stride."""
        w = workload
        each = w.kv_heads * w.seq_len * (w.head_dim + w.value_width)
        return w.batch_size * (each + self._sums(w))

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """All sums, and the rows that are picked or among the latest: no more than there are."""
        w, t = workload, workload.seq_len
        seen = minimum(self.seen(t) + minimum(self.window, t), t)
        entries = w.kv_heads * seen * (w.head_dim + w.value_width) + self._sums(w)
        return w.batch_size * w.item_size * entries

    # -- the definition ------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define the base, and a layer's gates."""
        w, tokens = workload, workload.batch_size * rows(workload)
        if scope == "layer":
            gates, outputs = 3 * tokens * w.num_heads, 3 * tokens * w.num_heads * w.value_width
            writer.dots("gates", gates, gates * w.d_model)
            writer.stage("gates: sigmoid", SIGMOID * gates, gates)
            writer.stage("gated", Cost(multiplications=outputs), outputs)
        super().define(writer, w, scope)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define new windows' means, a softmax over these, over picked tokens, over the latest."""
        w, n, heads = workload, workload.seq_len, workload.batch_size * workload.num_heads
        made = windows(n, self.pool, self.stride)
        if w.phase == "decode":
            made = made - windows(n - 1, self.pool, self.stride)
        means = made * w.batch_size * w.kv_heads * (w.head_dim + w.value_width)
        writer.sums("means", means, means * self.pool)
        writer.stage("means: division", Cost(divisions=means), means)
        seen, seeing = window_pairs(w, self.pool, self.stride)
        writer.softmax_attention(w, seen, seeing)
        shares = heads * seen * (self.pool // self.stride)
        writer.stage("shares of blocks", Cost(additions=shares), shares)
        writer.softmax_attention(w, self.pairs(w), rows(w))
        writer.softmax_attention(w, self.latest.pairs(w.with_(causal=True)), rows(w))
        outputs = heads * rows(w) * w.value_width
        writer.stage("branches added", Cost(additions=2 * outputs), outputs)


MECHANISMS = (NativeSparse,)
