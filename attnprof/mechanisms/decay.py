"""The decay family: retention, lightning attention, gated linear attention, Mamba-2."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import define_norm, normed
from attnprof.blocks.recurrent_layer import Recurrence
from attnprof.costs import Cost, Number
from attnprof.mechanism import Variant
from attnprof.ops.arithmetic import SIGMOID
from attnprof.ops.functional import as_format_of, silu, softplus, square_root, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class Decay(Recurrence):
    """S_t = decay_t ∘ S_{t-1} + k_t v_tᵀ, o_t = q_t S_t.

    Three forms: token by token, by chunks, or ``parallel``: all pairs of tokens at once.
    """

    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "parallel"}, "N^2", "N^2", "takes all pairs of tokens at once"),
    )
    to_softmax = ("another", "decays with distance take the place of the exponential")
    allowed: ClassVar[dict[str, Any]] = {
        **Recurrence.allowed, "impl": ("auto", "chunkwise", "recurrent", "parallel"),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GatedDecay(Decay):
    """Outputs of all heads divided by their root mean square, and gated entry by entry by x W_g.

    The gate multiplies ``before`` the norm, by its SiLU, or after it, by its sigmoid.
    """

    output_gate: bool = True

    before: ClassVar[bool] = False

    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the base's maps, and that of the output gate."""
        gate = {"gate_proj": (sizes.d_model, sizes.num_heads * sizes.value_head_dim)}
        return {**super().more_maps(sizes), **(gate if self.output_gate else {})}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the base's weights, and one per output for the norm."""
        norm = Weight((sizes.num_heads * sizes.value_head_dim,), 1.0)
        return {**super().layer_weights(sizes), "out_norm": norm if self.output_gate else None}

    def gated_output(self, layer: Any, x: Any, y: Any) -> Any:
        """Return the outputs normed and gated."""
        if not self.output_gate:
            return y
        gate = layer.gate_proj(x)
        if self.before:
            return normed(y * silu(gate), layer.out_norm)
        return normed(y, layer.out_norm) * gate.sigmoid()

    def define_outputs(self, writer: Definition, workload: Workload) -> None:
        """Define the norm and the gate."""
        if self.output_gate:
            w, tokens = workload, workload.batch_size * rows(workload)
            width = w.num_heads * w.value_width
            entries = tokens * width
            define_norm(writer, tokens, width)
            writer.stage("output gate", (SIGMOID + Cost(multiplications=1)) * entries, entries)


@dataclass(frozen=True, kw_only=True)
class FixedDecay(Decay):
    """A decay for each head that is the same for all tokens and not learned."""

    start: ClassVar[str] = ""  #: the rule that draws the heads' log decays
    steady = True

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the logarithm of each head's decay."""
        return {"log_decay": Weight((sizes.num_heads,), self.start, drawn=True)}

    def for_tokens(self, log_decay: Any, q: Any) -> Any:
        """Return the heads' log decays, equal for every token, (b·h, n, 1)."""
        b, h, n, _ = q.shape
        return flat(log_decay.view(1, h, 1, 1).expand(b, h, 1, 1)).expand(b * h, n, 1)


@dataclass(frozen=True, kw_only=True)
class RetNet(FixedDecay):
    """Retention: head i decays by 1 - 2^(-5-i), queries are over sqrt d (Sun et al. 2023).

    Rotation, group norm and output gate of the published layer are not in it.
    """

    name: ClassVar[str] = "retnet"
    title: ClassVar[str] = "Retention (RetNet)"
    document: ClassVar[str] = "arXiv:2307.08621"
    start = "retention_decays"

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return queries over sqrt d, keys and values as they are, and log decays."""
        queries = flat(q) * (1 / square_root(q.shape[-1]))
        return queries, flat(k), flat(v), self.for_tokens(weights.log_decay, q), None


@dataclass(frozen=True, kw_only=True)
class Lightning(FixedDecay, GatedDecay):
    """Lightning attention: SiLU of q, k, v; head i of h decays by exp(-s 2^(-8i/h)), i from 1.

    s = 1 - ``depth`` + 1e-5, where ``depth`` is the layer's place from 0 (first) to 1 (last)
    (Qin et al. 2024; MiniMax 2025, in blocks of 256). Outputs are normed, and gated by σ(x W_g).
    """

    chunk: int = 256
    depth: float = 0.0

    name: ClassVar[str] = "lightning"
    title: ClassVar[str] = "Lightning attention"
    document: ClassVar[str] = "arXiv:2401.04658"
    start = "slope_decays"

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return the SiLU of queries, keys and values, and log decays."""
        decays = self.for_tokens(weights.log_decay * (1 - self.depth + 1e-5), q)
        return silu(flat(q)), silu(flat(k)), silu(flat(v)), decays, None


