"""The contract a mechanism fulfils, without torch.

A mechanism is a frozen dataclass of its parameters. It writes the operations of its forward
pass on a tape (:mod:`attnprof.counting`); costs of every phase and the peak of memory follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from attnprof.costs import CostTable, Number
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError, closest
from attnprof.parameters import parameter_value
from attnprof.workload import SCOPES, Workload


@dataclass(frozen=True)
class Published:
    """A closed form as a document prints it, untouched.

    ``formula`` maps a workload of one sequence to the printed value; two published formulas may
    be compared only if document, scope, phase, causal, quantity and convention all agree.
    ``heads`` is ``one`` where the document prints the form for a single head.
    """

    source: str
    quantity: str
    scope: str
    phase: str
    convention: str
    formula: Callable[[Workload], Number]
    causal: bool = False
    heads: str = "any"

    @property
    def document(self) -> str:
        """Number of the document, ``004`` of ``004-EQ5``."""
        return self.source.split("-", 1)[0]

    @property
    def terms(self) -> tuple[Any, ...]:
        """What must agree for two formulas to be comparable."""
        return (
            self.document, self.scope, self.phase, self.causal, self.quantity,
            self.convention, self.heads,
        )  # fmt: skip


@dataclass(frozen=True)
class Abilities:
    """What a mechanism can do beside a plain forward pass; False is a refusal with a reason."""

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


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Base of every mechanism; subclasses add their parameters as dataclass fields.

    Subclasses write :meth:`core` (and :meth:`decode_core`, :meth:`define_core`); those that have
    no queries, keys and values write :meth:`write`, :meth:`decode` and :meth:`define` instead.
    """

    bias: bool = False

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    document: ClassVar[str] = ""
    family: ClassVar[str] = ""
    time_order: ClassVar[str] = ""
    memory_order: ClassVar[str] = ""
    #: known exceptions to these orders; without parameters: the default itself
    variants: ClassVar[tuple[Variant, ...]] = ()
    projections: ClassVar[str] = "qkvo"
    #: the kernel reads heads where the projection left them: splitting and merging copy nothing
    strided_heads: ClassVar[bool] = False
    #: the gradient of keys arrives transposed, as that of the second operand of a product does
    transposes_keys: ClassVar[bool] = True
    #: the core reads the values' columns as rows, so their gradient arrives transposed
    transposes_values: ClassVar[bool] = False
    hands_over: ClassVar[str] = ""  #: inputs of a core whose gradients are laid out anew
    abilities: ClassVar[Abilities] = Abilities()
    #: mechanism ("": itself) and parameters that compute the same; a name binds no subclass
    same_as: ClassVar[tuple[str, dict[str, Any]] | None] = None
    #: what the refusals say, by ability
    reasons: ClassVar[dict[str, str]] = {}

    # -- parameters --------------------------------------------------------------------
    @classmethod
    def parameter_names(cls) -> list[str]:
        """Names that ``--set`` takes."""
        return [item.name for item in fields(cls)]

    def with_params(self, params: dict[str, Any]) -> Self:
        """The same mechanism with parameters set, from values or their text.

        Raises :class:`RequestError` for an unknown name or an unusable value.
        """
        known = {item.name: item for item in fields(self)}
        for name in params:
            if name not in known:
                hint = closest(name, list(known)) if known else "it takes none"
                raise RequestError(f"{self.name} has no parameter '{name}': {hint}")
        return replace(self, **{n: parameter_value(known[n], v) for n, v in params.items()})

    @property
    def shares_rows(self) -> bool:
        """Whether keys and values are the same rows of the input: neither is projected."""
        return "k" not in self.projections and "v" not in self.projections

    @property
    def shares_queries(self) -> bool:
        """Whether keys are the queries: values are projected, keys are not."""
        return "k" not in self.projections and "v" in self.projections

    @property
    def params(self) -> dict[str, Any]:
        """Parameters and their values, as records show them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    # -- costs -------------------------------------------------------------------------
    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """What this implementation executes for a workload, by stage.

        ``scope`` ``core`` starts when q, k, v exist, ``layer`` includes the projections.
        Raises :class:`RequestError` where the mechanism cannot do what is asked.
        """
        self.check(workload, scope)
        if workload.phase == "decode":
            tape = Tape(workload.item_size)
            self.decode(tape, workload, scope)
            table = replace(tape.table(), parameters=self.parameters(workload, scope))
        else:
            tape = Tape(workload.item_size, grad=workload.phase != "forward")
            out = self.write(tape, workload, scope)
            if workload.phase != "forward":
                tape.backward(out)
            table = tape.table("backward" if workload.phase == "backward" else None)
        state = self.state_entries(workload) if self.abilities.decode else 0
        return replace(table, state_entries=state)

    def definition(self, workload: Workload, scope: str = "layer") -> CostTable:
        """What the definition asks for, whatever implements it: the ``operations`` convention.

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
        self.define(writer, workload, scope)
        return CostTable(tuple(writer.stages), self.parameters(workload, scope))

    def parameters(self, workload: Workload, scope: str = "layer") -> Number:
        """Number of trainable parameters."""
        tape = Tape(1)
        self.write(tape, workload.with_(phase="forward"), scope)
        return tape.parameter_count

    def published(self) -> tuple[Published, ...]:
        """The closed forms the documents print for this mechanism."""
        return ()

    def state_entries(self, workload: Workload) -> Number:
        """Elements a decoder keeps after the token number ``seq_len``."""
        w = workload
        return w.batch_size * w.kv_heads * w.keys * (w.head_dim + w.value_width)

    # -- what subclasses write -----------------------------------------------------------
    def write(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """Write the forward pass on the tape and return its output."""
        from attnprof.counting.layer import write_layer

        return write_layer(self, tape, workload, scope)

    def decode(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """Write one decoding step: the token number ``seq_len``, given its state."""
        from attnprof.counting.layer import write_step

        return write_step(self, tape, workload, scope)

    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Write the definition's operations."""
        if scope == "layer":
            writer.projections(self.projections.replace("o", ""), workload)
        self.define_core(writer, workload)
        if scope == "layer" and "o" in self.projections:
            writer.projections("o", workload)

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write what happens between (b·h, n, d) queries, keys, values and (b·h, n, dv)."""
        raise RequestError(f"{self.name} has no core between queries, keys and values")

    def decode_core(
        self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """Write the same for one new token: (b·h, 1, d) each."""
        raise RequestError(f"{self.name} does not decode")

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Write the definition's operations between q, k, v and the heads' outputs."""
        raise RequestError(f"no definition count for {self.name}")

    # -- refusals ------------------------------------------------------------------------
    def check(self, workload: Workload, scope: str) -> None:
        """Refuse what this mechanism cannot do, with the reason."""
        if scope not in SCOPES:
            raise RequestError(f"unknown scope '{scope}': {closest(scope, list(SCOPES))}")
        asked = {
            "causal": workload.causal,
            "decode": workload.phase == "decode",
            "grouped_kv": workload.num_kv_heads is not None,
            "value_width": workload.value_head_dim is not None,
            "cross": workload.kv_seq_len is not None,
            "attend": scope == "core",
        }
        for ability, wanted in asked.items():
            if wanted and not getattr(self.abilities, ability):
                raise RequestError(f"{self.name} {self.refusal(ability)}")

    def refusal(self, ability: str) -> str:
        """The sentence that follows the mechanism's name when it refuses."""
        return self.reasons.get(ability, _REFUSALS[ability])


_REFUSALS = {
    "causal": "is not defined for causal attention; leave --causal out",
    "decode": "has no step-by-step decoding; use --phase forward",
    "grouped_kv": "has no grouped key and value heads; leave num_kv_heads out",
    "value_width": "has no separate value width; leave value_head_dim out",
    "cross": "has no cross-attention; leave kv_seq_len out",
    "attend": "has no queries, keys and values of its own; use scope layer and attnprof.build",
}


def pairs(workload: Workload) -> Number:
    """Query-key pairs the definition sees: N(N+1)/2 where causal, t for one decoded token."""
    n = workload.seq_len
    if workload.phase == "decode":
        return n
    if workload.causal:
        total = n * (n + 1)
        return total // 2 if not hasattr(total, "free_symbols") else total / 2
    return n * workload.keys


def rows(workload: Workload) -> Number:
    """Query rows of one call: one in a decoding step."""
    return 1 if workload.phase == "decode" else workload.seq_len
