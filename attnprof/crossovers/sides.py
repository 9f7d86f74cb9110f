"""The two sides of a crossover (:class:`Meeting`), and the cost of each by every source.

A source is a printed formula, our closed form, or a formula derived from code. :func:`contests`
pairs the costs that can be compared; :func:`curves_of` gives them as a figure takes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from attnprof.algebra.polynomials import Branches, PolynomialSize
from attnprof.closed_form import quantities
from attnprof.costs import Number, ceil_div
from attnprof.crossovers.axis import SEQ, CrossoverAxis, Lengths
from attnprof.errors import CannotRunError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import CrossoverRecord
from attnprof.workload import Published, Workload

KINDS = ("published", "formula")
#: Costs counted in running code, predicted for a device, and measured on one.
DERIVED, PREDICTED, MEASURED = "derived", "predicted", "measured"
ALL_KINDS = (*KINDS, DERIVED, PREDICTED, MEASURED)
METRICS = ("flops", "memory")
#: The state that a decoder keeps between tokens; and times, which no formula gives.
STATE, TIME = "state", "time"
#: Bytes that a decoding step has to move; FLOPs of matrix products alone.
BYTES, MATMUL = "bytes", "matmul"
#: Metrics of closed forms that have to be asked for.
OTHERS = (MATMUL, STATE, BYTES)
ALL_METRICS = (*METRICS, *OTHERS, TIME)
#: The metrics of each kind.
METRICS_OF = {
    "formula": (*METRICS, *OTHERS), DERIVED: (*METRICS, MATMUL), PREDICTED: (TIME,),
    MEASURED: ("memory", TIME), "published": METRICS,
}  # fmt: skip


@dataclass(frozen=True)
class TimeTerms:
    """Where and how times are predicted and measured.

    Measured times are appended to ``journal``, and those in it are not measured again. No length is
    timed of which a call should take longer than ``most_s`` seconds. ``on`` names a calibrated
    device that is not here. With ``kept``, freed memory stays with the process, so that no call
    pays for new pages.
    """

    device: str = "auto"
    threads: int | None = None
    calibration: Path | None = None
    journal: Path | None = None
    most_s: float = 2.0
    on: str | None = None
    kept: bool = False


@dataclass(frozen=True)
class Meeting:
    """Two mechanisms and their workload, in which two sizes are open.

    One is the size of ``axis``. The other is fixed in a row: the head width if the axis is the
    length, else the length. A side may be a user's module instead, a
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
        mechanisms = [side for side in (self.a, self.b) if isinstance(side, Mechanism)]
        if self.axis.name == "seq" and self.workload.phase == "decode":
            # a text is as long as the tokens of a step at least
            tokens = max([1, *(side.step_tokens for side in mechanisms)])
            axis = replace(self.axis, first=ceil_div(tokens, self.axis.every))
            object.__setattr__(self, "axis", axis)
            object.__setattr__(self, "workload", self.workload.with_(seq_len=tokens))
        for side in mechanisms:
            side.check(self.workload, self.scope)

    @property
    def own_modules(self) -> list[Any]:
        """Return the sides that are a user's modules."""
        return [side for side in (self.a, self.b) if not isinstance(side, Mechanism)]

    def check_steps(self) -> None:
        """Raise :class:`RequestError` for decoding by a user's module."""
        if self.workload.phase == "decode" and self.own_modules:
            from attnprof.measure.request import NO_STEP

            raise RequestError(f"{self.own_modules[0].name} {NO_STEP}")

    def branches_at(self, sample: tuple[int, int], symbolic_fixed: bool) -> Branches:
        """Return variables at a value and a fixed size; shared for one fixed size."""
        branches = self._branches.setdefault((sample[1], symbolic_fixed), Branches(sample))
        branches.move(sample)
        return branches

    def at(self, value: Number, fixed_size: Number) -> tuple[list[Any], Workload]:
        """Return both sides and their workload at a value of the axis."""
        return self.axis.placed((self.a, self.b), self.workload, value, fixed_size)


#: Sizes in printed formulas; one head and several, as :func:`pairs_for` takes them.
PRINTED_OVER, ANY_NUMBER = ("seq", "d", "heads"), (1, 2)
#: The quantity and unit of a metric, in printed formulas and in code that runs.
PRINTED_AS = {"flops": ("flops", "flops"), "memory": ("peak_entries", "entries")}
COUNTED_AS = {
    "flops": ("flops", "flops"), "memory": ("peak_bytes", "bytes"),
    MATMUL: ("matmul_flops", "flops"), BYTES: (quantities.STEP_BYTES, "bytes"),
    STATE: ("state_entries", "bytes"), TIME: ("time_s", "s"),
}  # fmt: skip


