"""The base class of mechanisms, without torch.

A mechanism is a frozen dataclass of its parameters. Its core, or its layer, is a text in tensor
methods (:mod:`attnprof.ops`); costs of every phase and the peak of memory follow from it.
"""

from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, ClassVar, Self

from attnprof.arguments import choice, parameter_value
from attnprof.costs import CostTable, Number
from attnprof.errors import RequestError, closest
from attnprof.ops.layer import Definition, LayerSizes, Weight, build, counted, kept, merge_heads
from attnprof.workload import SCOPES, Published, Workload


@dataclass(frozen=True)
class Abilities:
    """Features beyond a plain forward pass; a request for one that is False is refused."""

    causal: bool = True
    decode: bool = True
    grouped_kv: bool = False
    value_width: bool = False
    cross: bool = False
    attend: bool = True
    needs_seq_len: bool = False


@dataclass(frozen=True)
class Variant:
    """Parameters with which a mechanism grows faster than it claims, and why."""

    params: dict[str, Any]
    time_order: str
    memory_order: str
    reason: str


DENSE_MASK = Variant({"impl": "dense-mask"}, "N^2", "N^2", "the whole N×N product, then a mask")


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Base of every mechanism; subclasses add their parameters as dataclass fields.

    Subclasses write :meth:`core` (and :meth:`step`, :meth:`define_core`). Mechanisms that have
    no queries, keys and values write :meth:`layer`, :meth:`layer_step` and :meth:`define` instead.
    """

    bias: bool = False

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    document: ClassVar[str] = ""
    family: ClassVar[str] = ""
    time_order: ClassVar[str] = ""
    memory_order: ClassVar[str] = ""
    #: exceptions to these orders; one without parameters is about the default itself
    variants: ClassVar[tuple[Variant, ...]] = ()
    projections: ClassVar[str] = "qkvo"
    #: whether the core wants heads one after the other, so that (b·h, n, d) is a view
    flat: ClassVar[bool] = True
    kv_heads: ClassVar[int | None] = None  #: key and value heads, where their number is fixed
    abilities: ClassVar[Abilities] = Abilities()
    #: mechanism ("": itself) and parameters of the same function; a name holds for no subclass
    same_as: ClassVar[tuple[str, dict[str, Any]] | None] = None
    reasons: ClassVar[dict[str, str]] = {}  #: sentences of refusals, by ability
    #: possible values of parameters, by name: one of these, or None or a number from this on
    allowed: ClassVar[dict[str, tuple[str, ...] | int]] = {}
    step_tokens = 1  #: tokens of a step; if annotated, a parameter of this name would come first
    decodes_with: ClassVar[str] = ""  #: the parameter that decoding needs
    #: unit of a parameter, by its name, where configurations of models count differently
    counted: ClassVar[dict[str, str]] = {}
    #: relation to softmax attention (same, approximates, untrained, another), and the reason
    to_softmax: ClassVar[tuple[str, str]] = ("", "")
    #: reason why ranks cannot share a sequence by sending a decoder's state; "" if they can
    not_split: ClassVar[str] = ""
    #: parameters that trade cost for accuracy: a larger value costs more and approximates better
    tuned: ClassVar[tuple[str, ...]] = ()
    #: the closed forms the documents print for it
    printed: ClassVar[tuple[Published, ...]] = ()
    #: names of the arguments of the core, and of the layer
    _takes: ClassVar[frozenset[str]] = frozenset()
    _layer_takes: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Derive the abilities from the arguments that ``core`` and ``layer`` take."""
        cls._takes = frozenset(signature(cls.core).parameters)
        cls._layer_takes = frozenset(signature(cls.layer).parameters)
        if cls.is_text() and cls.abilities is Mechanism.abilities:
            decodes = (cls.layer_step, cls.step) != (Mechanism.layer_step, Mechanism.step)
            cls.abilities = Abilities(
                "causal" in cls._takes | cls._layer_takes, decodes, attend=not cls.has_own_layer()
            )

    # -- parameters --------------------------------------------------------------------
    def __post_init__(self) -> None:
        for name, possible in self.allowed.items():
            value, default = getattr(self, name), getattr(type(self), name)
            if isinstance(possible, int):
                if value is not None and value < possible:
                    hint = "none for its default" if default is None else f"{name}={default}"
                    raise RequestError(f"{name}={value}: at least {possible}; for example {hint}")
            elif value not in possible:
                near, choices = closest(value, list(possible)), f"possible: {', '.join(possible)}"
                hint = near if near == choices else f"{near} {choices}"
                raise RequestError(f"{self.name} has no {name} '{value}': {hint}")

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return names that ``--set`` takes."""
        return [item.name for item in fields(cls)]

    def with_params(self, params: dict[str, Any]) -> Self:
        """Return the mechanism with other parameters, given as values or as text."""
        parameters = {item.name: item for item in fields(self)}
        for name in params:
            if name not in parameters:
                hint = closest(name, list(parameters)) if parameters else "it takes none"
                raise RequestError(f"{self.name} has no parameter '{name}': {hint}")
        return replace(self, **{n: parameter_value(parameters[n], v) for n, v in params.items()})

    @property
    def shares_rows(self) -> bool:
        """Whether keys and values are the same rows of the input: neither is projected."""
        return "k" not in self.projections and "v" not in self.projections

    @property
    def shares_queries(self) -> bool:
        """Whether keys are the queries: values are projected, keys are not."""
        return "k" not in self.projections and "v" in self.projections

    @property
    def continues(self) -> bool:
        """Whether it reuses the tokens that a layer before picked, and so runs only after one."""
        return False

    def lent_bytes(self, workload: Workload) -> Number:
        """Return bytes of the picked places that it keeps for the layers after it."""
        return 0

    @property
    def params(self) -> dict[str, Any]:
        """Parameters and their values, as records show them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    # -- costs -------------------------------------------------------------------------
    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Return what this implementation executes for a workload, stage by stage.

        ``scope`` ``core`` starts when q, k, v exist, ``layer`` includes the projections.
        Raises :class:`RequestError` for a workload that the mechanism does not support.
        """
        self.check(workload, scope)
        if not self.is_text():
            raise RequestError(f"{self.name} has no core(q, k, v) in tensor methods to be counted")
        workload = self._fitted(workload)
        state = self.state_entries(workload) if self.abilities.decode else 0
        if scope == "layer":
            state = state + self.layer_entries(workload)
        table = counted(self, workload, scope)
        return replace(table, state_entries=state, notes=self.cost_notes(workload))

    def definition(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Return the operations that the definition asks for, whatever implements it.

        Causal row t sees t tokens, sums are direct, softmax does not subtract its maximum.
        Defined for a forward pass and a decoding step (002, Tables 3 to 6).
        """
        self.check(workload, scope)
        if workload.phase not in ("forward", "decode"):
            raise RequestError(
                f"operations are counted for phase forward or decode, not {workload.phase}: "
                "the documents define no backward pass; use --convention flops"
            )
        writer = Definition()
        self.define(writer, self._fitted(workload), scope)
        return CostTable(tuple(writer.stages), self.parameters(workload, scope))

    def parameters(self, workload: Workload, scope: str = "layer") -> Number:
        """Return the number of trainable parameters."""
        return build(self, self._fitted(workload), scope)[1].count

    def _fitted(self, workload: Workload) -> Workload:
        """Return the workload with the key and value heads that the mechanism fixes, if any."""
        return workload if self.kv_heads is None else workload.with_(num_kv_heads=self.kv_heads)

    def form_for(self, workload: Workload) -> "Mechanism":
        """Return the mechanism whose text runs: itself, or the one that it switches to."""
        return self

    def choice(self, workload: Workload) -> str:
        """Return the form that runs for a workload, and why; "" if there is only one."""
        return ""

    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return sentences on what a cost table counts or leaves out: by default its choice."""
        return tuple(filter(None, [self.choice(workload)]))

    def published(self) -> tuple[Published, ...]:
        """Return the closed forms the documents print for this mechanism."""
        return self.printed

    def state_entries(self, workload: Workload) -> Number:
        """Return entries of the core's state after token ``seq_len``; keys and values if none."""
        w = workload
        if not self.decodes or type(self).init_state is Mechanism.init_state:
            return w.batch_size * w.kv_heads * w.keys * (w.head_dim + w.value_width)
        tokens = w if w.kv_seq_len is None else w.with_(seq_len=w.kv_seq_len)
        return sum(kept(self, tokens, "core").entries)

    def layer_entries(self, workload: Workload) -> Number:
        """Return elements that a layer keeps beside its core's state."""
        return 0

    def wide_entries(self, workload: Workload) -> Number:
        """Return elements of the state that are in float32 at least: sums over all tokens."""
        return 0

    def whole_entries(self, workload: Workload) -> Number:
        """Return elements of the state that are whole numbers of 8 bytes: tokens counted."""
        return 0

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return bytes of its state that a step moves: rows read or written, sums both."""
        return sum(kept(self, self._fitted(workload), scope).bytes)

    # -- hooks of subclasses -------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Write the definition's operations."""
        if scope == "layer":
            self.define_inputs(writer, workload)
        self.define_core(writer, workload)
        if scope == "layer":
            self.define_outputs(writer, workload)
            if "o" in self.projections:
                writer.projections("o", workload)

    def define_inputs(self, writer: Definition, workload: Workload) -> None:
        """Write a layer's operations before the core: by default the linear maps of q, k, v."""
        writer.projections(self.projections.replace("o", ""), workload)

    def define_outputs(self, writer: Definition, workload: Workload) -> None:
        """Write a layer's operations between core and output map: by default none."""

    def core(self, *args: Any, **kwargs: Any) -> Any:
        """Return the heads' outputs for q, k and v, (b, h, n, d) each.

        ``core(q, k, v, causal, weights)`` in tensor methods, which torch runs and the counter
        counts; ``causal`` and ``weights`` (the parameters of :meth:`core_weights`, by name) only
        where it takes them.
        """
        raise RequestError(f"{self.name} has no core between queries, keys and values")

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the core's weights by name; None for one that these parameters leave out."""
        return {}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the parameters of the layer around a core, beside its linear maps, by name."""
        return {}

    def layer(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a whole layer, with its own weights and maps: x (b, n, d_model) → the same shape.

        ``layer(layer, x)``, with ``causal`` unless it is causal by nature.
        """
        raise RequestError(f"{self.name} has no layer of its own")

    def run_layer(self, layer: Any, x: Any, causal: bool) -> Any:
        """Compute the whole layer, with the mask unless it is causal by nature."""
        return self.layer(layer, x, **({"causal": causal} if "causal" in self._layer_takes else {}))

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return input and output width of the layer's linear maps, by name."""
        return {} if self.has_own_layer() else sizes.maps(self.projections, self.more_maps(sizes))

    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return those of a layer's linear maps that are not projections, by name."""
        return {}

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Compute the layer for one token; return its output and the new state."""
        raise RequestError(f"{self.name} {self.refusal('decode')}")

    @classmethod
    def has_own_layer(cls) -> bool:
        """Return whether it writes a whole layer and no core."""
        return cls.layer is not Mechanism.layer

    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return the state before the first token.

        ``cache(heads, width)`` makes an empty cache of rows (``cache.newest_first`` in that order),
        ``cache.window(heads, width, first, latest)`` one of the first and the latest tokens,
        ``cache.zeros(heads, *shape)`` sums (in float32 at least if ``wide=True``),
        ``cache.lowest(heads, *shape)`` minus infinities.
        """
        raise RequestError(f"{self.name} {self.refusal('decode')}")

    def layer_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return a layer's state before the first token: by default, that of its core."""
        return self.init_state(sizes, cache)

    def projected(self, layer: Any, letter: str, y: Any, state: Any = None) -> Any:
        """Return a projection's rows (b, n, width) before the split; ``state``: in a step."""
        return y

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Compute one token: q, k, v (b, h, 1, d) → (b, h, 1, dv), and the new state."""
        raise RequestError(f"{self.name} {self.refusal('decode')}")

    @classmethod
    def is_text(cls) -> bool:
        """Return whether its core of three tensors, or its layer, is written."""
        others = ("self", "causal", "weights", "gates")
        required = (p for p in signature(cls.core).parameters.values() if p.default is p.empty)
        return cls.has_own_layer() or sum(p.name not in others for p in required) == 3

    def projected_heads(self, letter: str) -> Number | None:
        """Return the heads of q, k or v that are projected and then repeated; None: all are."""
        return None

    def gates(self, layer: Any, x: Any) -> dict[str, Any]:
        """Return further arguments of core and step, computed from the layer's input, by name.

        A core alone runs without them.
        """
        return {}

    def run(self, q: Any, k: Any, v: Any, causal: bool, weights: Any, **gates: Any) -> Any:
        """Compute the core with the arguments that it takes; RequestError for a wrong mask."""
        self.refuse_unless(causal=causal)
        more = {"causal": causal, "weights": weights, **gates}
        return self.core(q, k, v, **{name: more[name] for name in more if name in self._takes})

    def mixed(self, layer: Any, x: Any, causal: bool, context: Any = None) -> Any:
        """Return the heads' outputs (b, n, h·d) of a layer for its input (b, n, d_model).

        Projections, head split, core, head merge; keys and values come from ``context``, if given.
        """
        source = x if context is None else context
        q = layer.heads("q", x)
        k = q if self.shares_queries else layer.heads("k", source)
        v = k if self.shares_rows else layer.heads("v", source)
        return merge_heads(layer.core(q, k, v, causal=causal, **self.gates(layer, x)))

    def gated_output(self, layer: Any, x: Any, y: Any) -> Any:
        """Return the rows (b, n, h·dv) that enter the output map, from heads and layer's input."""
        return y

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Write the definition's operations between q, k, v and the heads' outputs."""
        raise RequestError(f"no definition count for {self.name}")

    # -- refusals ------------------------------------------------------------------------
    def check(self, workload: Workload, scope: str) -> None:
        """Raise :class:`RequestError` with the reason for a workload that is not supported."""
        choice("scope", scope, SCOPES)
        w = workload
        self.refuse_unless(
            causal=w.causal, decode=w.phase == "decode",
            grouped_kv=w.num_kv_heads not in (None, self.kv_heads),
            value_width=w.value_head_dim is not None, cross=w.kv_seq_len is not None,
            attend=scope == "core", free_width=w.width is not None and scope == "layer",
        )  # fmt: skip

    def refuse_unless(self, **wanted: bool) -> None:
        """Raise :class:`RequestError` for the first wanted ability that it lacks."""
        for ability, is_wanted in wanted.items():
            key = {"decode": "decodes", "free_width": "maps_all"}.get(ability)
            if is_wanted and not (getattr(self, key) if key else getattr(self.abilities, ability)):
                raise RequestError(f"{self.name} {self.refusal(ability)}")

    @property
    def decodes(self) -> bool:
        """Whether it has a decoding step with these parameters."""
        return self.abilities.decode and getattr(self, self.decodes_with, True) is not None

    @property
    def maps_all(self) -> bool:
        """Whether queries, values and output are linear maps, not columns of the input."""
        return self.has_own_layer() or {*"qvo"} <= {*self.projections}

    def refusal(self, ability: str) -> str:
        """Return the sentence that follows the mechanism's name when it refuses."""
        return self.reasons.get(ability, _REFUSALS[ability])


_REFUSALS = {
    "causal": "is not defined for causal attention; leave --causal out",
    "decode": "has no step-by-step decoding; use --phase forward",
    "grouped_kv": "has no grouped key and value heads; leave --kv-heads (num_kv_heads) out",
    "value_width": "has no separate value width; leave --value-dim (value_head_dim) out",
    "cross": "has no cross-attention; leave --kv-seq (kv_seq_len) out",
    "free_width": "takes columns of its input as heads; leave --width (width) out",
    "attend": "has no queries, keys and values of its own; use --scope layer (attnprof.build)",
}
