"""Crossovers that need running code: derived from it, or measured by the allocator.

A measured memory crossover is an exact integer: the allocator counts bytes, so the first length
from which one module holds no more than the other is found by bisection around a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from attnprof.crossovers import report as crossover
from attnprof.crossovers import sides as contests
from attnprof.crossovers.answer import crossover_answer
from attnprof.crossovers.axis import SEQ, CrossoverAxis, curve
from attnprof.crossovers.curves import ratios
from attnprof.crossovers.derived import DerivedSide
from attnprof.crossovers.lengths import KnownCost
from attnprof.crossovers.peak_crossings import peak_crossings, sign
from attnprof.crossovers.value_crossings import ValueCrossings
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.memory import measure_peak
from attnprof.measure.request import NO_STEP, PointRequest
from attnprof.measure.subject import build_subject, refusing
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import CrossoverRecord, Report
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.request.target import Target
from attnprof.workload import Workload

#: How far from the predicted crossover the measured one is looked for.
FARTHEST = 16


def meet(
    a: Mechanism | Target, b: Mechanism | Target, workload: Workload, scope: str,
    head_dims: Sequence[int], kinds: Sequence[str] = (contests.DERIVED,),
    metrics: Sequence[str] = contests.METRICS, *, axis: CrossoverAxis = SEQ,
    with_curves: bool = False, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """The report of ``crossover`` with derived rows, and with measured ones for memory.

    Over another axis than the length ``head_dims`` are the lengths. Raises :class:`RequestError`
    where nothing can be compared: user modules have no published and no ``formula`` costs, and only
    memory can be measured to an integer.
    """
    others = [kind for kind in kinds if kind != contests.MEASURED]
    if not others and "memory" not in metrics:
        raise RequestError("only memory is measured to an exact length: use --metric memory")
    if contests.DERIVED in others and axis.name != "seq":
        raise RequestError(
            f"--kind derived goes over the length: leave --over {axis.name} out, or ask for other "
            "kinds"
        )
    check_steps((a, b), workload)
    sides = [contests.OwnModule(x.name) if isinstance(x, Target) else x for x in (a, b)]
    derived = _derived((a, b), workload, scope) if contests.DERIVED in others else None
    meeting = contests.Meeting(sides[0], sides[1], workload, scope, derived, axis)
    found = Report("crossover", [], {"mechanism_a": a.name, "mechanism_b": b.name}, environment)
    if others:
        found = crossover.report(
            meeting, head_dims, others, metrics, with_curves=with_curves, environment=environment
        )
    if contests.MEASURED not in kinds or "memory" not in metrics:
        return found
    search = _Measured(a, b, meeting)
    records: list[Any] = [*found.records, *map(search.row, head_dims)]
    # by head width, then metric: the kinds of one question beside each other
    metric, kind = contests.ALL_METRICS.index, contests.ALL_KINDS.index
    records.sort(key=lambda record: (record.given, metric(record.metric), kind(record.kind)))
    if search.refused and all(record.skipped for record in records):
        raise search.refused[0]
    summary = {**found.summary, "answer": crossover_answer(records)}
    if with_curves:
        summary["curves"] = [*summary.get("curves", ()), *search.curves()]
        summary["ratios"] = ratios(summary["curves"])
    return replace(found, records=records, summary=summary)


def check_steps(sides: Sequence[Mechanism | Target], workload: Workload) -> None:
    """RequestError for decoding by somebody's own module."""
    if workload.phase == "decode" and (own := [x for x in sides if isinstance(x, Target)]):
        raise RequestError(f"{own[0].name} {NO_STEP}")


def _derived(
    pair: tuple[Mechanism | Target, Mechanism | Target], workload: Workload, scope: str
) -> Callable[[str, int], tuple[KnownCost, KnownCost]]:
    """Costs derived from both sides' code, by metric and head width."""
    sides = []
    for side in pair:
        tell(f"deriving {side.name}")
        target = side
        if isinstance(target, Mechanism):
            target = mechanism_target(target, scope, causal=workload.causal, dtype=workload.dtype)
        sides.append(DerivedSide(target, workload))

    @cache
    def known(metric: str, head_dim: int) -> tuple[KnownCost, KnownCost]:
        costs = (side.at_width(metric, head_dim) for side in sides)
        a, b = (KnownCost(c, c.holds, *c.told()) for c in costs)
        return a, b

    return known