@dataclass(frozen=True)
class CostSource:
    """The cost of one side, and the values at which it is known: all of them for a formula.

    ``cost`` takes both sides (the axis may be a parameter of theirs) and the workload. If
    ``general``, the sizes may be symbols, and the fixed size another one. ``domain_text`` has the
    conditions in words, ``doubt`` a note on the values.
    """

    cost: Callable[[Sequence[Any], Workload], Number]
    holds: Callable[[int], bool] = lambda _: True
    general: bool = True
    domain_text: str = ""
    doubt: str = ""


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
        """Return the unit of the metric."""
        return (PRINTED_AS if self.kind == "published" else COUNTED_AS)[self.metric][1]

    def at(self, fixed_size: int) -> tuple[CostSource, ...]:
        """Return both costs at the fixed size."""
        return self.costs if self.derived is None else self.derived(fixed_size)

    def lengths(self, head_dim: int, axis: CrossoverAxis = SEQ) -> Lengths:
        """Return lengths, or values of the axis, at which both costs are known.

        Raises :class:`RequestError` if there are none.
        """
        if self.derived is None:
            return axis.domain
        first, second = self.at(head_dim)
        lengths = Lengths(lambda n: first.holds(n * axis.every) and second.holds(n * axis.every))
        if not lengths.stretches:
            raise RequestError(
                f"at head width {head_dim} there is no length at which both costs are known: "
                f"{first.domain_text}; {second.domain_text}"
            )
        return lengths


def contests(
    meeting: Meeting, kinds: Sequence[str] = KINDS, metrics: Sequence[str] = METRICS
) -> list[Contest]:
    """Return the contests of these kinds and metrics, published costs first.

    Raises :class:`RequestError` if there are none, as no document prints both on the same terms.
    """
    if (of_steps := {STATE, BYTES} & {*metrics}) and meeting.workload.phase != "decode":
        raise RequestError(f"--metric {of_steps.pop()}: only decoding has one; add --phase decode")
    result, derived = list[Contest](), None
    if DERIVED in kinds:
        from attnprof.crossovers.derived import derived_costs

        derived = derived_costs(meeting)
    for metric in metrics:
        if not meeting.own_modules:
            result += _closed_contests(meeting, metric, kinds)
        if derived is not None and metric in METRICS_OF[DERIVED]:
            result.append(Contest(metric, DERIVED, derived=partial(derived, metric)))
    if result:
        return result
    names = f"{meeting.a.name} and {meeting.b.name}"
    if meeting.own_modules:
        raise RequestError(f"{names} can be compared by what they execute only: use --kind derived")
    w, over = meeting.workload, meeting.axis.name
    raise RequestError(
        f"no document prints {' or '.join(metrics)} of both {names} on the same "
        f"terms for scope {meeting.scope}, phase {w.phase}{', causal' if w.causal else ''}, "
        + (f"{w.num_heads} head(s)" if over == "seq" else f"over {over}")
        + "; use --kind formula"
    )


def _closed_contests(meeting: Meeting, metric: str, kinds: Sequence[str]) -> Iterator[Contest]:
    """Yield the contests of printed formulas, and of our closed forms."""
    pair = _printed(meeting, metric, meeting.a, meeting.b) if "published" in kinds else None
    if pair:

        def printed(place: int, sides: Sequence[Any], workload: Workload) -> Number:
            forms = _printed(meeting, metric, *sides) if meeting.axis.is_parameter else pair
            if forms is None:
                raise RequestError("no document prints both with this parameter")
            return forms[place].formula(workload)

        source = ", ".join(dict.fromkeys(form.source for form in pair))
        yield Contest(
            metric, "published", tuple(CostSource(partial(printed, n)) for n in (0, 1)), source
        )
    if "formula" in kinds:
        counted = partial(_closed_form, meeting.scope, COUNTED_AS[metric][0])
        yield Contest(metric, "formula", tuple(CostSource(partial(counted, n)) for n in (0, 1)))


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
    pairs = quantities.pairs_for(
        quantities.comparable(a, b), PRINTED_AS[metric][0], w.phase, w.causal, meeting.scope, heads
    )
    return min(pairs, key=lambda pair: pair[0].heads != "one") if pairs else None


