"""Native sparse attention (NSA): means of windows, the blocks that they point to, latest tokens.

In the first branch (Yuan et al. 2025, Sections 3.3.1 and 3.3.2) a key and a value stand for each
window of ``pool`` tokens, one window begins every ``stride`` tokens. Sums of strides are what a
decoder keeps; :func:`window_means` makes windows of them, :data:`window_attention` attends to these
and picks blocks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import define_gate
from attnprof.blocks.picked import ROWS, block_sums
from attnprof.blocks.softmax import empty_rows, weighted_values
from attnprof.costs import Cost, Number, ceil_div, exact_div, floor_div, maximum, minimum
from attnprof.errors import RequestError
from attnprof.mechanisms.moba import BlockMixture, BlockState
from attnprof.mechanisms.window import SlidingWindow
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    arange,
    copy_in_rows,
    empty_int32,
    join,
    padded,
    softmax_,
    softmax_grad_,
    square_root,
    zeros_like,
)
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.ops.loops import in_blocks
from attnprof.workload import Workload, rows


def _sum_grads(saved: tuple[Any, ...], grad: Any, *, block: int) -> tuple[Any, ...]:
    (x,) = saved
    to_x = x.new_empty(x.shape)
    for span in in_blocks(x, x.shape[1], block):
        to_x[:, span].copy_(grad[:, span.start // block].unsqueeze(1))
    return (to_x,)


#: Sums (b, blocks, d) of each ``block`` tokens of x (b, m, d), with a gradient.
summed_blocks = Function(lambda x, block: (block_sums(x, block), (x,)), _sum_grads)


def windows(tokens: Number, pool: int, stride: int) -> Number:
    """Return the number of whole windows of ``pool`` tokens, one every ``stride`` tokens."""
    return maximum(0, floor_div(tokens, stride) - (pool // stride - 1))


def window_means(sums: Any, tokens: Any, pool: int, stride: int) -> Any:
    """Return all windows' means (b, windows, d) of sums (b, strides, d); one, if none is whole."""
    b, _, d = sums.shape
    count, many = maximum(1, windows(tokens, pool, stride)), pool // stride
    strides = join([sums, sums.new_zeros(b, many - 1, d)], 1)
    total = strides[:, :count]
    for more in range(1, many):
        total = total + strides[:, more : more + count]
    return total / pool


def _weights(
    q: Any, keys: Any, span: slice, *, pool: int, stride: int, start: Any
) -> tuple[Any, Any, Any]:
    """Return scaled rows (g, h·r, d), weights (g, h·r, windows), and the rows' numbers (r, 1).

    A row before the end of the first window has no weights.
    """
    (g, h, _, d), count, many = q.shape, span.stop - span.start, keys.shape[1]
    queries = copy_in_rows(q[:, :, span]).view(g, h * count, d).div_(square_root(d))
    weights = queries.bmm(keys.transpose(1, 2))
    token = (arange(q, count) + (span.start + start)).unsqueeze(1)
    hidden = arange(q, many, stride) + (pool - 1) > token
    by_head = weights.view(g, h, count, many)
    by_head.masked_fill_(hidden, float("-inf"))
    softmax_(weights)
    by_head.masked_fill_(hidden, 0.0)
    return queries, weights, token


