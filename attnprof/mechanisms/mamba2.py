"""Mamba-2's state-space duality: a scalar decay and a step size of every token and head."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.scan import State
from attnprof.costs import Cost, Number
from attnprof.mechanism import Variant
from attnprof.mechanisms.decay import GatedDecay
from attnprof.ops.functional import as_format_of, softplus, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class Mamba2(GatedDecay):
    """h_t = exp(-Δ_t exp(A)) h_{t-1} + Δ_t B_t x_tᵀ, y_t = C_t h_t + D x_t (Dao & Gu 2024).

    Queries are C, keys B, values x: the head width is that of a state, the value width that of a
    head. Δ = softplus(x W_a + c); a core alone has Δ = softplus(c). ``groups`` heads of B and C
    are projected and repeated for all others; none projects one for each. ``conv`` tokens of C, B
    and x are convolved before, channel by channel, then SiLU; outputs times the SiLU of a gate
    x W_z are normed. ``impl=quadratic`` takes all pairs at once.
    """

    chunk: int = 256
    groups: int | None = 1
    conv: int | None = 4  # type: ignore[misc]  # a parameter of what is one

    name: ClassVar[str] = "mamba2"
    title: ClassVar[str] = "Mamba-2 (state-space duality)"
    document: ClassVar[str] = "arXiv:2405.21060"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "quadratic"}, "N^2", "N^2", "takes all pairs of tokens at once"),
    )
    allowed: ClassVar[dict[str, Any]] = {
        **GatedDecay.allowed,
        "impl": ("auto", "chunkwise", "recurrent", "quadratic"),
        "groups": 1,
        "conv": 2,
    }
    gate_maps = ("a",)
    before = True

    def projected_heads(self, letter: str) -> Number | None:
        """Of B and C, one for each group."""
        return self.groups if letter in ("q", "k") else None

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A, c and D, a number a head each."""
        starts = {"rate": 0.0, "offset": -2.0, "skip": 1.0}
        return {name: Weight((sizes.num_heads,), start) for name, start in starts.items()}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """The base's, and a bias a channel of each convolution."""
        shifts = self.convolved(sizes).items()
        biases = {f"{letter}_shift": Weight((width,), 0.0) for letter, width in shifts}
        return {**super().layer_weights(sizes), **biases}

    # -- what is executed ------------------------------------------------------------------
    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """C, B, Δ x, -Δ exp(A)."""
        b, h, n, _ = q.shape
        rate, offset = (wide(x.view(1, h, 1, 1)) for x in (weights.rate, weights.offset))
        raised = offset if gates is None else wide(gates["a"]) + offset
        steps = softplus(raised)
        g = flat((steps * -rate.exp()).expand(b, h, n, 1))
        return flat(q), flat(k), flat(v * as_format_of(steps, v)), g, None

    def core(self, q: Any, k: Any, v: Any, weights: Any, gates: Any = None) -> Any:
        """All tokens, by the chosen form, and D x."""
        y = super().core(q, k, v, weights, gates)
        return y + v * weights.skip.view(1, -1, 1, 1)

    def step(
        self, q: Any, k: Any, v: Any, state: State, weights: Any, gates: Any = None
    ) -> tuple[Any, State]:
        """The new token enters the state, in place, and reads it."""
        y, state = super().step(q, k, v, state, weights, gates)
        return y + v * weights.skip.view(1, -1, 1, 1), state

    # -- what is defined -------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Like the base's, with Δ x and D x."""
        super().define(writer, workload, scope)
        w = workload
        values = w.batch_size * rows(w) * w.num_heads * w.value_width
        writer.stage("step sizes", Cost(multiplications=values), values)
        writer.stage("skipped", Cost(multiplications=values, additions=values), values)


MECHANISMS = (Mamba2,)
