"""Linear attention and Performer (003: kernel family)."""

import math
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.kernel_attention import (
    FeatureMap,
    State,
    absorb,
    kernel_attention,
    numerators,
    read,
)
from attnprof.costs import Cost, Number, is_plain, more_than_one
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, kept
from attnprof.workload import Workload, rows

#: Rows of a causal chunk. At head width 64 the work within chunks, rows·(m + dv) a row, is then
#: about that of the state, 2·m·dv.
CHUNK = 128
#: Rows of a block where nothing is causal: features that stay in the processor's cache.
BLOCK = 256
#: elu(x) + 1 an entry: a comparison, an exponential, an addition
ELU_PLUS_ONE = Cost(other=1, exponentials=1, additions=1)


@dataclass(frozen=True, kw_only=True)
class KernelAttention(Mechanism):
    """out_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i)·Σ_j φ(k_j), causal by a chunked prefix scan."""

    document: ClassVar[str] = "003"
    family: ClassVar[str] = "kernel"
    time_order = memory_order = "N"
    abilities: ClassVar[Abilities] = Abilities(value_width=True, cross=True)
    softmax: ClassVar[bool] = False  #: whether features approximate the exponential kernel
    floor: ClassVar[float] = 0.0  #: added to each denominator

    def width(self, head_dim: Number) -> Number:
        """Return the number of features m of a head."""
        return head_dim

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute the core as one function with its own backward pass, by blocks of tokens."""
        out = kernel_attention(
            flat(q), flat(k), flat(v), getattr(weights, "projection", None), softmax=self.softmax,
            causal=causal, rows=CHUNK if causal else BLOCK, floor=self.floor,
        )  # fmt: skip
        return out.view(*q.shape[:3], -1)

    def init_state(self, sizes: LayerSizes, cache: Any) -> State:
        """Return sums of no token: O(m·dv) numbers a head, however long the sequence becomes."""
        h, m = sizes.num_heads, self.width(sizes.head_dim)
        sums = cache.zeros(h, m, sizes.value_head_dim + 1, wide=True)
        return State(sums, cache.lowest(h, 1, 1) if self.softmax else None)

    def step(self, q: Any, k: Any, v: Any, state: State, weights: Any) -> tuple[Any, State]:
        """Add the new token to the state, in place; return its row (b, h, 1, dv) and the state."""
        b, h, _, _ = q.shape
        phi = FeatureMap(getattr(weights, "projection", None), self.softmax, b * h)
        absorb(state, flat(k), flat(v), phi)
        top, total = numerators(read(state, flat(q), phi), self.floor)
        return (top / total).view(b, h, 1, -1), state

    def wide_entries(self, workload: Workload) -> Number:
        """Return the entries of the sums, without the scale."""
        return kept(self, workload, "core").entries[0]

    # -- the definition ----------------------------------------------------------------------
    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define features; φ(K)ᵀV and Σφ(k), as running sums if causal; products; division."""
        w = workload
        heads, m = w.batch_size * w.num_heads, self.width(w.head_dim)
        queries = heads * rows(w)
        keys = heads * (1 if w.phase == "decode" else w.keys)
        self.define_features(writer, w, queries + keys)
        results = heads * m
        if w.phase == "decode":  # added to what is there, from the second token on
            new = results * more_than_one(w.seq_len)
            writer.dots("state", results * w.value_width, results * w.value_width)
            writer.sums("key sums", 0, new * (w.value_width + 1))
        else:
            writer.dots("state", results * w.value_width, keys * m * w.value_width)
            writer.sums("key sums", results, keys * m)
        writer.dots("numerators", queries * w.value_width, queries * m * w.value_width)
        writer.dots("denominators", queries, queries * m)
        if self.floor:
            writer.stage("floor", Cost(additions=queries), queries)
        divided = queries * w.value_width
        writer.stage("normalisation", Cost(divisions=divided), divided)

    def define_features(self, writer: Definition, workload: Workload, count: Number) -> None:
        """Define elu(x) + 1 of ``count`` rows."""
        entries = count * workload.head_dim
        writer.stage("features", ELU_PLUS_ONE * entries, count, workload.head_dim)


@dataclass(frozen=True, kw_only=True)
class Linear(KernelAttention):
    """Kernelized attention with φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, Eq 7)."""

    name: ClassVar[str] = "linear"
    title: ClassVar[str] = "Linear attention (elu + 1)"
    to_softmax = ("another", "elu(x) + 1 takes the place of the exponential")


@dataclass(frozen=True, kw_only=True)
class Performer(KernelAttention):
    """FAVOR+: positive orthogonal random features of the softmax kernel, shared by heads.

    ``num_features`` defaults to ⌊d ln d⌋. ``features=elu`` is the article's variant:
    φ(x) = elu(xΩ) + 1, Ω Gaussian / sqrt m, denominators + 1e-6. Ω is frozen in both.
    """

    num_features: int | None = None
    features: str = "softmax"

    name: ClassVar[str] = "performer"
    title: ClassVar[str] = "Performer (FAVOR+)"
    tuned = ("num_features",)
    to_softmax = (
        "approximates",
        "random features of the exponential, which more bring nearer (elu's do not)",
    )
    allowed: ClassVar[dict[str, Any]] = {"features": ("softmax", "elu"), "num_features": 1}

    @property
    def softmax(self) -> bool:  # type: ignore[override]
        """Whether features approximate the exponential kernel."""
        return self.features == "softmax"

    @property
    def floor(self) -> float:  # type: ignore[override]
        """The article adds 1e-6 to its denominators."""
        return 0.0 if self.softmax else 1e-6

    def width(self, head_dim: Number) -> Number:
        """Return ``num_features``, or ⌊d ln d⌋ and at least one."""
        if self.num_features is not None:
            return self.num_features
        if is_plain(head_dim):
            return max(1, math.floor(head_dim * math.log(head_dim)))
        if hasattr(head_dim, "free_symbols"):
            sympy = sys.modules["sympy"]
            return sympy.Max(1, sympy.floor(head_dim * sympy.log(head_dim)))
        numpy = sys.modules["numpy"]
        return numpy.maximum(1, numpy.floor(head_dim * numpy.log(head_dim)).astype("int64"))

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return Ω (head_dim, m), drawn and not learned."""
        start = "orthogonal_features" if self.softmax else "gaussian_features"
        shape = (sizes.head_dim, self.width(sizes.head_dim))
        return {"projection": Weight(shape, start, drawn=True)}

    def define_features(self, writer: Definition, workload: Workload, count: Number) -> None:
        """Define a projection, then exp(ωᵀx - ‖x‖²/2) of x = row / d^(1/4), or elu + 1."""
        d, m = workload.head_dim, self.width(workload.head_dim)
        if self.softmax:
            writer.stage("scaling", Cost(divisions=count * d), count, d)
        writer.dots("projection", count * m, count * m * d, count, m)
        if not self.softmax:
            writer.stage("features", ELU_PLUS_ONE * (count * m), count, m)
            return
        writer.dots("squared norms", count, count * d)
        writer.stage("halves", Cost(divisions=count), count)
        writer.stage("features", Cost(additions=1, exponentials=1) * (count * m), count, m)


MECHANISMS = (Linear, Performer)
