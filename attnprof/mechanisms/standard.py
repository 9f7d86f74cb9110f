"""Standard multi-head attention (000, Definition 1; 002, Eq 10-17) and torch's fused form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.softmax import KeyValueState, causal_mask, empty_rows, weighted_values
from attnprof.costs import Number, exact_div
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import repeat_rows, scaled_dot_product_attention
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.workload import Published, Workload, pairs, rows

# -- the counts that document 002 prints for self-attention: Tables 3 and 5, untouched --------
#: a printed form in l (or t), d, and the number of heads
_Form = Callable[[Number, Number, Number], Number]

#: one sequence of length n, causal, without biases
TRAINING: dict[str, _Form] = {
    "multiplications": lambda n, d, _: n**2 * d + 4 * n * d**2 + n * d,
    "additions": lambda n, d, h: n**2 * d + 4 * n * d**2 - 4 * n * d - n * h,
    "divisions": lambda n, _, h: h * n**2 + h * n,
    "exponentials": lambda n, _, h: exact_div(h * n**2 + h * n, 2),
    "parameters": lambda _, d, __: 4 * d**2,
}
#: token number t; the additions are misprinted: the table's own terms give 2td + 4d² - 5d - h
INFERENCE: dict[str, _Form] = {
    "multiplications": lambda t, d, _: 2 * t * d + 4 * d**2,
    "additions": lambda t, d, h: 2 * t * d - t * h + t + 4 * d**2 - 5 * d - 1,
    "divisions": lambda t, _, h: 2 * t * h,
    "exponentials": lambda t, _, h: t * h,
}


def layer_count(source: str, quantity: str, phase: str, form: _Form) -> Published:
    """Return a printed count of a whole layer, causal in training."""
    return Published(
        source, quantity, scope="layer", phase=phase, convention="operations",
        formula=lambda w: form(w.seq_len, w.d_model, w.num_heads),
        causal=phase == "forward",  # a decoding step has no mask
    )  # fmt: skip


def eq24(constant: int) -> Published:
    """Return document 000's Eq 24: C·l·d_m + 15·h·l², one forward and backward pass."""
    return Published(
        "000-EQ24", "flops", "layer", "train", "000: one per output element, times 3",
        formula=lambda w: constant * w.seq_len * w.d_model + 15 * w.num_heads * w.seq_len**2,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention(Mechanism):
    """Softmax attention over scores that are written out; the family of document 000."""

    bias: bool = True

    family: ClassVar[str] = "exact"
    to_softmax = ("same", "the same function, up to rounding")
    time_order = memory_order = "N^2"

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute scaled queries, scores, softmax, values; grouped heads share their keys."""
        mask = None
        if causal:  # repeated, for masking a view would make autograd copy it
            mask = repeat_rows(causal_mask(q.shape[2], q), exact_div(q.shape[1], k.shape[1]))
        return self._by_group(q, flat(k), flat(v), mask, weights)

    def _by_group(self, q: Any, k: Any, v: Any, mask: Any, weights: Any) -> Any:
        """Return rows of q (b, h, n, d), the heads of a group side by side; k, v (b·g, m, ·)."""
        rows = q.reshape(k.shape[0], -1, q.shape[-1])
        return self.attended(rows, k, v, mask, weights).view(*q.shape[:3], -1)

    def attended(self, q: Any, k: Any, v: Any, mask: Any, weights: Any) -> Any:
        """Return rows (b·g, r·n, dv) of q (b·g, r·n, d), k (b·g, m, d), v (b·g, m, dv)."""
        return weighted_values(q, k, v, mask)

    def init_state(self, sizes: LayerSizes, cache: Callable[[Number, Number], Any]) -> Any:
        """Return empty caches."""
        return KeyValueState(*empty_rows(sizes, cache))

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to every token so far, itself included."""
        keys, values = state.append(k, v)
        return self._by_group(q, keys, values, None, weights), state

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define document 002's Eq 10 to 17: two divisions a score."""
        writer.softmax_attention(workload, pairs(workload), rows(workload))


@dataclass(frozen=True, kw_only=True)
class Standard(SoftmaxAttention):
    """Projections, scores, softmax and values written out, one operation at a time."""

    name: ClassVar[str] = "standard"
    title: ClassVar[str] = "Standard multi-head attention"
    document: ClassVar[str] = "000"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True, cross=True)
    same_as = ("sdpa", {})
    printed = (
        eq24(15),
        *(layer_count("002-T3", name, "forward", form) for name, form in TRAINING.items()),
        *(layer_count("002-T5", name, "decode", form) for name, form in INFERENCE.items()),
    )


WORKSPACE = (
    "the fused kernel's own workspace is not in peak_bytes: it depends on threads and blocks"
)


@dataclass(frozen=True, kw_only=True)
class Sdpa(Standard):
    """``scaled_dot_product_attention``: never holds the N×N scores.

    Subclasses have a parameter ``impl``, by which the scores may be in memory instead.
    """

    name: ClassVar[str] = "sdpa"
    title: ClassVar[str] = "torch's fused softmax attention"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=False, cross=True)
    same_as = ("standard", {})
    printed: ClassVar[tuple[Published, ...]] = ()  # of the fused kernel no document of ours
    impl = "fused"  # not annotated: subclasses have a parameter of this name at its own place

    @property
    def flat(self) -> bool:  # type: ignore[override]
        """Whether heads lie one after the other, as products of written scores want them."""
        return self.impl != "fused"

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Attend: q (b, h, n, d), k and v (b, g, m, d) → (b, h, n, d)."""
        run = self.fused if self.impl == "fused" else super().core
        return run(q, k, v, causal, weights)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token by the form that a whole sequence takes."""
        if self.impl != "fused":
            return super().step(q, k, v, state, weights)
        b, g = k.shape[:2]
        keys, values = (x.view(b, g, -1, x.shape[-1]) for x in state.append(k, v))
        return self.fused(q, keys, values, False, weights), state

    def fused(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Call the kernel."""
        return scaled_dot_product_attention(q, k, v, causal, weights.sizes.group)

    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return a note on the kernel's workspace, which the peak leaves out."""
        return (WORKSPACE,) if self.impl == "fused" else ()


MECHANISMS = (Standard, Sdpa)
