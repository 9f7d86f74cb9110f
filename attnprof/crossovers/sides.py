"""The two sides of a crossover: what is compared, and what each side costs by each source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from attnprof.algebra.polynomials import Branches, PolynomialSize
from attnprof.closed_form.quantities import comparable, quantity_in, quantity_of, speaking
from attnprof.costs import Number
from attnprof.crossovers.axis import SEQ, CrossoverAxis
from attnprof.crossovers.lengths import Lengths
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.published import Published
from attnprof.workload import Workload

KINDS = ("published", "formula")
#: Costs counted in running code, predicted for a device, and measured on one.
DERIVED, PREDICTED, MEASURED = "derived", "predicted", "measured"
ALL_KINDS = (*KINDS, DERIVED, PREDICTED, MEASURED)
METRICS = ("flops", "memory")
#: The state that a decoder keeps between tokens; and times, which no formula gives.
STATE, TIME = "state", "time"
ALL_METRICS = (*METRICS, STATE, TIME)


@dataclass(frozen=True)
class Meeting:
    """Two mechanisms and their workload, which has all sizes but two.

    These are the one of ``axis``, and the one that is given for a row: the head width if the axis
    is the length, else the length. A side may be a user's module instead, a
    :class:`attnprof.trace.request.target.Target`, which has no closed form of ours and is in no
    document.
    """

    a: Any
    b: Any
    workload: Workload
    scope: str = "core"
    axis: CrossoverAxis = SEQ
    _branches: dict[Any, Branches] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.axis.check((self.a, self.b))
        for side in (self.a, self.b):
            if isinstance(side, Mechanism):
                side.check(self.workload, self.scope)

    @property
    def own_modules(self) -> list[Any]:
        """The sides that are a user's modules."""
        return [side for side in (self.a, self.b) if not isinstance(side, Mechanism)]

    def check_steps(self) -> None:
        """Raise :class:`RequestError` for decoding by a user's module."""
        if self.workload.phase == "decode" and self.own_modules:
            from attnprof.measure.request import NO_STEP

            raise RequestError(f"{self.own_modules[0].name} {NO_STEP}")

    def branches_at(self, sample: tuple[int, int], symbolic_given: bool) -> Branches:
        """Return variables at a value and a given size; shared for one given size."""
        branches = self._branches.setdefault((sample[1], symbolic_given), Branches(sample))
        branches.move(sample)
        return branches

    def at(self, value: Number, given: Number) -> tuple[list[Any], Workload]:
        """Return both sides and their workload at a value of the axis."""
        return self.axis.placed((self.a, self.b), self.workload, value, given)


#: Sizes in printed formulas; one head and several, as :func:`speaking` takes them.
PRINTED_OVER, ANY_NUMBER = ("seq", "d", "heads"), (1, 2)
#: The quantity and unit of a metric, in printed formulas and in code that runs.
PRINTED_AS = {"flops": ("flops", "flops"), "memory": ("peak_entries", "entries")}
COUNTED_AS = {
    "flops": ("flops", "flops"), "memory": ("peak_bytes", "bytes"),
    STATE: ("state_entries", "bytes"), TIME: ("time_s", "s"),
}  # fmt: skip


class CostSource(Protocol):
    """What one side costs, and the values at which that is known.

    ``of`` takes both sides (the axis may be a parameter of theirs) and the workload; if
    ``general``, sizes may be symbols, and other given sizes. ``said`` are the conditions in words,
    ``doubt`` is a note on the values.
    """

    @property
    def general(self) -> bool:
        """Return whether sizes may be symbols."""

    @property
    def said(self) -> str:
        """Return the conditions."""

    @property
    def doubt(self) -> str:
        """Return a note on the values."""

    def of(self, sides: Sequence[Any], workload: Workload, /) -> Number:
        """Return the cost."""

    def holds(self, value: int) -> bool:
        """Return whether the cost is known at a value."""


@dataclass(frozen=True)
class FormulaCost:
    """A cost that is known everywhere: a printed formula, or our closed form."""

    of: Callable[[Sequence[Any], Workload], Number]
    general: bool = True
    said: str = ""
    doubt: str = ""

    def holds(self, value: int) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class Contest:
    """A metric by one source: the two costs that are compared, and where they are printed.

    ``derived`` gives the costs by head width instead, which hold at some lengths only.
    """

    metric: str
    kind: str
    costs: tuple[CostSource, ...] = ()
    source: str | None = None
    derived: Callable[[int], tuple[CostSource, ...]] | None = None

    @property
    def unit(self) -> str:
        """The unit of the metric."""
        return (PRINTED_AS if self.kind == "published" else COUNTED_AS)[self.metric][1]

    def at(self, given: int) -> tuple[CostSource, ...]:
        """Return both costs at the given size."""
        return self.costs if self.derived is None else self.derived(given)

    def lengths(self, head_dim: int, axis: CrossoverAxis = SEQ) -> Lengths:
        """Return lengths, or values of an axis, at which both are known; RequestError for none."""
        if self.derived is None:
            return axis.known
        first, second = self.at(head_dim)
        lengths = Lengths(lambda length: first.holds(length) and second.holds(length))
        if not lengths.stretches:
            raise RequestError(
                f"at head width {head_dim} there is no length at which both costs are known: "
                f"{first.said}; {second.said}"
            )
        return lengths


