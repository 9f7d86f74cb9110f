"""One list of ways to formulas, tried in turn: by symbols, by mixing, through runs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from attnprof.arguments import LARGEST
from attnprof.trace.events import (
    QUANTITIES,
    assumed,
    left_out,
    reservations,
    totals_by_phase,
    trains,
)
from attnprof.trace.report.derivation import Formula, PhaseForms
from attnprof.trace.request.target import (
    ANCHOR,
    REAL_ANCHOR,
    Sizes,
    Target,
    divided_hints_for,
    hints_for,
    sizes_text,
)
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve import budget
from attnprof.trace.solve.contradictions import Found
from attnprof.trace.solve.count import held
from attnprof.trace.solve.even_routing import evenly
from attnprof.trace.solve.interpolation import Interpolated, interpolate
from attnprof.trace.solve.later_calls import compare_calls
from attnprof.trace.solve.mixed import Mixed
from attnprof.trace.solve.mixed_forms import mixed
from attnprof.trace.solve.plan import SizePlan, plan_for, without_whole
from attnprof.trace.solve.shapes import Line, shapes_in
from attnprof.trace.solve.single_sizes import with_single
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun
from attnprof.trace.solve.turns import beside, by_turns, in_blocks

#: Why a peak has none where no run contradicts one.
_PEAK = "the memory held is no polynomial in the sizes"
#: How often ranges are cut until runs inside agree.
_CUTS = 6
#: Operations that all runs of one mixture on numbers may take.
_MIXING = 90_000

Forms = dict[str, PhaseForms]
#: Formulas by phase, where they hold, and the run behind them; or what a run at one shape shows.
FoundForms = SymbolicRun | Mixed | Interpolated | SimpleNamespace


class PartlyError(budget.NoFormulaError):
    """A run contradicts some counts: ``forms`` has the others, if no other way has them all."""

    def __init__(self, message: str, forms: Forms) -> None:
        super().__init__(message)
        self.forms = forms


@dataclass
class Attempt:
    """Phases that one run shows, with some sizes ``fixed``: ``target`` has the others.

    ``asked`` are those of them that were asked for. ``reasons`` say why what was tried before did
    not do, ``pins`` which conditions fix a size; ``lines`` and ``plans`` are those of other phases.
    Of ``classed`` sizes formulas may be for those of a class alone.
    """

    target: Target
    phases: Sequence[str]
    asked: Sizes
    fixed: Sizes
    reasons: list[str]
    lines: dict[str, Line]
    plans: dict[str, SizePlan]
    pins: Sequence[Any] = ()
    classed: Collection[str] = ()

    @property
    def complete(self) -> bool:
        """Whether every size was asked for."""
        return set(self.asked) == set(self.target.symbols)

    @property
    def above_one(self) -> dict[str, int]:
        """The asked sizes that a symbol can stand for: 1 is the special case."""
        return {name: size for name, size in self.asked.items() if size != 1}

    def verified(self, method: str, found: FoundForms, shapes: list[dict[str, int]]) -> Forms:
        """The phases, once a run at the asked shape and one on real tensors agree, too.

        Raises :class:`PartedError` where code does something else on real tensors.
        """
        if len(shapes) < budget.HELD_OUT:
            told = f"no {budget.HELD_OUT} shapes at which it could be verified"
            raise budget.NoFormulaError(told)
        values, notes = None, list[str]()
        if self.complete:
            where = sizes_text(self.asked)
            try:
                trace = budget.Runs(self.target, self.phases).at(self.asked)
            except TooLongError:
                notes.append(f"not run at {where}: more than {budget.A_LONG_RUN:,} operations")
            else:
                values = totals_by_phase(trace, self.phases)
                # a size of 1 is another case, which is then derived
                found.hold(trace, self.asked, strict=1 in self.asked.values())
                shapes = _last(shapes, self.asked)
        if not self.target.real:
            own = found.forms.get("train" if trains(self.phases) else self.phases[0], {})
            real = held(self.target, trains(self.phases), found.holds, shapes, own.get("flops", 0))
            if isinstance(real, str):
                notes.append(real)
            else:
                shape, trace = real
                try:
                    found.hold(trace, shape)
                except budget.ContradictedError as wrong:
                    raise budget.NoFormulaError(f"on real tensors, {wrong}") from wrong
                shapes = _last(shapes, shape)
        return self.phase_forms(method, found, shapes, notes, values)

    def phase_forms(
        self,
        method: str,
        found: FoundForms,
        shapes: Sequence[Sizes],
        notes: Sequence[str],
        values: budget.PhaseCounts | None,
    ) -> Forms:
        """All that is said of each phase; ``values`` stand where a quantity has no formula."""
        given = tuple(f"{name} = {size}" for name, size in self.fixed.items())
        others = compare_calls(self.target, self.phases, found.trace, shapes, self.asked)

        def inside(sizes: Sizes) -> bool:
            fits = all(sizes.get(name, size) == size for name, size in self.fixed.items())
            return fits and bool(found.holds({name: sizes[name] for name in self.target.symbols}))

        def formula(phase: str, quantity: str) -> Formula:
            if quantity in found.forms[phase]:
                return Formula(phase, quantity, found.forms[phase][quantity])
            why = "" if method == "counted" else found.withheld.get(phase, {}).get(quantity, _PEAK)
            return Formula(phase, quantity, None, values and values[phase][quantity], why)

        def told(phase: str) -> Iterator[str]:
            yield from dict.fromkeys(self.reasons)
            for each in filter(lambda each: each.withheld, formulas[phase].values()):
                yield f"no formula of {each.quantity.replace('_', ' ')}: {each.withheld}"
            yield from (*others, *notes, *found.trace.notes, *reservations(found.trace, phase))

        formulas = {
            phase: {quantity: formula(phase, quantity) for quantity in QUANTITIES}
            for phase in self.phases
        }
        return {
            phase: PhaseForms(
                phase,
                method,
                formulas[phase],
                (*given, *found.domain, *assumed(found.trace)),
                tuple({**self.fixed, **shape} for shape in shapes),
                left_out(found.trace, phase),
                tuple(told(phase)),
                found.trace,
                inside,
            )
            for phase in self.phases
        }


def _last(shapes: Sequence[Sizes], shape: Sizes) -> list[dict[str, int]]:
    """The shapes with this one at the end."""
    return [*(dict(other) for other in shapes if other != shape), dict(shape)]


def by_symbols(attempt: Attempt) -> Forms:
    """By a run with symbolic sizes, held against runs; PartlyError where counts are not those."""
    target, phases = attempt.target, attempt.phases
    hints = evenly(target, phases, hints_for(target.symbols, attempt.above_one), attempt.asked)
    try:
        found, shapes = by_turns(target, hints, attempt.asked, phases, attempt.classed)
    except budget.NoFormulaError as error:
        of_class = target.in_blocks and attempt.above_one and not attempt.classed
        if of_class and isinstance(error, PinnedError):
            return by_symbols(replace(attempt, classed=attempt.above_one))
        hints = divided_hints_for(target.symbols, attempt.above_one)
        found, shapes = in_blocks(target, hints, attempt.asked, phases, error)
    if shapes is None:
        if pins := without_whole(found, hints) if "N" not in attempt.asked else []:
            with suppress(budget.NoFormulaError, TooLongError):
                return by_mixing(replace(attempt, pins=pins))
        runs = budget.Runs(target, phases, 2 * found.trace.operations + 100)
        most = 2 * budget.MOST if found.most else budget.MOST
        shapes = runs.agreeing(found, shapes_in(hints, found.holds), most)
        found = with_single(found, runs, hints)
    elif attempt.asked and not any(map(found.holds, beside(hints, attempt.asked))):
        raise budget.NoFormulaError(f"it holds for {'; '.join(found.domain)}")
    forms = attempt.verified("symbolic", found, shapes)
    return _of_all_counts(found, forms)


def by_mixing(attempt: Attempt) -> Forms:
    """By symbols for the sizes that the code lets be symbols, and a few numbers for the others."""
    target, phases = attempt.target, attempt.phases
    hints = hints_for(target.symbols, attempt.above_one)
    known = attempt.plans.get("plan")
    if known is None:
        attempt.plans["plan"] = known = plan_for(target, hints, phases, attempt.pins)
    known.begin()
    runs = budget.Runs(target, phases, budget.A_LONG_RUN, _MIXING)
    runs.settle(known.base)
    found = mixed(known, phases, runs)
    try:
        shapes = runs.agreeing(found, found.held_out(), strict=found.least != found.start)
    except budget.ContradictedError:
        if found.least == found.start:
            raise
        found.least = found.start  # below, other moments may be the worst
        shapes = runs.agreeing(found, found.held_out())
    if attempt.complete and found.operations(attempt.asked) <= budget.A_LONG_RUN:
        for name in found.ends:  # a run there is held against the formulas next
            ends = -(-attempt.asked[name] // found.unit(name, attempt.asked))
            found.ends[name] = max(found.ends[name], ends)
    forms = attempt.verified("mixed", found, shapes)
    if not _meets(found, attempt, shapes):
        raise PartlyError(f"it holds for {'; '.join(found.domain)}", forms)
    if found.narrow:
        raise PartlyError(f"it holds for few sizes: {'; '.join(found.borders)}", forms)
    told = (own.keys() | found.withheld.get(phase, {}) for phase, own in found.forms.items())
    alike = all(len(kinds) == 1 for kinds in found.kinds.values())
    if alike and any("peak_bytes" not in own for own in told):
        raise PartlyError("the peak has no formula", forms)  # it may have one in a class of sizes
    return _of_all_counts(found, forms)


def _meets(found: Mixed, attempt: Attempt, shapes: Sequence[Sizes]) -> bool:
    """Whether it holds at asked sizes, some of which may be beyond those it was verified at."""
    ends = {x: end if x in found.branches else LARGEST for x, end in found.ends.items()}
    further = replace(found, ends=ends)
    return any(further.holds({**x, **attempt.above_one}) for x in (found.near(), *shapes))


def in_class(attempt: Attempt) -> Forms:
    """By symbols for the class of asked sizes alone, of which code makes rounded quotients."""
    if attempt.target.in_blocks or not attempt.pins or not attempt.above_one:
        raise budget.NoFormulaError("")
    return by_symbols(replace(attempt, classed=attempt.above_one))


def _of_all_counts(found: Found, forms: Forms) -> Forms:
    """The forms; PartlyError where counts are not what runs count."""
    gaps = {kind: why for gone in found.withheld.values() for kind, why in gone.items()}
    if gaps.keys() <= {"bytes_moved", "peak_bytes"}:
        return forms
    raise PartlyError(next(iter(gaps.values())), forms)


def by_interpolation(attempt: Attempt) -> Forms:
    """Through the counts of concrete runs; ranges end before a shape that does not agree."""
    target, phases = attempt.target, attempt.phases
    usual = REAL_ANCHOR if target.real else ANCHOR
    hints = hints_for(target.symbols, {**usual, **attempt.above_one})
    found = interpolate(target, hints, attempt.asked, phases, attempt.lines)
    attempt.lines.update(found.lines)
    runs = budget.Runs(target, phases)
    ranges, cuts = found.ranges, 0
    while True:
        try:
            shapes = runs.agreeing(found, found.held_out(), strict=cuts <= _CUTS)
        except budget.ContradictedError as error:
            if cuts > _CUTS:
                raise
            if error.only_peaks:
                found.withhold(error)
                continue
            cuts = cuts + 1 if found.cut(error.shape) else _CUTS + 1
            if cuts > _CUTS:
                found.back_to(ranges)
        else:
            return attempt.verified("interpolated", found, shapes)


#: Ways to formulas in the order in which they are tried, and what a reason against one says.
STRATEGIES: dict[Callable[[Attempt], Forms], str] = {
    by_symbols: "one run on symbolic sizes was not enough",
    by_mixing: "symbols for some sizes were not enough",
    in_class: "one run on sizes of the asked class was not enough",
    by_interpolation: "no formula fits runs at many shapes",
}
#: Those that real tensors are no help to: they have no symbols for sizes.
ON_SYMBOLS = (by_symbols, by_mixing, in_class)
