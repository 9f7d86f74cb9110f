"""The gated delta rule: DeltaNet, Gated DeltaNet, and Kimi Delta Attention's gate by channel."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.recurrence import recurrence, token_row, unit_rows
from attnprof.blocks.scan import State
from attnprof.costs import Cost, Number
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import as_format_of, softplus, square_root, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class Recurrence(Mechanism):
    """A state (dk, dv) a head that decays, takes k_t u_tᵀ of every token, and is read by q_t.

    Causal by nature, so ``causal`` changes nothing. ``chunkwise`` takes ``chunk`` tokens at once,
    ``recurrent`` one: it counts fewest FLOPs and takes a turn a token. ``auto`` is the first for
    a prompt. Decoding is one turn of the recurrence whatever the form.
    """

    impl: str = "auto"
    chunk: int = 64

    document: ClassVar[str] = ""
    family: ClassVar[str] = "recurrent"
    time_order = memory_order = "N"
    abilities: ClassVar[Abilities] = Abilities(value_width=True)
    same_as = ("", {"impl": "recurrent"})
    allowed: ClassVar[dict[str, Any]] = {"impl": ("auto", "chunkwise", "recurrent"), "chunk": 1}
    gate_maps: ClassVar[tuple[str, ...]] = ()  #: maps of the input to gates

    # -- sizes ---------------------------------------------------------------------------
    @property
    def form(self) -> str:
        """The form that runs for a prompt."""
        return "chunkwise" if self.impl == "auto" else self.impl

    @property
    def delta(self) -> bool:
        """Whether a token writes what the state does not know of it, or its value as it is."""
        return False

    @property
    def gated_by(self) -> str:
        """What has a decay of its own: a ``token``, a ``channel``; or ``none``."""
        return "token"

    def gate_width(self, name: str, head_dim: Number) -> Number:
        """Numbers of a head that a map of gates gives."""
        return 1

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Queries, keys, values, gates, output."""
        maps = sizes.maps(self.projections)
        out = {"o_proj": maps.pop("o_proj")}
        for name in self.gate_maps:
            width = sizes.num_heads * self.gate_width(name, sizes.head_dim)
            maps[f"{name}_proj"] = (sizes.d_model, width)
        return {**maps, **out}

    # -- what is executed ------------------------------------------------------------------
    def gates(self, layer: Any, x: Any) -> dict[str, Any]:
        """The maps' results, (b, h, n, width) each."""
        return {"gates": {name: layer.heads(name, x) for name in self.gate_maps}}

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Queries, keys, values, log decays and β, (b·h, n, ·) each, as they enter the state.

        Without ``gates``, as where a core runs alone, each head has its own constants.
        """
        raise NotImplementedError

    def core(self, q: Any, k: Any, v: Any, weights: Any, gates: Any = None) -> Any:
        """All tokens, by the chosen form."""
        given = self.operands(q, k, v, weights, gates)
        out = recurrence(
            *given, rows=self.chunk, form=self.form, by_channel=self.gated_by == "channel"
        )
        return out.view(*q.shape[:3], -1)

    def init_state(self, sizes: LayerSizes, cache: Any) -> State:
        """A state of no token: dk·dv numbers a head, however long the sequence becomes."""
        shape = sizes.head_dim, sizes.value_head_dim
        return State(cache.zeros(sizes.num_heads, *shape, wide=True), None)

    def step(
        self, q: Any, k: Any, v: Any, state: State, weights: Any, gates: Any = None
    ) -> tuple[Any, State]:
        """The new token enters the state, in place, and reads it."""
        given = self.operands(q, k, v, weights, gates)
        row = token_row(state.sums, *(None if x is None else wide(x) for x in given))
        return as_format_of(row, q).view(*q.shape[:3], -1), state

    def state_entries(self, workload: Workload) -> Number:
        """One state a head."""
        w = workload
        return w.batch_size * w.num_heads * w.head_dim * w.value_width

    # -- what is defined -------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Projections, gates, the recurrence token by token."""
        w = workload
        tokens = w.batch_size * rows(w)
        if scope == "layer":
            writer.projections(self.projections.replace("o", ""), w)
            for name in self.gate_maps:
                outputs = tokens * w.num_heads * self.gate_width(name, w.head_dim)
                writer.dots(f"{name} gates", outputs, outputs * w.d_model)
        self.define_core(writer, w)
        if scope == "layer":
            writer.projections("o", w)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Decay, what the delta rule reads, k uᵀ, q S: each over dk·dv entries a token."""
        w = workload
        tokens = w.batch_size * w.num_heads * rows(w)
        values, entries = tokens * w.value_width, tokens * w.head_dim * w.value_width
        if self.gated_by != "none":
            decays = tokens * (w.head_dim if self.gated_by == "channel" else 1)
            writer.stage("decays", Cost(exponentials=decays), decays)
            writer.stage("decayed state", Cost(multiplications=entries), entries)
        if self.delta:
            writer.dots("known values", values, entries)
            writer.stage("updates", Cost(additions=values, multiplications=values), values)
        writer.stage("state", Cost(multiplications=entries, additions=entries), entries)
        writer.dots("outputs", values, entries)


def unit(x: Any) -> Any:
    """Heads (b, h, n, d) as rows (b·h, n, d) of length one."""
    return unit_rows(flat(x))


def decays(rate: Any, raised: Any) -> Any:
    """Log decays -exp(rate) · softplus(raised), in float32 at least."""
    return softplus(wide(raised)) * -wide(rate).exp()


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(Recurrence):
    """S_t = α_t (S_{t-1} - β_t k_t k_tᵀ S_{t-1}) + β_t k_t v_tᵀ (Yang, Kautz & Hatamizadeh 2025).

    β = σ(x W_b); α = exp(-exp(A) softplus(x W_a + c)), one number a head and token. ``gate=none``
    is the delta rule without decay (DeltaNet, Schlag et al. 2021; Yang et al. 2024). Queries and
    keys have length one, queries are scaled by 1 / sqrt d. A core alone has α = exp(-exp(A)
    softplus(c)) and β = 1. Convolutions and the output gate of published layers are not in it.
    """

    gate: str = "scalar"

    name: ClassVar[str] = "gated-deltanet"
    title: ClassVar[str] = "Gated DeltaNet (gated delta rule)"
    to_softmax = ("another", "a state of constant size takes the place of all earlier tokens")
    allowed: ClassVar[dict[str, Any]] = {**Recurrence.allowed, "gate": ("scalar", "none")}

    @property
    def delta(self) -> bool:
        """It is."""
        return True

    @property
    def gated_by(self) -> str:
        """A token, unless ungated."""
        return "none" if self.gate == "none" else "token"

    @property
    def gate_maps(self) -> tuple[str, ...]:  # type: ignore[override]
        """``a`` for the decay, ``b`` for β."""
        return ("b",) if self.gate == "none" else ("a", "b")

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A and c, a number a head."""
        gated = self.gate != "none"
        shape = (sizes.num_heads,)
        return {
            "rate": Weight(shape, 0.0) if gated else None,
            "offset": Weight(shape, -2.0) if gated else None,
        }

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Unit queries over sqrt d, unit keys, values, log α, β."""
        b, h, n, d = q.shape
        queries = unit(q) * (1 / square_root(d))
        g = None
        if self.gate != "none":
            rate, offset = (x.view(1, h, 1, 1) for x in (weights.rate, weights.offset))
            raised = offset if gates is None else gates["a"] + offset
            g = flat(decays(rate, raised).expand(b, h, n, 1))
        beta = q.new_ones(b * h, n, 1) if gates is None else flat(gates["b"].sigmoid())
        return queries, unit(k), flat(v), g, beta


MECHANISMS = (GatedDeltaNet,)