@dataclass(frozen=True, kw_only=True)
class GLA(Decay):
    """Gated linear attention: a decay a channel, α = σ(x W₁ W₂ + c)^(1/16) (Yang et al. 2024).

    W₁ gives ``rank`` numbers a token. Queries are over sqrt d; a core alone has α =
    σ(c)^(1/16). Norm and output gate of the published layer are not in it.
    """

    chunk: int = 16
    rank: int = 16

    name: ClassVar[str] = "gla"
    title: ClassVar[str] = "Gated linear attention (GLA)"
    document: ClassVar[str] = "arXiv:2312.06635"
    allowed: ClassVar[dict[str, Any]] = {**Decay.allowed, "rank": 1}
    gate_maps = ("a",)
    gated_by = "channel"

    def gate_rank(self, name: str, head_dim: Number) -> Number | None:
        """Return the rank of W₁ W₂."""
        return self.rank

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the weight c, one number per channel."""
        return {"offset": Weight((sizes.num_heads, sizes.head_dim), 0.0)}

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return queries over sqrt d, keys, values, and log α of every channel."""
        b, h, n, d = q.shape
        offset = wide(weights.offset.view(1, h, 1, d))
        raised = offset if gates is None else wide(gates["a"]) + offset
        g = flat((softplus(-raised) * (-1 / 16)).expand(b, h, n, d))
        return flat(q) * (1 / square_root(d)), flat(k), flat(v), g, None


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
    conv: int | None = 4

    name: ClassVar[str] = "mamba2"
    title: ClassVar[str] = "Mamba-2 (state-space duality)"
    document: ClassVar[str] = "arXiv:2405.21060"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "quadratic"}, "N^2", "N^2", "takes all pairs of tokens at once"),
    )
    allowed: ClassVar[dict[str, Any]] = {
        **GatedDecay.allowed, "impl": ("auto", "chunkwise", "recurrent", "quadratic"),
        "groups": 1, "conv": 2,
    }  # fmt: skip
    gate_maps = ("a",)
    before = True

    def projected_heads(self, letter: str) -> Number | None:
        """Return ``groups`` for C and B."""
        return self.groups if letter in ("q", "k") else None

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return weights A, c and D, a number per head each."""
        starts = {"rate": 0.0, "offset": -2.0, "skip": 1.0}
        return {name: Weight((sizes.num_heads,), start) for name, start in starts.items()}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the base's weights, and one bias per channel of each convolution."""
        shifts = self.convolved(sizes).items()
        biases = {f"{letter}_shift": Weight((width,), 0.0) for letter, width in shifts}
        return {**super().layer_weights(sizes), **biases}

    # -- text --------------------------------------------------------------------------------
    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return C, B, values Δ x and log decays -Δ exp(A)."""
        b, h, n, _ = q.shape
        rate, offset = (wide(x.view(1, h, 1, 1)) for x in (weights.rate, weights.offset))
        raised = offset if gates is None else wide(gates["a"]) + offset
        steps = softplus(raised)
        g = flat((steps * -rate.exp()).expand(b, h, n, 1))
        return flat(q), flat(k), flat(v * as_format_of(steps, v)), g, None

    def finished(self, y: Any, v: Any, weights: Any, gates: Any) -> Any:
        """Return outputs plus D x."""
        return y + v * weights.skip.view(1, -1, 1, 1)

    # -- the definition ----------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define the base's operations, and Δ x and D x."""
        super().define(writer, workload, scope)
        w = workload
        values = w.batch_size * rows(w) * w.num_heads * w.value_width
        writer.stage("step sizes", Cost(multiplications=values), values)
        writer.stage("skipped", Cost(multiplications=values, additions=values), values)


MECHANISMS = (RetNet, Lightning, GLA, Mamba2)