def contests(
    meeting: Meeting, kinds: Sequence[str] = KINDS, metrics: Sequence[str] = METRICS
) -> list[Contest]:
    """Return what can be compared, published costs first.

    Raises :class:`RequestError` if nothing can, as no document prints both on the same terms.
    """
    for asked, possible in ((kinds, (*KINDS, DERIVED)), (metrics, (*METRICS, STATE))):
        wrong = [name for name in asked if name not in possible]
        if wrong:
            raise RequestError(f"'{wrong[0]}': {closest(wrong[0], list(possible))}")
    if STATE in metrics and meeting.workload.phase != "decode":
        raise RequestError("--metric state: only decoding keeps one; add --phase decode")
    result, a, b, derived = list[Contest](), meeting.a, meeting.b, None
    if DERIVED in kinds:
        from attnprof.crossovers.derived import derived_costs

        derived = derived_costs(meeting)
    for metric in metrics:
        if not meeting.own_modules:
            result += _closed_contests(meeting, metric, kinds, a, b)
        if derived is not None and metric != STATE:
            result.append(Contest(metric, DERIVED, derived=partial(derived, metric)))
    if result:
        return result
    if meeting.own_modules:
        raise RequestError(
            f"{a.name} and {b.name} can be compared by what they execute only: use --kind derived"
        )
    w, over = meeting.workload, meeting.axis.name
    raise RequestError(
        f"no document prints {' or '.join(metrics)} of both {a.name} and {b.name} on the same "
        f"terms for scope {meeting.scope}, phase {w.phase}{', causal' if w.causal else ''}, "
        + (f"{w.num_heads} head(s)" if over == "seq" else f"over {over}")
        + "; use --kind formula"
    )


def _closed_contests(
    meeting: Meeting, metric: str, kinds: Sequence[str], a: Mechanism, b: Mechanism
) -> list[Contest]:
    """Return the contests of printed formulas, and of our closed forms."""
    result = list[Contest]()
    pair = _printed(meeting, metric, a, b) if "published" in kinds else None
    if pair:

        def printed(place: int, sides: Sequence[Any], workload: Workload) -> Number:
            forms = _printed(meeting, metric, *sides) if meeting.axis.is_parameter else pair
            if forms is None:
                raise RequestError("no document prints both with this parameter")
            return forms[place].formula(workload)

        source = ", ".join(dict.fromkeys(form.source for form in pair))
        costs = FormulaCost(partial(printed, 0)), FormulaCost(partial(printed, 1))
        result.append(Contest(metric, "published", costs, source))
    if "formula" in kinds:
        counted = partial(_closed_form, meeting.scope, COUNTED_AS[metric][0])
        costs = FormulaCost(partial(counted, 0)), FormulaCost(partial(counted, 1))
        result.append(Contest(metric, "formula", costs))
    return result


def _printed(
    meeting: Meeting, metric: str, a: Mechanism, b: Mechanism
) -> tuple[Published, Published] | None:
    """Return the printed formulas of both; the one-head form first for one head."""
    if metric not in PRINTED_AS:
        return None
    if meeting.axis.name not in PRINTED_OVER and not meeting.axis.is_parameter:
        return None
    w = meeting.workload
    heads = ANY_NUMBER if meeting.axis.name == "heads" else (w.num_heads,)
    pairs = speaking(
        comparable(a, b), PRINTED_AS[metric][0], w.phase, w.causal, meeting.scope, heads
    )
    return min(pairs, key=lambda pair: pair[0].heads != "one") if pairs else None


def _closed_form(
    scope: str, quantity: str, place: int, sides: Sequence[Any], workload: Workload
) -> Number:
    """Return our closed form of a side (a state in bytes); metrics share the table of one play."""
    side = sides[place]
    sizes = [*vars(workload).values(), *vars(side).values()]
    variable = next((size for size in sizes if isinstance(size, PolynomialSize)), None)
    if variable is None:
        cost = quantity_of(side, workload, scope, quantity)
    else:
        table = variable.branches.once(place, lambda: side.cost(workload, scope))
        cost = quantity_in(table, quantity)
    return cost * workload.item_size if quantity == "state_entries" else cost
