"""Differential attention (Ye et al. 2024): the difference of two softmax maps takes the values."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import define_norm, normed
from attnprof.blocks.softmax import KeyValueState, causal_mask, score_products
from attnprof.costs import Cost, Number, ceil_div, is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import repeat_rows, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Differential(Mechanism):
    """(softmax(Q₁ K₁ᵀ / sqrt d₁) - λ softmax(Q₂ K₂ᵀ / sqrt d₂)) V, normed a head, times 1 - λ₀.

    A head's queries and keys are cut in two (an odd entry goes to the first part), its values are
    whole: so d is twice the article's. λ = exp(a₁·b₁) - exp(a₂·b₂) + λ₀, of learned a and b that
    all heads share; λ₀ = 0.8 - 0.6 exp(-0.3 · depth). ``impl=subtracted`` takes the difference of
    the maps, ``separate`` multiplies each by the values first, as two calls of a kernel do.
    """

    depth: int = 0
    impl: str = "subtracted"

    name: ClassVar[str] = "differential"
    title: ClassVar[str] = "Differential attention"
    document: ClassVar[str] = "arXiv:2410.05258"
    family: ClassVar[str] = "softmax"
    time_order = memory_order = "N^2"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, cross=True)
    same_as = ("", {"impl": "separate"})
    to_softmax = ("another", "a second map is subtracted from the first")
    allowed: ClassVar[dict[str, Any]] = {"depth": 0, "impl": ("subtracted", "separate")}

    @property
    def start(self) -> float:
        """λ₀, of the number of layers below."""
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth)

    def parts(self, head_dim: Number) -> list[Number]:
        """Widths of both parts of a head's queries."""
        if is_plain(head_dim) and head_dim < 2:
            raise RequestError(f"{self.name} cuts heads in two: head_dim={head_dim} is too narrow")
        first = ceil_div(head_dim, 2)
        return [first, head_dim - first]

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A and b of both maps."""
        first, second = self.parts(sizes.head_dim)
        widths = {"a1": first, "b1": first, "a2": second, "b2": second}
        return {name: Weight((width,), "uniform", 10.0) for name, width in widths.items()}

    # -- what runs -----------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Two maps, with grouped heads as rows of one; then values and the norm."""
        b, h, n, _ = q.shape
        mask = causal_mask(n, q) if causal else None
        if mask is not None:
            mask = repeat_rows(mask, weights.sizes.group)
        rows = q.reshape(b * k.shape[1], -1, q.shape[-1])
        return self._mixed(rows, flat(k), flat(v), weights, mask).view(b, h, n, -1)

    def _mixed(self, q: Any, k: Any, v: Any, weights: Any, mask: Any = None) -> Any:
        """Rows (b·g, r·n, dv) of q (b·g, r·n, d), k (b·g, m, d), v (b·g, m, dv)."""
        widths = self.parts(q.shape[-1])
        one, two = map(_map, q.split(widths, -1), k.split(widths, -1), (mask, mask))
        share = _product(weights.a1, weights.b1) - _product(weights.a2, weights.b2) + self.start
        if self.impl == "separate":
            out = one.bmm(v) - two.bmm(v) * share
        else:
            out = (one - two * share).bmm(v)
        del one, two
        return normed(out, None) * (1 - self.start)

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Empty caches."""
        heads = sizes.num_kv_heads
        return KeyValueState(cache(heads, sizes.head_dim), cache(heads, sizes.value_head_dim))

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """The new token over every token so far."""
        b, h, _, d = q.shape
        keys, values = state.keys.append(flat(k)), state.values.append(flat(v))
        rows = q.reshape(b * k.shape[1], -1, d)
        return self._mixed(rows, keys, values, weights).view(b, h, 1, -1), state

    # -- the definition ------------------------------------------------------------------
    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Both maps, their difference, values and norms; λ is one number for all tokens."""
        w = workload
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs(w), heads * rows(w)
        for name, width in zip(("first", "second"), self.parts(w.head_dim), strict=True):
            writer.dots(f"{name} scores", scores, scores * width)
            writer.softmax(scores, outputs, of=f"{name} ")
        writer.stage("difference", Cost(multiplications=1, additions=1) * scores, scores)
        values = outputs * w.value_width
        writer.dots("weighted values", values, scores * w.value_width)
        define_norm(writer, outputs, w.value_width)


def _map(q: Any, k: Any, mask: Any) -> Any:
    """Rows of softmax((q / sqrt d) kᵀ); ``mask`` is True where a row must not look."""
    scores = score_products(q / square_root(q.shape[-1]), k)
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    return scores.softmax(-1)


def _product(a: Any, b: Any) -> Any:
    """exp(a·b), as one entry."""
    return (a * b).sum(0, keepdim=True).exp()


MECHANISMS = (Differential,)