def _closed_form(
    scope: str, quantity: str, place: int, sides: Sequence[Any], workload: Workload
) -> Number:
    """Return our closed form of a side (a state in bytes).

    Over polynomials all metrics share the cost table of one run of the mechanism's text.
    """
    side = sides[place]
    sizes = [*vars(workload).values(), *vars(side).values()]
    variable = next((size for size in sizes if isinstance(size, PolynomialSize)), None)
    if variable is None or quantity == quantities.STEP_BYTES:
        cost = quantities.quantity_of(side, workload, scope, quantity)
    else:
        table = variable.branches.once(place, lambda: side.cost(workload, scope))
        cost = quantities.quantity_in(table, quantity)
    return quantities.state_bytes(side, workload, cost) if quantity == "state_entries" else cost


#: Points of a curve; the factor by which it goes beyond crossings; its length without one.
POINTS = 64
AROUND = 8
WITHOUT_CROSSOVER = 1024


def curves_of(
    meeting: Meeting, compared: Sequence[Contest], records: Sequence[CrossoverRecord]
) -> Iterator[dict[str, Any]]:
    """Yield both costs of each contest at each fixed size, where both are known."""
    axis = meeting.axis
    for contest, fixed_size in product(compared, dict.fromkeys(r.fixed_size for r in records)):
        rows = [r for r in records if r.fixed_size == fixed_size]
        try:
            domain = contest.lengths(fixed_size, axis)
        except (RequestError, CannotRunError):
            continue  # a row says why
        values = _lengths([x for r in rows for x in r.all_crossings if x >= 1], domain)
        searched = any(r.method == "searched" and r.kind == contest.kind for r in rows)
        if searched and axis.name != "seq":
            values = axis.values(meeting.workload, fixed_size)
        both: list[dict[int, Number]] = [{}, {}]
        for n, (source, points) in product(values, zip(contest.at(fixed_size), both, strict=True)):
            with suppress(RequestError):  # a value that the mechanism refuses
                points[n] = source.cost(*meeting.at(n, fixed_size))
        fields = {"metric": contest.metric, "unit": contest.unit, "kind": contest.kind}
        yield from side_curves(meeting, fixed_size, both, **fields)


def side_curves(
    meeting: Meeting, fixed_size: int, both: Sequence[Mapping[int, Any]], **fields: Any
) -> Iterator[dict[str, Any]]:
    """Yield each side's costs at values of the axis as a figure takes them, with ``fields``."""
    x = "seq_len" if meeting.axis.name == "seq" else "at"
    for side, points in zip((meeting.a, meeting.b), both, strict=True):
        if points:
            values = {x: list(points), "value": list(points.values())}
            yield {**fields, "mechanism": side.name, meeting.axis.fixed_name: fixed_size, **values}


def searched_curves(
    meeting: Meeting, fixed_size: int, costs: Mapping[int, Sequence[Any]], **fields: Any
) -> Iterator[dict[str, Any]]:
    """Yield both sides' costs at the places that a search tried."""
    both = [{n: costs[n][side] for n in sorted(costs)} for side in (0, 1)]
    return side_curves(meeting, fixed_size, both, **fields)


def _lengths(marks: Sequence[float], domain: Lengths) -> list[int]:
    """Return known lengths around the crossings; without one, around a usual length."""
    first, last = domain.stretches[0][0], domain.stretches[-1][1]
    marks = marks or [WITHOUT_CROSSOVER]
    low, high = max(1.0, min(marks) / AROUND), max(marks) * AROUND
    low, high = max(low, float(first)), high if last is None else min(high, float(last))
    if low > high:  # all known lengths lie elsewhere
        low, high = float(first), float(last or first * AROUND**2)
    steps = ((high / low) ** (i / (POINTS - 1)) for i in range(POINTS))
    lengths = {domain.after(round(low * step)) for step in steps}
    return sorted(length for length in lengths if length is not None)


def ratios(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the first mechanism's cost over the second's, where curves have both."""
    by_place: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in curves:
        x = "at" if "at" in one else "seq_len"
        names = ("metric", "unit", "kind", "head_dim" if x == "seq_len" else "seq_len")
        place = {name: one[name] for name in names}
        points = dict(zip(one[x], one["value"], strict=True))
        first = by_place.setdefault(tuple(place.values()), {**place, "points": points})
        if first["points"] is not points:
            numerators = first.pop("points")
            both = {n: numerators[n] / points[n] for n in numerators if points.get(n)}
            first |= {x: list(both), "value": list(both.values())}
    return [ratio for ratio in by_place.values() if "value" in ratio]
