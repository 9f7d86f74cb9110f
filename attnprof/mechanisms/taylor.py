"""TaylorShift (004, Algorithm 1): the direct form and the efficient one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks import taylor
from attnprof.blocks.taylor import BOXED, SYMMETRIC, RowFeatures, built_state, scan, sums
from attnprof.costs import Cost, Number
from attnprof.mechanism import Mechanism
from attnprof.ops.functional import square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Published, Workload, pairs, rows

#: Chunks of symmetric features at once, for fewer and larger products. A mask makes every chunk
#: pay for its scores; without one there are none.
SCANNED, AT_ONCE = 2, 8


# -- the closed forms document 004 prints, untouched; each for one sequence -------------------
# The head forms are printed in d_e = h·d; here they are written in d, so that ints stay ints.
def direct_flops(w: Workload) -> Number:
    """Return Eq 4, one head: 4·N²·d + 6·N²."""
    return 4 * w.seq_len**2 * w.head_dim + 6 * w.seq_len**2


def efficient_flops(w: Workload) -> Number:
    """Return Eq 5, one head: N·(4d³ + 10d² + 8d + 3)."""
    d = w.head_dim
    return w.seq_len * (4 * d**3 + 10 * d**2 + 8 * d + 3)


def direct_entries(w: Workload) -> Number:
    """Return Sec 4.2, one head: d·N + 2·N² (values; scores and their Taylor map)."""
    return w.head_dim * w.seq_len + 2 * w.seq_len**2


def efficient_entries(w: Workload) -> Number:
    """Return Sec 4.2, one head: d³ + (N+1)·d² + 3·N·d + N (A_mod, K⊠K, Q, K, V and ones)."""
    n, d = w.seq_len, w.head_dim
    return d**3 + (n + 1) * d**2 + 3 * n * d + n


def _form(source: str, quantity: str, one: Callable[[Workload], Number], heads: str) -> Published:
    # With d = d_e/h the printed head forms are h times those of one head, term by term.
    many = one if heads == "one" else lambda w: w.num_heads * one(w)
    convention = "flops" if quantity == "flops" else "entries"
    return Published(source, quantity, "core", "forward", convention, formula=many, heads=heads)


@dataclass
class TaylorState:
    """Caches of normalised keys and of values, (b·h, t, d); or, once built, their sums.

    ``caches`` makes either. ``direct`` returns whether the token of a number is decoded directly,
    for a mechanism that switches; else it is None.
    """

    sizes: LayerSizes
    caches: Any
    features: RowFeatures
    direct: Callable[[int], bool] | None = None
    length: Any = 0
    keys: Any = None
    values: Any = None
    sums: Any = None

    def advance(self, tokens: int) -> None:
        """Fill the state with random rows, as ``tokens`` steps from a fresh one would."""
        if self.sums is None and self.direct and tokens and not self.direct(tokens):
            self.built(1)
        if self.sums is not None:
            self.sums.uniform_(0.5, 1.5)
        else:
            self.make_caches()
            self.keys.advance(tokens)
            self.values.advance(tokens)
        self.length = tokens

    def cached(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Append a token (b·h, 1, d); return all keys and values so far."""
        self.make_caches()
        self.length += 1
        return self.keys.append(k), self.values.append(v)

    def make_caches(self) -> None:
        """Make both caches, if they are not there yet."""
        if self.keys is None:
            h, d = self.sizes.num_heads, self.sizes.head_dim
            self.keys, self.values = self.caches(h, d), self.caches(h, d)

    def built(self, size: int) -> Any:
        """Return the sums (b·h, features, d + 1); built once from the caches, which are let go."""
        if self.sums is None and self.keys is not None:
            self.sums = built_state(self.keys.filled, self.values.filled, size, self.features)
        elif self.sums is None:
            h, d = self.sizes.num_heads, self.sizes.head_dim
            self.sums = self.caches.zeros(h, self.features.width(d), d + 1)
        self.keys = self.values = None
        return self.sums


def normalised(q: Any, k: Any, weights: Any, length: Any = 1.0) -> tuple[Any, Any]:
    """Return rows of length ``length``, queries times their temperature; (b·h, n, d) each."""
    queries = taylor.rows_to_length(q, length=length) * weights.temperature.view(-1, 1, 1)
    return flat(queries), taylor.rows_to_length(flat(k), length=length)


