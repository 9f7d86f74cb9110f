"""Differential attention (Ye et al. 2024): the difference of two softmax maps takes the values."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import define_norm, normed
from attnprof.blocks.softmax import score_products
from attnprof.costs import Cost, Number, ceil_div, is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Variant
from attnprof.mechanisms.standard import Sdpa
from attnprof.ops.functional import padded, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Differential(Sdpa):
    """(softmax(Q₁ K₁ᵀ / sqrt d₁) - λ softmax(Q₂ K₂ᵀ / sqrt d₂)) V, normed a head, times 1 - λ₀.

    A head's queries and keys are cut in two (an odd entry goes to the first part), its values are
    whole: so d is twice the article's. λ = exp(a₁·b₁) - exp(a₂·b₂) + λ₀, of learned a and b that
    all heads share; λ₀ = 0.8 - 0.6 exp(-0.3 · depth). ``impl=subtracted`` takes the difference of
    the maps, ``separate`` multiplies each by the values first; ``fused`` is two calls of torch's
    kernel, each with queries that are zero in the other part, and never has the scores in memory.
    """

    bias: bool = False
    depth: int = 0
    impl: str = "subtracted"

    name: ClassVar[str] = "differential"
    title: ClassVar[str] = "Differential attention"
    document: ClassVar[str] = "arXiv:2410.05258"
    family: ClassVar[str] = "softmax"
    memory_order: ClassVar[str] = "N^2"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "fused"}, "N^2", "N", "the scores of no map are in memory"),
    )
    same_as = ("", {"impl": "separate"})
    to_softmax = ("another", "a second map is subtracted from the first")
    allowed: ClassVar[dict[str, Any]] = {"depth": 0, "impl": ("subtracted", "separate", "fused")}

    @property
    def abilities(self) -> Abilities:  # type: ignore[override]
        """A kernel's values are as wide as its keys."""
        return Abilities(grouped_kv=True, value_width=self.impl != "fused", cross=True)

    @property
    def start(self) -> float:
        """λ₀, which follows from the number of layers below."""
        return 0.8 - 0.6 * math.exp(-0.3 * self.depth)

    def parts(self, head_dim: Number) -> list[Number]:
        """Return widths of both parts of a head's queries."""
        if is_plain(head_dim) and head_dim < 2:
            raise RequestError(f"{self.name} cuts heads in two: head_dim={head_dim} is too narrow")
        first = ceil_div(head_dim, 2)
        return [first, head_dim - first]

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return a and b of both maps."""
        first, second = self.parts(sizes.head_dim)
        widths = {"a1": first, "b1": first, "a2": second, "b2": second}
        return {name: Weight((width,), "uniform", 10.0) for name, width in widths.items()}

    def attended(self, q: Any, k: Any, v: Any, mask: Any, weights: Any) -> Any:
        """Compute two softmax maps, then values and the norm."""
        widths = self.parts(q.shape[-1])
        one, two = map(_map, q.split(widths, -1), k.split(widths, -1), (mask, mask))
        share = self._share(weights)
        if self.impl == "separate":
            out = one.bmm(v) - two.bmm(v) * share
        else:
            out = (one - two * share).bmm(v)
        del one, two
        mixed = normed(out, None) * (1 - self.start)
        return mixed  # noqa: RET504 - the stage is called so

    def fused(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Call the kernel for each part of the queries, then subtract and norm."""
        d, (first, second) = q.shape[-1], self.parts(q.shape[-1])
        one, two = q.transpose(1, 2).split([first, second], -1)  # results lie as queries do
        # the kernel's scale is that of the whole width
        one = padded(one * square_root(d, first), after=second)
        two = padded(two * square_root(d, second), before=first)
        parts = one.transpose(1, 2), two.transpose(1, 2)
        one, two = (super(Differential, self).fused(x, k, v, causal, weights) for x in parts)
        mixed = normed(one - two * self._share(weights), None) * (1 - self.start)
        return mixed  # noqa: RET504 - the stage is called so

    def _share(self, weights: Any) -> Any:
        """Return λ, (1,)."""
        return _product(weights.a1, weights.b1) - _product(weights.a2, weights.b2) + self.start

    # -- the definition ------------------------------------------------------------------
    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define both maps, their difference, values and norms; λ is one number for all tokens."""
        w = workload
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs(w), heads * rows(w)
        for name, width in zip(("first", "second"), self.parts(w.head_dim), strict=True):
            writer.dots(f"{name} scores", scores, scores * width)
            writer.softmax(scores, outputs, prefix=f"{name} ")
        writer.stage("difference", Cost(multiplications=1, additions=1) * scores, scores)
        values = outputs * w.value_width
        writer.dots("weighted values", values, scores * w.value_width)
        define_norm(writer, outputs, w.value_width)


def _map(q: Any, k: Any, mask: Any) -> Any:
    """Return rows of softmax((q / sqrt d) kᵀ); ``mask`` is True where a row must not look."""
    scores = score_products(q / square_root(q.shape[-1]), k)
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    return scores.softmax(-1)


def _product(a: Any, b: Any) -> Any:
    """Return exp(a·b), (1,)."""
    return (a * b).sum(0, keepdim=True).exp()


MECHANISMS = (Differential,)
