"""A cost derived from code, as a function of the length and the head width of a workload.

Two mechanisms in all layers of a model are compared like two modules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from attnprof.costs import Number
from attnprof.crossovers.sides import Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.models.sources import subject_of
from attnprof.models.swap import swaps_of
from attnprof.processes.progress import tell
from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.request.target import Target, sizes_text
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.derive import derived
from attnprof.workload import Workload

#: Lengths to try, to see if a formula holds anywhere at a head width.
_LENGTHS_TO_TRY = tuple(2**power * odd for power in range(1, 24) for odd in (1, 3, 5, 7))


@dataclass(frozen=True)
class DerivedCost:
    """One quantity of a derivation by length; ``width`` is the head width, if that is a symbol."""

    derivation: Derivation
    forms: PhaseForms
    quantity: str
    width: Mapping[str, int]

    def of(self, sides: Sequence[Any], asked: Workload) -> Number:
        """Return the cost at a workload: by the formula, or by a run if there is none."""
        shape = self._shape(asked.seq_len, asked.head_dim)
        expression = self.forms.formulas[self.quantity].expression
        if expression is not None:
            try:
                return evaluate(expression, shape)
            except ZeroDivisionError as error:
                raise RequestError(
                    f"{self.derivation.name}: its formula divides by 0 at {sizes_text(shape)}"
                ) from error
        return self.forms.counted(shape)[self.quantity]

    def holds(self, seq_len: int) -> bool:
        """Return whether a length lies in the domain, at this width."""
        try:
            return self.forms.holds(self._shape(seq_len, self.width.get("d", 0)))
        except ZeroDivisionError:
            return False

    @property
    def somewhere(self) -> bool:
        """Whether the formula holds at any usual length."""
        lengths = [shape.get("N", 0) for shape in self.forms.verified_at]
        near = (length + more for length in lengths for more in (-1, 0, 1))
        return any(map(self.holds, (*_LENGTHS_TO_TRY, *near)))

    @property
    def general(self) -> bool:
        """Whether it is a formula in the head width, too."""
        return bool(self.width)

    @property
    def said(self) -> str:
        """The target and the domain, in words."""
        return f"{self.derivation.name} for {'; '.join(self.forms.domain) or 'all sizes'}"

    @property
    def doubt(self) -> str:
        """A note if the cost is a lower bound, else ""."""
        if self.forms.bound(self.quantity) != "at least":
            return ""
        return f"{self.quantity} of {self.derivation.name} is at least what is compared here"

    def _shape(self, seq_len: Any, head_dim: Any) -> dict[str, Any]:
        shape = {"N": seq_len, "d": head_dim}
        return {name: size for name, size in shape.items() if name in self.derivation.symbols}


@dataclass
class DerivedSide:
    """The costs of a target by length and head width; batch and heads are the workload's.

    It is derived once with the head width as a symbol, and again with a number where that formula
    holds nowhere. Raises :class:`RequestError` if the target has other sizes.
    """

    target: Target
    workload: Workload
    _derivations: dict[int | None, Derivation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        others = set(self.target.symbols) - {"B", "N", "h", "d"}
        if others:
            raise RequestError(
                f"{self.target.name} has sizes {', '.join(sorted(others))}: to compare by length "
                "and head width write its --arg and --input with B, N, h and d"
            )

    def at_width(self, metric: str, head_dim: int) -> DerivedCost:
        """Return the cost at a head width, by the formula for all widths if it holds there."""
        quantity = {"flops": "flops", "memory": "peak_bytes"}[metric]
        for given, width in ((None, {"d": head_dim}), (head_dim, {})):
            derivation = self._derived(given)
            forms = derivation.phases[self.workload.phase]
            cost = DerivedCost(derivation, forms, quantity, width)
            if "d" not in self.target.symbols or cost.somewhere:
                break
        return cost

    def _derived(self, head_dim: int | None) -> Derivation:
        if head_dim not in self._derivations:
            sizes = self.workload.by_symbol()
            given: dict[str, int] = {n: sizes[n] for n in ("B", "h") if n in self.target.symbols}
            if head_dim is not None:
                given["d"] = head_dim
            try:
                derivation = derived(self.target.fixed(**given), [self.workload.phase])
            except CannotRunError as error:
                message = f"{error} (in attnprof derive)" if "--at" in str(error) else str(error)
                raise CannotRunError(message) from error
            self._derivations[head_dim] = derivation
        return self._derivations[head_dim]


def derived_costs(meeting: Meeting) -> Callable[[str, int], tuple[DerivedCost, ...]]:
    """Return a function that gives the costs of both sides by metric and head width."""
    sides, workload = [], meeting.workload
    for side in (meeting.a, meeting.b):
        tell(f"deriving {side.name}")
        target = side
        if isinstance(side, Mechanism):
            target = mechanism_target(
                side, meeting.scope, causal=workload.causal, dtype=workload.dtype
            )
        sides.append(DerivedSide(target, workload))

    return cache(lambda metric, head_dim: tuple(s.at_width(metric, head_dim) for s in sides))


#: The name of the model's own attention.
ORIGINAL = "original"


def rivals(
    source: str, names: Sequence[str], values: Mapping[str, Any], phase: str, batch_size: int
) -> tuple[Target, Target, Workload]:
    """Return a phase of a model with one and with the other mechanism, and the workload.

    A name is one that ``--swap`` takes, or ``original`` for the model as it is; one name alone is
    compared with that. ``values`` are the mechanisms' parameters. Raises :class:`RequestError` if a
    mechanism does not fit.
    """
    both = [ORIGINAL, *names] if len(names) == 1 else list(names)
    if len(both) != 2 or both[0] == both[1]:
        raise RequestError(
            "--model compares two mechanisms in a model: type two names, or one to compare with "
            f"the {ORIGINAL}"
        )
    asked = [name for name in both if name != ORIGINAL]
    swaps = {name: [swap] for name, swap in zip(asked, swaps_of(asked, values), strict=True)}
    models = [subject_of(source, None, swaps.get(name, ())) for name in both]
    first, second = (
        replace(model.target(phase), name=name) for model, name in zip(models, both, strict=True)
    )
    model = models[0]
    if "N" not in first.symbols:
        raise RequestError(f"{source} takes inputs of one size: there is no length to compare by")
    workload = Workload(
        1, model.num_heads, model.head_dim, batch_size, phase=phase, dtype=model.dtype
    )
    return first, second, workload