@dataclass(frozen=True, kw_only=True)
class Taylor(Mechanism):
    """Base of both forms; ``temperature`` is the initial value of a learned number a head.

    A zero query or key stays zero: its scores are 0, its Taylor map 1.
    """

    temperature: float = 1.0

    document: ClassVar[str] = "004"
    family: ClassVar[str] = "taylor"
    to_softmax = (
        "another",
        "three terms of the exponential's series, of rows over their norm, times sqrt(N/d)",
    )

    @property
    def features(self) -> RowFeatures:
        """Features of a row in the sums: d² + d + 1."""
        return BOXED

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return one temperature per head."""
        return {"temperature": Weight((sizes.num_heads,), float(self.temperature))}

    def init_state(self, sizes: LayerSizes, cache: Any) -> TaylorState:
        """Return a state without tokens."""
        return TaylorState(sizes, cache, self.features)

    def define_rows(self, writer: Definition, workload: Workload) -> None:
        """Define norms, the division by them, and the queries' temperature."""
        w = workload
        heads = w.batch_size * w.num_heads * rows(w)
        entries = heads * w.head_dim
        writer.dots("norms", 2 * heads, 2 * entries)
        writer.stage("norms", Cost(other=2 * heads), 2 * heads)
        writer.stage("unit rows", Cost(divisions=2 * entries), 2 * entries)
        writer.stage("temperature", Cost(multiplications=entries), entries)


@dataclass(frozen=True, kw_only=True)
class TaylorDirect(Taylor):
    """The Taylor map of N × N scores (Eq 1)."""

    name: ClassVar[str] = "taylor-direct"
    title: ClassVar[str] = "TaylorShift, direct form"
    same_as = ("taylor-efficient", {})
    time_order = memory_order = "N^2"
    printed = (
        _form("004-EQ4", "flops", direct_flops, "one"),
        _form("004-ENT-DIRECT", "peak_entries", direct_entries, "one"),
        _form("004-MHSA-triv", "flops", direct_flops, "any"),
        _form("004-MHSA-ENT-DIRECT", "peak_entries", direct_entries, "any"),
    )

    def init_state(self, sizes: LayerSizes, cache: Any) -> TaylorState:
        """Return empty caches of keys and values."""
        state = super().init_state(sizes, cache)
        state.make_caches()
        return state

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Return (x + 1)² + 1 of every score (twice the Taylor map), row by row normalised."""
        _, _, n, d = q.shape
        scale = taylor.row_scale(n, q) if causal else square_root(d, over=n)
        queries, keys = normalised(q, k, weights)
        scores = queries.bmm(keys.transpose(1, 2)).add_(1)
        del queries, keys
        twice = taylor.taylor_map(scores, causal=causal)
        del scores
        return taylor.weighted(twice, flat(v), scale).view(q.shape)

    def step(
        self, q: Any, k: Any, v: Any, state: TaylorState, weights: Any
    ) -> tuple[Any, TaylorState]:
        """Attend from the new token to the cached normalised keys and values."""
        queries, key = normalised(q, k, weights)
        keys, values = state.cached(key, flat(v))
        del key
        scores = queries.bmm(keys.transpose(1, 2)).add_(1)
        del queries
        twice = taylor.taylor_map(scores, causal=False)
        del scores
        scale = square_root(q.shape[-1], over=state.length)
        return taylor.weighted(twice, values, scale).view(q.shape), state

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define Eq 1 with Algorithm 1's normalisation: 1 + x + x²/2, row sums, divisions."""
        w = workload
        self.define_rows(writer, w)
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs(w), heads * rows(w) * w.head_dim
        writer.dots("scores", scores, scores * w.head_dim)
        writer.stage("Taylor map", Cost(multiplications=2, additions=2) * scores, scores)
        writer.sums("row sums", heads * rows(w), scores)
        writer.stage("normalisation", Cost(divisions=scores), scores)
        writer.dots("weighted values", outputs, scores * w.head_dim)
        writer.stage("output scale", Cost(multiplications=outputs), outputs)


