"""Neural Attention (001, Eq 4 to 10 and Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof import costs
from attnprof.blocks.pair_network import hidden_terms, pair_network_attention
from attnprof.blocks.softmax import causal_mask
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism, Variant
from attnprof.ops.function import Function
from attnprof.ops.functional import copy_in_rows, join, linear, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.ops.loops import either
from attnprof.workload import Published, Workload, pairs, rows

#: hidden values a chunk aims at: they stay in a core's cache
CHUNK_ENTRIES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Neural(Mechanism):
    """softmax(A / sqrt d) V, where a network of the pair scores it: A_ij = f(q_i, k_j).

    ``down_dim`` (d') projects queries and keys first, with a bias; none skips that and d' = d.
    The scorer is shared by all heads and pairs. ``depth`` 2 is the network of the published
    sizes, 2d' → d' → d'/2 → 1 (halves rounded down, to at least 1); ``depth`` 1 the one hidden
    layer of Eq 4. ``hidden_dim`` is the width of the first hidden layer, d' where none. The
    document leaves its activation open (sigma); it is ReLU here. ``impl`` ``naive`` writes out C
    (n × n × 2d'), as Algorithm 1; ``factored`` adds the two terms of W_h [q; k] instead, a chunk
    of rows at a time: its memory grows as N·sqrt N, that of ``naive`` as N². Any layer may use
    it; the document uses it in the first layer only.
    """

    down_dim: int | None = None
    hidden_dim: int | None = None
    depth: int = 2
    impl: str = "factored"

    name: ClassVar[str] = "neural"
    title: ClassVar[str] = "Neural Attention"
    document: ClassVar[str] = "001"
    family: ClassVar[str] = "exact"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N^1.5"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "naive"}, "N^2", "N^2", "writes out every pair of a query and a key"),
    )
    same_as = ("", {"impl": "naive"})
    to_softmax = ("another", "a learned network scores the pairs")
    allowed: ClassVar[dict[str, Any]] = {
        "impl": ("factored", "naive"),
        "down_dim": 1,
        "hidden_dim": 1,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth not in (1, 2):
            raise RequestError(f"depth={self.depth}: possible: 1 (Eq 4), 2 (the published sizes)")

    # -- sizes ---------------------------------------------------------------------------
    def widths(self, head_dim: costs.Number) -> tuple[costs.Number, ...]:
        """Return d', and the width of every hidden layer."""
        reduced = head_dim if self.down_dim is None else self.down_dim
        hidden = reduced if self.hidden_dim is None else self.hidden_dim
        if self.depth == 1:
            return reduced, hidden
        return reduced, hidden, costs.maximum(1, costs.floor_div(hidden, 2))

    def chunk(
        self, heads: costs.Number, n: costs.Number, head_dim: costs.Number
    ) -> tuple[costs.Number, costs.Number]:
        """Return heads and rows of a chunk; several heads only where all rows of one fit.

        A head is at most 4 sqrt N chunks: finer ones would make a long sequence a loop of tiny
        steps.
        """
        entries = n * n * self.widths(head_dim)[1]
        parts = costs.minimum(costs.ceil_div(entries, CHUNK_ENTRIES), 4 * costs.ceil_sqrt(n))
        heads_each = costs.ceil_div(heads, costs.ceil_div(heads * entries, CHUNK_ENTRIES))
        rows = costs.ceil_div(n, parts)
        return heads_each, n if costs.is_plain(rows, n) and rows >= n else rows

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the down-projections and the scorer, shared by all heads and all pairs."""
        d, (reduced, *hidden) = sizes.head_dim, self.widths(sizes.head_dim)
        weights: dict[str, Weight | None] = {}
        for which in ("query", "key") if self.down_dim is not None else ():
            weights[f"{which}_down"] = _weight(d, d, reduced)
            weights[f"{which}_down_bias"] = _weight(d, reduced)
        inputs = 2 * reduced
        for name, width in zip(("hidden", "second"), hidden, strict=False):
            weights[f"{name}_weight"] = _weight(inputs, width, inputs)
            weights[f"{name}_bias"] = _weight(inputs, width)
            inputs = width
        return {
            **weights,
            "score_weight": _weight(inputs, 1, inputs),
            "score_bias": _weight(inputs, 1),
        }

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute down-projections, scores by the network, softmax and values."""
        queries, keys = self._down("query", flat(q), weights), self._down("key", flat(k), weights)
        run = self._naive if self.impl == "naive" else self._factored
        return run(queries, keys, flat(v), causal, weights).view(q.shape)

    def _down(self, which: str, x: Any, weights: Any) -> Any:
        """Return rows (b·h, n, d) down-projected to (b·h, n, d'), if there is a projection."""
        if self.down_dim is None:
            return x
        weight, bias = (getattr(weights, f"{which}_down{end}") for end in ("", "_bias"))
        return x.bmm(weight.unsqueeze(0).expand(x.shape[0], -1, -1)).add_(bias.view(1, 1, -1))

    def _factored(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        w = weights
        second = (w.second_weight, w.second_bias) if self.depth == 2 else (None, None)
        return pair_network_attention(
            q, k, v, w.hidden_weight, w.hidden_bias, w.score_weight, w.score_bias, *second,
            chunk=self.chunk(*v.shape), causal=causal, scale=square_root(v.shape[2]),
        )  # fmt: skip

    def _naive(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Run Algorithm 1 as written: C (b·h, n, n, 2d') and every layer are stored."""
        heads, n, d = v.shape
        mask = causal_mask(n, q) if causal else None
        x = _concatenated(q, k).view(heads * n * n, -1)
        x = linear(x, weights.hidden_weight, weights.hidden_bias).relu_()
        if self.depth == 2:
            x = linear(x, weights.second_weight, weights.second_bias).relu_()
        x = linear(x, weights.score_weight, weights.score_bias)
        x = x.view(heads, n, n) / square_root(d)
        if mask is not None:
            x.masked_fill_(mask, float("-inf"))
        x = x.softmax(-1)
        return x.bmm(v)

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return the keys' term of the hidden layer, and the values, of every token."""
        return cache(sizes.num_heads, self.widths(sizes.head_dim)[1] + sizes.head_dim)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to every token so far; both forms decode without C."""
        queries, keys = self._down("query", flat(q), weights), self._down("key", flat(k), weights)
        row, key = hidden_terms(queries, keys, weights.hidden_weight, weights.hidden_bias)
        cache = state.append(join([key, flat(v)], -1))
        last, width = (weights.score_weight / square_root(q.shape[-1])).t(), row.shape[-1]
        x = (row + cache[..., :width]).relu_().view(-1, width)
        if self.depth == 2:
            x = linear(x, weights.second_weight, weights.second_bias).relu_()
        x = x.mm(last).view(cache.shape[0], 1, -1)
        x = x.softmax(-1)
        return x.bmm(cache[..., width:]).view(q.shape), state

    # -- the definition ------------------------------------------------------------------
    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define Eq 5 to 10 pair by pair: every layer of the network reads its whole input."""
        w = workload
        heads = w.batch_size * w.num_heads
        if self.down_dim is not None:
            results = heads * rows(w) * self.down_dim
            for name in ("queries", "keys"):
                writer.dots(f"down-projected {name}", results, results * w.head_dim)
                writer.stage(f"down-projected {name}, bias", costs.Cost(additions=results), results)
        scores = heads * pairs(w)
        reduced, *hidden = self.widths(w.head_dim)
        inputs = 2 * reduced
        for name, width in zip(("hidden layer", "second hidden layer"), hidden, strict=False):
            values = scores * width
            writer.dots(name, values, values * inputs)
            writer.stage(f"{name}, bias and activation", costs.Cost(additions=values, other=values))
            inputs = width
        writer.dots("scores", scores, scores * inputs)
        writer.stage("scores, bias", costs.Cost(additions=scores), scores)
        writer.softmax(scores, heads * rows(w))
        outputs = heads * rows(w) * w.value_width
        writer.dots("weighted values", outputs, scores * w.value_width)

    def published(self) -> tuple[Published, ...]:
        """Return the size of C, the one closed form the document prints; a single head's."""
        return (
            Published(
                "001-EQ7", "peak_entries", "core", "forward", "001: entries of C",
                formula=lambda w: w.seq_len**2 * 2 * self.widths(w.head_dim)[0],
                heads="one",
            ),
        )  # fmt: skip


def _weight(inputs: costs.Number, *shape: costs.Number) -> Weight:
    """Return a weight or bias as ``nn.Linear`` starts it: uniform within 1 / sqrt(inputs)."""
    return Weight(shape, "uniform", square_root(inputs))


def _concatenated(q: Any, k: Any) -> Any:
    """Return C (b·h, n, n, 2d'): queries and keys stretched over each other."""
    n = q.shape[1]
    return join([_stretched(q, dim=2, times=n), _stretched(k, dim=1, times=n)], -1)


def _stretch(x: Any, *, dim: int, times: costs.Number) -> tuple[Any, tuple[Any, ...]]:
    shape = (*x.shape[:dim], times, *x.shape[dim:])
    return x.unsqueeze(dim).expand(shape), ()


def _stretch_grads(
    _saved: tuple[Any, ...], grad: Any, *, dim: int, times: costs.Number
) -> tuple[Any]:
    """Return the sum; over one entry a copy, so that C's gradient dies here for every length."""
    many = costs.more_than_one(times)
    branches = (lambda: grad.sum(dim)), (lambda: copy_in_rows(grad.select(dim, 0)))
    return (either(grad, (many, 1 - many), *branches),)


#: X (b·h, n, d) repeated along a new dimension, without memory.
_stretched = Function(_stretch, _stretch_grads)


MECHANISMS = (Neural,)