@dataclass
class _Measured:
    """Measured rows of one meeting: near the closed forms' crossing, or, without such, anywhere."""

    a: Mechanism | Target
    b: Mechanism | Target
    meeting: contests.Meeting
    refused: list[CannotRunError | RequestError] = field(default_factory=list)
    _peaks: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)

    def row(self, given: int) -> CrossoverRecord:
        """The measured row of a head width, or over another axis of a length."""
        if self.meeting.axis.name == "seq":
            return self._over_lengths(given)
        empty = crossover.blank(self.meeting, contests.Contest("memory", contests.MEASURED), given)
        empty = replace(empty, method="measured")
        search = self._over_values(given)
        try:
            search.run()
        except (CannotRunError, RequestError) as error:
            self.refused.append(error)
            return replace(empty, skipped=str(error))
        low, high = min(search.signs), max(search.signs)
        below, above = search.signs[low], search.signs[high]
        crossings, names = search.crossings, {1: self.b.name, -1: self.a.name, 0: None}
        verdict = {0: "always" if below > 0 else "never", 1: "crosses"}
        first = crossings[-1] if crossings else low if below > 0 else None
        return crossover.answered(
            empty, [float(n) for n in crossings], first,
            verdict=verdict.get(len(crossings), "several"), cheaper_below=names[below],
            cheaper_above=names[above], searched=[[low, high]], searched_step=1,
            bound=search.end or None,
        )  # fmt: skip

    def _over_values(self, given: int) -> ValueCrossings:
        """The search over the values of another axis; peaks are remembered for a figure."""
        meeting, axis = self.meeting, self.meeting.axis
        seen: list[dict[int, int]] = [{}, {}]
        for side, own in zip((self.a, self.b), seen, strict=True):
            self._peaks[side.name, given] = own

        def both(value: int) -> tuple[int, int]:
            sides, sizes = axis.placed((self.a, self.b), meeting.workload, value, given)
            first, second = (peaks_of(side, sizes, meeting.scope)(given) for side in sides)
            seen[0][value], seen[1][value] = first, second
            return first, second

        return ValueCrossings(both, axis.values(meeting.workload, given), self._guesses(given))

    def _guesses(self, given: int) -> list[float]:
        """Where the closed forms' peaks cross; nowhere where one has none."""
        try:
            contest = contests.contests(self.meeting, ("formula",), ("memory",))[0]
            roots = contests.solved(self.meeting, contest, given)[0].roots
        except (CannotRunError, RequestError):
            return []
        return [float(root.at) for root in roots]

    def _over_lengths(self, head_dim: int) -> CrossoverRecord:
        empty = crossover.blank(
            self.meeting, contests.Contest("memory", contests.MEASURED), head_dim
        )
        first, second = self._sides(head_dim)
        searched: dict[str, Any] = {}
        try:
            if any(isinstance(side, Target) for side in (self.a, self.b)):
                found = peak_crossings(first, second)
                crossings, (low, high) = found.crossings, found.ends
                below, above = found.signs[low], found.signs[high]
                searched = {"searched": [[low, high]], "searched_step": found.step}
            else:  # no more lengths are measured than it takes
                low = first_crossing(lambda n: first(n) - second(n), self._guess(head_dim))
                below = sign(first(low - 1) - second(low - 1))
                crossings, above = [low], -below
        except (CannotRunError, RequestError) as error:
            self.refused.append(error)
            return replace(empty, method="measured", skipped=str(error))
        verdict = {0: "always" if below > 0 else "never", 1: "crosses"}
        names = {1: self.b.name, -1: self.a.name, 0: None}
        first_length = crossings[-1] if crossings else low if below > 0 else None
        return crossover.answered(
            empty, [float(n) for n in crossings], first_length, method="measured",
            verdict=verdict.get(len(crossings), "several"), cheaper_below=names[below],
            cheaper_above=names[above], **searched,
        )  # fmt: skip

    def _guess(self, head_dim: int) -> int:
        """Where the closed forms cross."""
        contest = contests.contests(self.meeting, ("formula",), ("memory",))[0]
        guess = contests.solved(self.meeting, contest, head_dim)[0]
        if guess.first is None or guess.verdict != "crosses":
            raise CannotRunError("no crossover to look for: the closed forms do not cross")
        return guess.first

    def _sides(self, head_dim: int) -> list[Callable[[int], int]]:
        """Both peaks by length, remembered for a figure."""
        sizes = self.meeting.workload.with_(head_dim=head_dim)
        found = []
        for side in (self.a, self.b):
            seen: dict[int, int] = {}
            self._peaks[side.name, head_dim] = seen
            found.append(peaks_of(side, sizes, self.meeting.scope, seen))
        return found

    def curves(self) -> list[dict[str, Any]]:
        """What was measured, as a figure takes it."""
        what = {"metric": "memory", "unit": "bytes", "kind": contests.MEASURED}
        return [
            curve(self.meeting.axis, given, dict(sorted(seen.items())), **what, mechanism=name)
            for (name, given), seen in self._peaks.items()
            if seen
        ]


def request_of(
    side: Mechanism | Target, workload: Workload, scope: str, **more: Any
) -> PointRequest:
    """A mechanism or a module at a workload as a point."""
    params = side.asked if isinstance(side, Target) else side.params
    return PointRequest.at(side.name, workload, scope=scope, params=params, **more)


def peaks_of(
    side: Mechanism | Target, workload: Workload, scope: str, seen: dict[int, int] | None = None
) -> Callable[[int], int]:
    """Measured peak bytes of a mechanism or a module by length, on the CPU's allocator.

    ``seen`` keeps them. What a module raises becomes a :class:`RequestError` with its line.
    """
    known = {} if seen is None else seen

    def peak(seq_len: int) -> int:
        request = request_of(side, workload.with_(seq_len=seq_len), scope)
        if seq_len not in known:
            import torch

            tell(f"measuring the peak memory of {request.title}")
            with refusing(request):
                known[seq_len] = measure_peak(build_subject(request), "cpu", torch).bytes
        return known[seq_len]

    return peak


def first_crossing(difference: Callable[[int], int], guess: int) -> int:
    """The length near a guess from which on an integer difference has another sign.

    Raises :class:`CannotRunError` where there is none within a factor of ``FARTHEST``.
    """
    low, high, step = max(1, guess - 1), guess, 1
    below = sign(difference(low))
    while sign(difference(high)) == below or not below:
        low, high, step = max(1, low - step), high + step, 2 * step
        below = sign(difference(low))
        if high > FARTHEST * guess:
            raise CannotRunError(f"no sign change between {low} and {high} tokens")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sign(difference(middle)) == below else (low, middle)
    return high
