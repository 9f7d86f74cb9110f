"""Delta rules: a token writes to the state what its value differs from the state's prediction.

:class:`GatedDeltaNet` has a gate a token, :class:`KimiDelta` a gate a channel.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.recurrence import EPSILON, unit_rows
from attnprof.blocks.recurrent_layer import Recurrence
from attnprof.costs import Cost, Number, is_plain
from attnprof.ops.arithmetic import SIGMOID
from attnprof.ops.functional import silu, softplus, square_root, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Published, Workload, rows


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Recurrence):
    """S_t = α_t ∘ S_{t-1} - β_t k_t k_tᵀ (α_t ∘ S_{t-1}) + β_t k_t v_tᵀ, o_t = q_t S_t / sqrt d.

    β = σ(x W_b); α = exp(-exp(A) softplus(x W_a + c)). Queries and keys have length one. A head's
    output is divided by the root of its mean square, weighted, and gated by x W_g, without
    ``output_gate`` left as it is. A core alone has α = exp(-exp(A) softplus(c)), β = 1 and no
    output gate. ``conv`` tokens are convolved before, channel by channel, then SiLU.
    ``impl=inverse`` multiplies by the inverse of a chunk's triangular system, as kernels do that
    take all chunks at once.
    """

    output_gate: bool = True
    conv: int | None = 4

    allowed: ClassVar[dict[str, Any]] = {
        **Recurrence.allowed, "impl": ("auto", "chunkwise", "inverse", "recurrent"), "conv": 2,
    }  # fmt: skip
    to_softmax = ("another", "a state of constant size takes the place of all earlier tokens")
    delta = True

    @property
    def gate_maps(self) -> tuple[str, ...]:  # type: ignore[override]
        """Letters of the gates: ``a`` for decays, ``b`` for β, ``g`` for outputs."""
        decays = () if self.gated_by == "none" else ("a",)
        return (*decays, "b", *(("g",) if self.output_gate else ()))

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return weights A (one a head), c (one a decay), and the norm's (one a channel)."""
        gated, heads = self.gated_by != "none", sizes.num_heads
        shape = heads, self.decay_width(sizes.head_dim)
        return {
            "rate": Weight((heads,), 0.0) if gated else None,
            "offset": Weight(shape, -2.0) if gated else None,
            "norm": Weight((sizes.value_head_dim,), 1.0) if self.output_gate else None,
        }

    def activated(self, gate: Any) -> Any:
        """Return an output gate's factors, from its logits."""
        return silu(gate)

    def finished(self, y: Any, v: Any, weights: Any, gates: Any) -> Any:
        """Return outputs over the root of their mean square, weighted and gated."""
        if gates is None or not self.output_gate:
            return y
        width = y.shape[-1]
        epsilon = width * EPSILON if is_plain(width) else EPSILON
        normed = unit_rows(y, epsilon=epsilon) * (weights.norm * square_root(width))
        return normed * self.activated(gates["g"])

    def define_outputs(self, writer: Definition, workload: Workload) -> None:
        """Define mean squares, their roots, weights and gates."""
        if not self.output_gate:
            return
        count = workload.batch_size * rows(workload) * workload.num_heads
        entries = count * workload.value_width
        writer.dots("squared norms", count, entries)
        writer.stage("roots", Cost(divisions=count, other=count, additions=count), count)
        writer.stage("norm", Cost(divisions=entries, multiplications=entries), entries)
        writer.stage("output gate", (SIGMOID + Cost(multiplications=1)) * entries, entries)

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return unit queries over sqrt d, unit keys, values, log α and β."""
        b, h, n, d = q.shape
        queries, g = unit_rows(flat(q)) * (1 / square_root(d)), None
        if self.gated_by != "none":
            rate, offset = wide(weights.rate.view(1, h, 1, 1)), wide(weights.offset)
            raised = offset.view(1, h, 1, -1)
            if gates is not None:
                raised = wide(gates["a"]) + raised
            g = flat((softplus(raised) * -rate.exp()).expand(b, h, n, self.decay_width(d)))
        beta = q.new_ones(b * h, n, 1) if gates is None else flat(gates["b"].sigmoid())
        return queries, unit_rows(flat(k)), flat(v), g, beta


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(DeltaRule):
    """The delta rule with a decay α a head and token (Yang, Kautz & Hatamizadeh 2025).

    ``gate=none`` has no decay: DeltaNet (Schlag et al. 2021; Yang et al. 2024). ``key_heads``
    heads of queries and keys are projected and repeated for all heads; none projects all.
    """

    gate: str = "scalar"
    key_heads: int | None = None

    name: ClassVar[str] = "gated-deltanet"
    title: ClassVar[str] = "Gated DeltaNet (gated delta rule)"
    document: ClassVar[str] = "arXiv:2412.06464"
    allowed: ClassVar[dict[str, Any]] = {
        **DeltaRule.allowed, "gate": ("scalar", "none"), "key_heads": 1,
    }  # fmt: skip

    @property
    def gated_by(self) -> str:  # type: ignore[override]
        """A token's entries share a decay, unless there is none."""
        return "none" if self.gate == "none" else "token"

    def projected_heads(self, letter: str) -> Number | None:
        """Return ``key_heads`` for queries and keys."""
        return self.key_heads if letter in ("q", "k") else None


def _kimi_flops(w: Workload) -> Number:
    """Return 6 T d² + 3 T C d + T C² a head, with chunks of C = 64 tokens."""
    d, c = w.head_dim, 64
    return w.num_heads * w.seq_len * (6 * d * d + 3 * c * d + c * c)


@dataclass(frozen=True, kw_only=True)
class KimiDelta(DeltaRule):
    """The delta rule with a decay α a channel of the keys (Kimi Team 2025).

    W_a and W_g have two factors each, between which are ``rank`` numbers a token, the head width
    if none. Output gates are σ.
    """

    chunk: int = 16
    rank: int | None = None

    name: ClassVar[str] = "kimi-delta"
    title: ClassVar[str] = "Kimi Delta Attention (KDA)"
    document: ClassVar[str] = "arXiv:2510.26692"
    printed = (
        Published(
            "arXiv:2510.26692-EQ13", "flops", "core", "forward", "Kimi Linear", causal=True,
            formula=_kimi_flops,
        ),
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {**DeltaRule.allowed, "rank": 1}
    gated_by = "channel"

    def gate_rank(self, name: str, head_dim: Number) -> Number | None:
        """Return the rank of the maps of decays and of output gates."""
        if name == "b":
            return None
        return head_dim if self.rank is None else self.rank

    def activated(self, gate: Any) -> Any:
        """Return an output gate's factors, from its logits: σ."""
        return gate.sigmoid()


MECHANISMS = (GatedDeltaNet, KimiDelta)