def _blocks(weights: Any, token: Any, blocks: Any, *, pool: int, stride: int, block: int) -> Any:
    """Return blocks (g, r, blocks) in the order of weights (g, h, r, windows), summed over h.

    A window's weight counts for each of its strides, a stride's for its block. The first block,
    the row's own and the one before it lead; later ones come last.
    """
    g, _, count, many = weights.shape
    shares, strides = weights.sum(1), block // stride
    each = padded(shares, after=blocks * strides - many)
    for more in range(1, pool // stride):
        each = each + padded(shares, before=more, after=blocks * strides - many - more)
    scores = each.view(g, count, blocks, strides).sum(-1)
    own_first, first = token - token % block, arange(token, blocks, block)
    scores.masked_fill_(first + block > own_first - 1, float("inf"))
    scores.masked_fill_(first > own_first, float("-inf"))
    scores[..., :1].fill_(float("inf"))
    return scores.sort(dim=-1, descending=True, stable=True).indices


def _attended(
    q: Any, keys: Any, values: Any, *, tokens: Any, top: int, block: int, start: Any, **pooled: int
) -> tuple[Any, tuple[Any, ...]]:
    (g, h, n, _), many, blocks = q.shape, keys.shape[1], ceil_div(tokens, block)
    out, few = q.new_empty(g, h, n, values.shape[-1]), minimum(top, blocks)
    picked = empty_int32(q, g, n, few)
    for span in in_blocks(q, n, ROWS):
        count = span.stop - span.start
        queries, weights, token = _weights(q, keys, span, start=start, **pooled)
        del queries
        out[:, :, span] = weights.bmm(values).view(g, h, count, -1)
        order = _blocks(weights.view(g, h, count, many), token, blocks, block=block, **pooled)
        picked[:, span] = order[..., :few]
        del weights, token, order
    return (out, picked), (q, keys, values)


def _attended_grads(
    saved: tuple[Any, ...], grad: Any, *_: Any, start: Any, pool: int, stride: int, **__: Any
) -> tuple[Any, ...]:
    """Compute weights again, then gradients by five products; picked blocks have none."""
    q, keys, values = saved
    (g, h, n, d), to_q = q.shape, q.new_empty(q.shape)
    to_keys, to_values = (zeros_like(x, in_rows=True) for x in (keys, values))
    for span in in_blocks(q, n, ROWS):
        count = span.stop - span.start
        queries, weights, _ = _weights(q, keys, span, pool=pool, stride=stride, start=start)
        above = copy_in_rows(grad[:, :, span]).view(g, h * count, -1)
        add_product(to_values, weights.transpose(1, 2), above)
        scores = above.bmm(values.transpose(1, 2))
        softmax_grad_(scores, weights)
        to_q[:, :, span] = scores.bmm(keys).view(g, h, count, d)
        add_product(to_keys, scores.transpose(1, 2), queries)
        del queries, weights, _, above, scores
    return to_q.div_(square_root(d)), to_keys, to_values


#: Rows (g, h, n, dv) of q (g, h, n, d) over windows (g, m, d), (g, m, dv), and blocks (g, n, top).
#:
#: The h heads of a group pick the same blocks of the ``tokens``, by the sum of their weights.
#: The first row is token number ``start``, from 0.
window_attention = Function(_attended, _attended_grads)


def window_pairs(w: Workload, pool: int, stride: int) -> tuple[Number, Number]:
    """Return the numbers of pairs of a row and a window up to it, and of rows that have any."""
    n, many = w.seq_len, windows(w.seq_len, pool, stride)
    if w.phase == "decode":
        return many, minimum(1, many)
    rest = n - floor_div(n, stride) * stride
    pairs = exact_div(stride * many * (many - 1), 2) + (rest + 1) * many
    return pairs, maximum(0, n - pool + 1)


def define_windows(writer: Any, w: Workload, pool: int, stride: int) -> None:
    """Write the means of new windows, softmax attention over them, and their blocks' shares."""
    heads, count = w.batch_size * w.num_heads, windows(w.seq_len, pool, stride)
    if w.phase == "decode":
        count = count - windows(w.seq_len - 1, pool, stride)
    means = count * w.batch_size * w.kv_heads * (w.head_dim + w.value_width)
    writer.sums("means", means, means * pool)
    writer.stage("means: division", Cost(divisions=means), means)
    pairs, seeing_rows = window_pairs(w, pool, stride)
    writer.softmax_attention(w, pairs, seeing_rows)
    shares = heads * pairs * (pool // stride)
    writer.stage("shares of blocks", Cost(additions=shares), shares)


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
