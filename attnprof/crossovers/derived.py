"""Costs derived from code (:func:`derived_costs`), as functions of the length and the head width.

Two mechanisms in all layers of a model (:func:`rivals`) are compared like two modules.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.costs import Number
from attnprof.crossovers.sides import CostSource, Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.models.sources import subject_of
from attnprof.models.swap import swaps_of
from attnprof.processes.progress import tell
from attnprof.trace.report.derivation import Derivation
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.request.target import Target, sizes_text
from attnprof.trace.solve.derive import derived
from attnprof.workload import Workload

#: Lengths to try, to see if a formula holds anywhere at a head width.
_LENGTHS_TO_TRY = tuple(2**power * odd for power in range(1, 24) for odd in (1, 3, 5, 7))
#: A formula that starts between these lengths leaves out a branch of the code for shorter ones.
_SHORT, _LONG = 16, 4096
#: The derived quantity of each metric.
_QUANTITIES = {"flops": "flops", "memory": "peak_bytes", "matmul": "matmul_flops"}


def derived_costs(meeting: Meeting) -> Callable[[str, int], tuple[CostSource, ...]]:
    """Return a function that gives the costs of both sides by metric and head width."""
    sides, workload = [], meeting.workload
    if workload.value_head_dim is not None or workload.width is not None:
        raise RequestError(
            "--value-dim and --width are of closed forms: leave them out, or --kind derived, or "
            "type both sides as code of yours with inputs of these widths"
        )
    for side in (meeting.a, meeting.b):
        tell(f"deriving {side.name}")
        target = side
        if isinstance(side, Mechanism):
            target = mechanism_target(
                side, meeting.scope, causal=workload.causal, dtype=workload.dtype
            )
        sides.append(DerivedSide(target, workload))

    return cache(lambda metric, head_dim: tuple(s.at_width(metric, head_dim) for s in sides))


@dataclass
class DerivedSide:
    """The costs of a target by length and head width; batch and heads are the workload's.

    It is derived once with the head width as a symbol, and again with a number where that formula
    holds nowhere; once more for lengths below those of the formula. Raises :class:`RequestError` if
    the target has other sizes.
    """

    target: Target
    workload: Workload
    _derivations: dict[tuple[int | None, int], Derivation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        others = set(self.target.symbols) - {"B", "N", "h", "d"}
        if others:
            raise RequestError(
                f"{self.target.name} has sizes {', '.join(sorted(others))}: to compare by length "
                "and head width write its --arg and --input with B, N, h and d"
            )

    def at_width(self, metric: str, head_dim: int) -> CostSource:
        """Return the cost at a head width, by the formula for all widths if it holds there."""
        quantity, width, number = _QUANTITIES[metric], {"d": head_dim}, None
        general = self._derivation(None)
        cost = self._cost(general, quantity, width)
        if "d" in self.target.symbols and not self._holds_somewhere(general, cost):
            width, number = {}, head_dim
            cost = self._cost(self._derivation(head_dim), quantity, width)
        first = next(filter(cost.holds, range(1, _LONG)), 0)
        if first <= _SHORT:
            return cost
        with suppress(CannotRunError, RequestError):  # it may run at whole blocks alone
            shorter = self._derivation(number, first // 2)
            if shorter.phases[self.workload.phase].method != "counted":
                return _joined(self._cost(shorter, quantity, width), cost, first)
        return cost

    def _cost(self, derivation: Derivation, quantity: str, width: Mapping[str, int]) -> CostSource:
        """Return a quantity by length; ``width`` is the head width, if that is a symbol."""
        forms = derivation.phases[self.workload.phase]

        def shape(seq_len: Any, head_dim: Any) -> dict[str, Any]:
            sizes = {"N": seq_len, "d": head_dim}
            return {name: size for name, size in sizes.items() if name in derivation.symbols}

        def cost(_: Sequence[Any], workload: Workload) -> Number:
            """Return the cost by the formula, or by a run if there is none."""
            sizes = shape(workload.seq_len, workload.head_dim)
            expression = forms.formulas[quantity].expression
            if expression is None:
                return forms.counted(sizes)[quantity]
            try:
                return evaluate(expression, sizes)
            except ZeroDivisionError as error:
                raise RequestError(
                    f"{derivation.name}: its formula divides by 0 at {sizes_text(sizes)}"
                ) from error

        def holds(seq_len: int) -> bool:
            try:
                return forms.holds(shape(seq_len, width.get("d", 0)))
            except ZeroDivisionError:
                return False

        at_least = forms.bound(quantity) == "at least"
        doubt = f"{quantity} of {derivation.name} is at least what is compared here" * at_least
        domain = f"{derivation.name} for {'; '.join(forms.domain) or 'all sizes'}"
        return CostSource(cost, holds, general=bool(width), domain_text=domain, doubt=doubt)

    def _holds_somewhere(self, derivation: Derivation, cost: CostSource) -> bool:
        """Return whether a formula holds at any usual length, or near a verified one."""
        shapes = derivation.phases[self.workload.phase].verified_at
        near = (shape.get("N", 0) + more for shape in shapes for more in (-1, 0, 1))
        return any(map(cost.holds, (*_LENGTHS_TO_TRY, *near)))

    def _derivation(self, head_dim: int | None, seq_len: int = 0) -> Derivation:
        """Return the derivation at a head width, or for all of them (None); made once.

        It is of the code's branch at ``seq_len``, if one is given.
        """
        if (head_dim, seq_len) not in self._derivations:
            sizes = self.workload.by_symbol()
            fixed: dict[str, int] = {n: sizes[n] for n in ("B", "h") if n in self.target.symbols}
            if head_dim is not None:
                fixed["d"] = head_dim
            try:
                derivation = derived(
                    self.target.fixed(**fixed),
                    [self.workload.phase],
                    {"N": seq_len} if seq_len else {},
                )
            except CannotRunError as error:
                message = f"{error} (in attnprof derive)" if "--at" in str(error) else str(error)
                raise CannotRunError(message) from error
            self._derivations[head_dim, seq_len] = derivation
        return self._derivations[head_dim, seq_len]


def _joined(shorter: CostSource, longer: CostSource, first: int) -> CostSource:
    """Return one cost of two: ``longer`` holds from ``first`` on, ``shorter`` below."""

    def part(seq_len: Any) -> CostSource:
        return longer if seq_len >= first else shorter

    return replace(
        longer,
        cost=lambda sides, workload: part(workload.seq_len).cost(sides, workload),
        holds=lambda seq_len: part(seq_len).holds(seq_len),
        doubt=longer.doubt or shorter.doubt,
    )


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
    swapped = [name for name in both if name != ORIGINAL]
    swaps = {name: [swap] for name, swap in zip(swapped, swaps_of(swapped, values), strict=True)}
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
