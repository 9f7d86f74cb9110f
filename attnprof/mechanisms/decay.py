"""The decay family: retention, lightning attention, gated linear attention; one recurrence."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.norms import define_norm, normed
from attnprof.costs import Cost, Number
from attnprof.mechanism import Variant
from attnprof.mechanisms.convolved import SILU
from attnprof.mechanisms.delta import Recurrence
from attnprof.ops.functional import silu, softplus, square_root, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.ops.pointwise import SIGMOID


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
        **Recurrence.allowed,
        "impl": ("auto", "chunkwise", "recurrent", "parallel"),
    }


@dataclass(frozen=True, kw_only=True)
class GatedDecay(Decay):
    """Outputs of all heads over their root mean square, and a gate an entry, x W_g.

    The gate multiplies ``before`` the norm, by its SiLU, or after it, by its sigmoid.
    """

    output_gate: bool = True

    before: ClassVar[bool] = False

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """The base's, and the output gate's."""
        maps = super().layer_maps(sizes)
        if not self.output_gate:
            return maps
        out = maps.pop("o_proj")
        return {**maps, "gate_proj": (sizes.d_model, out[0]), "o_proj": out}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A weight an output."""
        norm = Weight((sizes.num_heads * sizes.value_head_dim,), 1.0)
        return {**super().layer_weights(sizes), "out_norm": norm if self.output_gate else None}

    def gated_output(self, layer: Any, x: Any, y: Any) -> Any:
        """Normed and gated."""
        if not self.output_gate:
            return y
        gate = layer.gate_proj(x)
        if self.before:
            return normed(y * silu(gate), layer.out_norm)
        return normed(y, layer.out_norm) * gate.sigmoid()

    def define_finish(
        self, writer: Definition, tokens: Number, heads: Number, width: Number
    ) -> None:
        """The norm, and the gate."""
        if self.output_gate:
            entries = tokens * heads * width
            define_norm(writer, tokens, heads * width)
            gate = (SILU if self.before else SIGMOID) + Cost(multiplications=1)
            writer.stage("output gate", gate * entries, entries)


@dataclass(frozen=True, kw_only=True)
class FixedDecay(Decay):
    """A head's decay is the same for every token and not learned."""

    start: ClassVar[str] = ""  #: which logarithms of decays the heads have

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """The logarithm of each head's decay."""
        return {"log_decay": Weight((sizes.num_heads,), self.start, drawn=True)}

    def log_decays(self, q: Any, weights: Any) -> Any:
        """The same for every token, (b·h, n, 1)."""
        b, h, n, _ = q.shape
        return flat(weights.log_decay.view(1, h, 1, 1).expand(b, h, n, 1))


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
        """Queries over sqrt d."""
        queries = flat(q) * (1 / square_root(q.shape[-1]))
        return queries, flat(k), flat(v), self.log_decays(q, weights), None


@dataclass(frozen=True, kw_only=True)
class Lightning(FixedDecay, GatedDecay):
    """Lightning attention: SiLU of q, k, v; head i of h decays by exp(-s 2^(-8i/h)), i from 1.

    s = 1 - ``depth`` + 1e-5, where ``depth`` is the layer's place from 0 (first) to 1 (last)
    (Qin et al. 2024; MiniMax 2025). Outputs are normed, and gated by σ(x W_g).
    """

    chunk: int = 256
    depth: float = 0.0

    name: ClassVar[str] = "lightning"
    title: ClassVar[str] = "Lightning attention"
    document: ClassVar[str] = "arXiv:2401.04658"
    start = "slope_decays"

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """SiLU of all three."""
        decays = self.log_decays(q, weights) * (1 - self.depth + 1e-5)
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

    @property
    def gated_by(self) -> str:
        """A channel of the keys."""
        return "channel"

    def gate_rank(self, name: str, head_dim: Number) -> Number | None:
        """Of W₁ W₂."""
        return self.rank

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """c, a number a channel."""
        return {"offset": Weight((sizes.num_heads, sizes.head_dim), 0.0)}

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Queries over sqrt d, and log α of every channel."""
        b, h, n, d = q.shape
        offset = wide(weights.offset.view(1, h, 1, d))
        raised = offset if gates is None else wide(gates["a"]) + offset
        g = flat((softplus(-raised) * (-1 / 16)).expand(b, h, n, d))
        return flat(q) * (1 / square_root(d)), flat(k), flat(v), g, None


MECHANISMS = (RetNet, Lightning, GLA)
