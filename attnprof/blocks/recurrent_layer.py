"""Layers around a linear recurrence: attention with a state of constant size in place of a cache.

:class:`Recurrence` is the base of mechanisms whose core is :data:`attnprof.blocks.recurrence`: it
has their projections, gates, short convolutions, a prompt in chunks, and a decoding step.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.kernel_attention import State
from attnprof.blocks.layer_rows import ConvolvedState, convolved_step, short_convolution
from attnprof.blocks.recurrence import recurrence, token_row
from attnprof.costs import Cost, Number, is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.arithmetic import SIGMOID
from attnprof.ops.functional import as_format_of, silu, wide
from attnprof.ops.layer import Definition, LayerSizes, Weight, kept
from attnprof.workload import Workload, rows

SOLVE_RULE = (
    "a chunk's triangular system of c tokens counts c(c-1)/2 multiplications and additions a "
    "column of values, beside the FLOPs of matrix products"
)


@dataclass(frozen=True, kw_only=True)
class Recurrence(Mechanism):
    """A state (dk, dv) a head that decays, takes k_t u_tᵀ of every token, and is read by q_t.

    Causal by nature, so ``causal`` changes nothing. ``chunkwise`` takes ``chunk`` tokens at once,
    ``recurrent`` one: it counts fewest FLOPs and takes a turn a token. ``auto`` is the first for
    a prompt. Decoding is one turn of the recurrence whatever the form. A layer may convolve
    ``conv`` tokens of queries, keys and values, channel by channel, before they are mixed.
    """

    impl: str = "auto"
    chunk: int = 64

    family: ClassVar[str] = "recurrent"
    time_order = memory_order = "N"
    abilities: ClassVar[Abilities] = Abilities(value_width=True)
    same_as = ("", {"impl": "recurrent"})
    allowed: ClassVar[dict[str, Any]] = {"impl": ("auto", "chunkwise", "recurrent"), "chunk": 1}
    gate_maps: ClassVar[tuple[str, ...]] = ()  #: maps of the input to gates
    #: whether a token writes its value minus the one that the state predicts, or its value
    delta: ClassVar[bool] = False
    #: entries that share a decay: those of a ``token``, of a ``channel`` of the keys; or ``none``
    gated_by: ClassVar[str] = "token"
    steady: ClassVar[bool] = False  #: whether all tokens of a head decay alike

    # -- sizes ---------------------------------------------------------------------------
    @property
    def conv(self) -> int | None:
        """Tokens that a layer convolves; a parameter in subclasses that do."""
        return None

    @property
    def form(self) -> str:
        """The form that runs for a prompt; Mamba-2 calls the parallel one quadratic."""
        return {"auto": "chunkwise", "quadratic": "parallel"}.get(self.impl, self.impl)

    def decay_width(self, head_dim: Number) -> Number:
        """Return the number of decays of a head and token."""
        return head_dim if self.gated_by == "channel" else 1

    def gate_width(self, name: str, sizes: LayerSizes) -> Number:
        """Return entries a head of a gate: decays ``a``, one β ``b``, an output gate ``g``."""
        widths = {"a": self.decay_width(sizes.head_dim), "g": sizes.value_head_dim}
        return widths.get(name, 1)

    def gate_rank(self, name: str, head_dim: Number) -> Number | None:
        """Return the inner width of a gate's map that has two factors; None for a single map."""
        return None

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the base's maps, with those of fewer heads of queries and keys, if any."""
        maps, key_heads = super().layer_maps(sizes), self.projected_heads("q")
        if key_heads is not None:
            if is_plain(sizes.num_heads) and sizes.num_heads % key_heads:
                raise RequestError(
                    f"{self.name}: {key_heads} heads of queries and keys do not divide "
                    f"num_heads={sizes.num_heads}; each of them serves as many heads of values"
                )
            width = key_heads * sizes.head_dim
            maps |= dict.fromkeys(("q_proj", "k_proj"), (sizes.d_model, width))
        return maps

    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the map of each gate, or its two factors."""
        gates = dict[str, tuple[Number, Number]]()
        for name in self.gate_maps:
            inner, rank = sizes.d_model, self.gate_rank(name, sizes.head_dim)
            if rank is not None:
                gates[f"{name}_down_proj"], inner = (inner, rank), rank
            gates[f"{name}_proj"] = inner, sizes.num_heads * self.gate_width(name, sizes)
        return gates

    def convolved(self, sizes: LayerSizes) -> dict[str, Number]:
        """Return channels of each convolution, by letter (q, k, v); {} without convolutions."""
        if self.conv is None:
            return {}
        maps = self.layer_maps(sizes)
        return {letter: maps[f"{letter}_proj"][1] for letter in "qkv"}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the filters of each convolution, one per channel."""
        bound = math.sqrt(self.conv or 1)
        return {
            f"{letter}_taps": Weight((self.conv, width), "uniform", bound)
            for letter, width in self.convolved(sizes).items()
        }

    # -- text --------------------------------------------------------------------------------
    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return notes on the form that ran and on FLOPs outside matrix products."""
        if workload.phase == "decode":
            return ()
        chunks = self.form in ("chunkwise", "inverse")
        form = f"form: {self.form}{f', {self.chunk} tokens a chunk' if chunks else ''}"
        return (form, SOLVE_RULE) if self.delta and self.form != "recurrent" else (form,)

    def projected(self, layer: Any, letter: str, y: Any, state: Any = None) -> Any:
        """Return rows convolved, then SiLU, if the layer has filters for them."""
        taps = getattr(layer, f"{letter}_taps", None)
        if taps is None:
            return y
        if state is None:
            y = short_convolution(y, taps)
        else:
            y = convolved_step(y, taps, state.tails[letter])
        shift = getattr(layer, f"{letter}_shift", None)
        return silu(y if shift is None else y + shift)

    def gates(self, layer: Any, x: Any) -> dict[str, Any]:
        """Return the maps' results, (b, h, n, width) each."""
        gates = {}
        for name in self.gate_maps:
            down = getattr(layer, f"{name}_down_proj", None)
            gates[name] = layer.heads(name, x if down is None else down(x))
        return {"gates": gates}

    def operands(self, q: Any, k: Any, v: Any, weights: Any, gates: Any) -> tuple[Any, ...]:
        """Return queries, keys, values, log decays or None, β or None, (b·h, n, ·) each.

        ``gates`` are the maps' results; for a core alone None, and each head has constants instead.
        """
        raise NotImplementedError

    def core(self, q: Any, k: Any, v: Any, weights: Any, gates: Any = None) -> Any:
        """Compute all tokens by the chosen form."""
        operands = self.operands(q, k, v, weights, gates)
        out = recurrence(
            *operands, rows=self.chunk, form=self.form, by_channel=self.gated_by == "channel",
            steady=q.shape[1] if self.steady else None,
        )  # fmt: skip
        return self.finished(out.view(*q.shape[:3], -1), v, weights, gates)

    def finished(self, y: Any, v: Any, weights: Any, gates: Any) -> Any:
        """Return the heads' outputs (b, h, n, dv), in subclasses normed and gated, or with v."""
        return y

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> State:
        """Return a state of no token: dk·dv numbers a head, however long the sequence becomes."""
        shape = sizes.head_dim, sizes.value_head_dim
        return State(cache.zeros(sizes.num_heads, *shape, wide=True), None)

    def layer_state(self, sizes: LayerSizes, cache: Any) -> State:
        """Return the core's state and the latest input rows of each convolution."""
        state, conv = self.init_state(sizes, cache), self.conv
        if conv is None:
            return state
        widths = self.convolved(sizes)
        tails = {letter: cache.zeros(1, conv - 1, width) for letter, width in widths.items()}
        return ConvolvedState(state.sums, state.top, tails)

    def step(
        self, q: Any, k: Any, v: Any, state: State, weights: Any, gates: Any = None
    ) -> tuple[Any, State]:
        """Add the new token to the state, in place; return its row (b, h, 1, dv) and the state."""
        operands = self.operands(q, k, v, weights, gates)
        row = token_row(state.sums, *(None if x is None else wide(x) for x in operands))
        row = as_format_of(row, q).view(*q.shape[:3], -1)
        return self.finished(row, v, weights, gates), state

    wide_entries = Mechanism.state_entries

    def layer_entries(self, workload: Workload) -> Number:
        """Return entries of each convolution's latest rows: all parts of a state but the first."""
        return sum(kept(self, workload, "layer").entries[1:])

    # -- the definition ----------------------------------------------------------------------
    def define_inputs(self, writer: Definition, workload: Workload) -> None:
        """Define projections, gates and convolutions."""
        sizes, tokens = LayerSizes.from_workload(workload), workload.batch_size * rows(workload)
        writer.maps(self.layer_maps(sizes), tokens)
        for width in self.convolved(sizes).values():
            entries = tokens * width
            writer.dots("convolution", entries, entries * (self.conv or 1))
            writer.stage("SiLU", SIGMOID * entries, entries)  # x / (1 + exp(-x))

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define decays, the delta rule's reading, k uᵀ and q S: dk·dv entries a token each."""
        w = workload
        tokens = w.batch_size * w.num_heads * rows(w)
        values, entries = tokens * w.value_width, tokens * w.head_dim * w.value_width
        if self.gated_by != "none":
            decays = tokens * self.decay_width(w.head_dim)
            writer.stage("decays", Cost(exponentials=decays), decays)
            writer.stage("decayed state", Cost(multiplications=entries), entries)
        if self.delta:
            writer.dots("known values", values, entries)
            writer.stage("updates", Cost(additions=values, multiplications=values), values)
        writer.stage("state", Cost(multiplications=entries, additions=entries), entries)
        writer.dots("outputs", values, entries)