@dataclass(frozen=True, kw_only=True)
class TaylorEfficient(Taylor):
    """Box products N × d² instead of scores; causal by a scan over chunks of ``chunk`` tokens.

    ``impl=symmetric`` makes each pair of entries once, d(d+1)/2 products, and in chunks with or
    without a mask (two at once with one, eight without), so that nothing of N × d² is ever held.
    """

    impl: str = "boxed"
    chunk: int = 64

    name: ClassVar[str] = "taylor-efficient"
    title: ClassVar[str] = "TaylorShift, efficient form"
    same_as = ("taylor-direct", {})
    time_order = memory_order = "N"
    printed = (
        _form("004-EQ5", "flops", efficient_flops, "one"),
        _form("004-ENT-EFFICIENT", "peak_entries", efficient_entries, "one"),
        _form("004-MHSA-eff", "flops", efficient_flops, "any"),
        _form("004-MHSA-ENT-EFFICIENT", "peak_entries", efficient_entries, "any"),
    )
    allowed: ClassVar[dict[str, Any]] = {"impl": ("boxed", "symmetric"), "chunk": 1}

    @property
    def features(self) -> RowFeatures:
        """Features of a row: d² + d + 1, or d(d+1)/2 + d + 1 with each pair of entries once."""
        return SYMMETRIC if self.impl == "symmetric" else BOXED

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute Algorithm 1: all tokens' sums; if causal a scan, with N := t in row t."""
        _, _, n, d = q.shape
        boxed = self.impl == "boxed"
        # the fourth root of a width; of one that is only counted with, any number
        length = (d**0.25 if isinstance(d, int) else 2.0) if boxed and not causal else 1.0
        queries, keys = normalised(q, k, weights, length)
        if boxed and not causal:
            y, scale = taylor.boxed_sums(queries, keys, flat(v)), 1.0
        elif causal:
            size = self.chunk * (1 if boxed else SCANNED)
            y = scan(queries, keys, taylor.with_ones(flat(v)), size=size, features=self.features)
            scale = None
        else:
            size, scale = self.chunk * AT_ONCE, square_root(d, over=n)
            y = sums(queries, keys, taylor.with_ones(flat(v)), size=size, features=self.features)
        del queries, keys
        bottom, top = y.split([1, d], -1)
        return taylor.ratio(top, bottom, taylor.row_scale(n, q) if causal else scale).view(q.shape)

    def init_state(self, sizes: LayerSizes, cache: Any) -> TaylorState:
        """Return the state before the first token: sums of 0."""
        state = super().init_state(sizes, cache)
        state.built(self.chunk)
        return state

    def step(
        self, q: Any, k: Any, v: Any, state: TaylorState, weights: Any
    ) -> tuple[Any, TaylorState]:
        """Add the new token to the sums and read them: O(d³), whatever the length."""
        sums = state.built(self.chunk)
        state.length += 1
        queries, keys = normalised(q, k, weights)
        self.features.absorb(sums, keys, taylor.with_ones(flat(v)))
        y = self.features.read(queries, sums, True)
        scale = square_root(q.shape[-1], over=state.length)
        return taylor.ratio(y[..., 1:], y[..., :1], scale).view(q.shape), state

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define Algorithm 1; causal rows read running sums, to which every token adds."""
        w, d = workload, workload.head_dim
        self.define_rows(writer, w)
        heads = w.batch_size * w.num_heads
        tokens, width = heads * rows(w), d + 1
        sums = 0 if w.causal or w.phase == "decode" else heads  # every token adds to its sums
        writer.stage("values / N", Cost(divisions=tokens * width), tokens, width)
        writer.stage("box products", Cost(multiplications=2 * tokens * d * d), tokens, d * d)
        writer.dots("A_mod", sums * d * d * width, tokens * d * d * width)
        writer.dots("squared part", tokens * width, tokens * d * d * width)
        writer.dots("keysᵀ values", sums * d * width, tokens * d * width)
        writer.dots("linear part", tokens * width, tokens * d * width)
        writer.sums("sum of values", sums * width, tokens * width)
        writer.stage("factors", Cost(multiplications=3 * tokens * width), tokens, width)
        writer.stage("sums", Cost(additions=2 * tokens * width), tokens, width)
        writer.stage("division", Cost(divisions=tokens * d), tokens, d)


MECHANISMS = (TaylorDirect, TaylorEfficient)
