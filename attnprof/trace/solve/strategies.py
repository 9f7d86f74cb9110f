"""The strategies that derive formulas, in the order in which they are tried (``STRATEGIES``).

One run with symbolic sizes; runs with symbols for some sizes and numbers for others; one run for
sizes that round alike, such as all N from 65 to 128; polynomials through concrete runs.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from types import SimpleNamespace
from typing import Any

import sympy

from attnprof.arguments import LARGEST
from attnprof.trace.events import (
    QUANTITIES,
    assumed,
    left_out,
    orders,
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
from attnprof.trace.solve.count import smallest_real_run
from attnprof.trace.solve.domain import shapes_in
from attnprof.trace.solve.mixed import Mixed
from attnprof.trace.solve.mixed_forms import mixed
from attnprof.trace.solve.plan import SizePlan, plan_for, whole_block_exclusions
from attnprof.trace.solve.small_runs import NotRunningError, short_sizes
from attnprof.trace.solve.smaller_sizes import include_single_sizes
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun
from attnprof.trace.solve.turns import holds_at_asked, run_with_marked_loops
from attnprof.trace.solve.verification import (
    A_LONG_RUN,
    HELD_OUT,
    MOST,
    ContradictedError,
    NoFormulaError,
    OutOfBudgetError,
    PhaseCounts,
    Runs,
    Solution,
    compare_calls,
)

#: Why a peak has no formula where no run contradicts one.
_PEAK = "the memory held is no polynomial in the sizes"
#: Operations that all runs of one mixture on numbers may take: of a module, and of some layers.
_MIXING, _MIXING_LAYERS = 90_000, 500_000

Forms = dict[str, PhaseForms]
#: Formulas by phase, their domain and trace; or what a run at one shape shows.
AnySolution = SymbolicRun | Mixed | SimpleNamespace


@dataclass(frozen=True)
class FailedPlan:
    """The failure of a strategy: ``why``, and the ``error`` that ended it.

    ``forms`` are what it has: they lack a formula or hold for few sizes, and are the result if no
    strategy does better.
    """

    why: str
    error: Exception | None = None
    forms: Forms | None = None

    @property
    def name(self) -> str:
        """The size in which the cost is no polynomial, and which has to be a number; else ""."""
        return str(getattr(self.error, "name", ""))

    @property
    def pins(self) -> Sequence[Any]:
        """The conditions that fixed a size."""
        return getattr(self.error, "pins", ())


@dataclass
class Attempt:
    """The input of a strategy: phases that one run shows, and a target with some sizes ``fixed``.

    ``asked_sizes`` are the other sizes that were asked for. ``reasons`` say why earlier strategies
    failed, ``pins`` are the conditions by which a symbolic run fixed a size, ``relations`` all
    conditions of that run; ``plans`` are those of other phases, by strategy. Formulas may hold only
    for ``classed`` sizes that round like the asked ones. ``by_module``: the costs of each module
    are asked for, and peaks only if they take no further runs. ``symbolic``: the outcome of the
    target's symbolic run, if it was made already.
    """

    target: Target
    phases: Sequence[str]
    asked_sizes: Sizes
    fixed: Sizes
    reasons: list[str]
    plans: dict[str, SizePlan]
    pins: Sequence[Any] = ()
    relations: Sequence[Any] = ()
    classed: Collection[str] = ()
    by_module: bool = False
    symbolic: SymbolicRun | Exception | None = None

    @property
    def complete(self) -> bool:
        """Whether every size was asked for."""
        return set(self.asked_sizes) == set(self.target.symbols)

    @property
    def above_one(self) -> dict[str, int]:
        """The asked sizes that symbols can stand for: all but 1, at which layouts differ."""
        return {name: size for name, size in self.asked_sizes.items() if size != 1}

    def outcome(self, strategy: "Strategy") -> Forms | FailedPlan:
        """Return a strategy's result of each phase, or its failure."""
        try:
            return strategy(self)
        except (NoFormulaError, TooLongError, NotRunningError) as error:
            return FailedPlan(str(error), error)

    def verify(self, method: str, formulas: AnySolution, shapes: list[dict[str, int]]) -> Forms:
        """Return the result of each phase, verified also at the asked shape and on real tensors.

        Raises :class:`NoFormulaError` if a run contradicts all formulas, :class:`PartedError` if
        the code does something else on real tensors.
        """
        if len(shapes) < HELD_OUT:
            message = f"no {HELD_OUT} shapes at which it could be verified"
            raise NoFormulaError(message)
        values, notes = None, list[str]()
        if self.complete:
            try:
                trace = Runs(self.target, self.phases).at(self.asked_sizes)
            except TooLongError:
                where = sizes_text(self.asked_sizes)
                notes.append(f"not run at {where}: more than {A_LONG_RUN:,} operations")
            else:
                values = totals_by_phase(trace, self.phases)
                has_one = 1 in self.asked_sizes.values()  # formulas for a size of 1 come next
                formulas.check_against(trace, self.asked_sizes, strict=has_one)
                shapes = _moved_to_end(shapes, self.asked_sizes)
        if not self.target.mode.real:
            quantities = formulas.forms.get("train" if trains(self.phases) else self.phases[0], {})
            flops, training = quantities.get("flops", 0), trains(self.phases)
            real = smallest_real_run(self.target, training, formulas.holds, shapes, flops)
            if isinstance(real, str):
                notes.append(real)
            else:
                shape, trace = real
                try:
                    formulas.check_against(trace, shape)
                except ContradictedError as wrong:
                    raise NoFormulaError(f"on real tensors, {wrong}") from wrong
                shapes = _moved_to_end(shapes, shape)
        return self.phase_forms(method, formulas, shapes, notes, values)

    def phase_forms(
        self, method: str, result: AnySolution, shapes: Sequence[Sizes], notes: Sequence[str],
        values: PhaseCounts | None,
    ) -> Forms:  # fmt: skip
        """Return the result of each phase; a quantity without a formula has its number there."""
        fixed = tuple(f"{name} = {size}" for name, size in self.fixed.items())
        other_calls = compare_calls(
            self.target, self.phases, result.trace, shapes, self.asked_sizes
        )

        def inside(sizes: Sizes) -> bool:
            fits = all(sizes.get(name, size) == size for name, size in self.fixed.items())
            return fits and bool(result.holds({name: sizes[name] for name in self.target.symbols}))

        def formula(phase: str, quantity: str) -> Formula:
            if quantity in result.forms[phase]:
                return Formula(phase, quantity, result.forms[phase][quantity])
            why = result.withheld.get(phase, {}).get(quantity, _PEAK)
            return Formula(phase, quantity, None, values and values[phase][quantity], why)

        def notes_of(phase: str) -> Iterator[str]:
            yield from dict.fromkeys(self.reasons)
            for item in filter(lambda item: item.withheld, formulas[phase].values()):
                yield f"no formula of {item.quantity.replace('_', ' ')}: {item.withheld}"
            yield from (*other_calls, *notes, *result.trace.notes)
            yield from reservations(result.trace, phase)
            yield from orders(result.trace, phase)

        formulas = {
            phase: {quantity: formula(phase, quantity) for quantity in QUANTITIES}
            for phase in self.phases
        }
        return {
            phase: PhaseForms(
                phase, method, formulas[phase], (*fixed, *result.domain, *assumed(result.trace)),
                tuple({**self.fixed, **shape} for shape in shapes),
                left_out(result.trace, phase), tuple(notes_of(phase)), result.trace, inside,
            )
            for phase in self.phases
        }  # fmt: skip


def _moved_to_end(shapes: Sequence[Sizes], shape: Sizes) -> list[dict[str, int]]:
    """Return the shapes, and ``shape`` at their end."""
    return [*(dict(other) for other in shapes if other != shape), dict(shape)]


def by_symbols(attempt: Attempt) -> Forms | FailedPlan:
    """Return formulas by a run with symbolic sizes, verified by concrete runs."""
    target, phases = attempt.target, attempt.phases
    hints = hints_for(target.symbols, attempt.above_one)
    hints = _with_even_experts(target, phases, hints, attempt.asked_sizes)
    try:
        if isinstance(attempt.symbolic, Exception):
            raise attempt.symbolic
        symbolic, shapes = (
            (attempt.symbolic, None)
            if attempt.symbolic
            else run_with_marked_loops(target, hints, attempt.asked_sizes, phases, attempt.classed)
        )
    except NoFormulaError as error:
        pinned = error if isinstance(error, PinnedError) else None
        if pinned and target.mode.loops_in_blocks and attempt.above_one and not attempt.classed:
            return by_symbols(replace(attempt, classed=attempt.above_one))
        if pinned and not pinned.refused:
            raise  # the code would pin the size again
        hints = divided_hints_for(target.symbols, attempt.above_one)
        try:
            symbolic, shapes = run_with_marked_loops(target, hints, attempt.asked_sizes, phases)
        except NoFormulaError as further:
            raise pinned or further from None
    if shapes is None:
        pins = [] if "N" in attempt.asked_sizes else whole_block_exclusions(symbolic, hints)
        if pins:
            result = replace(attempt, pins=pins).outcome(by_mixing)
            if not isinstance(result, FailedPlan):
                return result
        runs = Runs(target, phases, 2 * symbolic.trace.operations + 100)
        most = 2 * MOST if symbolic.most else MOST
        shapes = runs.verify(symbolic, shapes_in(hints, symbolic.holds), most)
        symbolic = include_single_sizes(symbolic, runs, hints)
    elif attempt.asked_sizes and not holds_at_asked(symbolic, hints, attempt.asked_sizes):
        raise NoFormulaError(f"it holds for {'; '.join(symbolic.domain)}")
    return _with_all_counts(symbolic, attempt.verify("symbolic", symbolic, shapes))


def _with_even_experts(
    target: Target, phases: Sequence[str], hints: dict[str, int], asked_sizes: Sizes
) -> dict[str, int]:
    """Return hints at which all experts get the same number of rows, more than there are experts.

    ``trace.routes`` has the rows and experts of each choice in a run.
    """
    if not target.mode.routed:
        return hints
    trace = Runs(target, phases).at(hints)
    free = [name for name in ("N", *hints) if name in hints and name not in asked_sizes]
    for rows, experts in trace.routes:
        name = next((name for name in free if rows % hints[name] == 0), "")
        if not name:
            continue
        each = rows // hints[name]
        unit = experts // gcd(experts, each)
        least = max(hints[name], -(-experts * experts // each) + unit)
        hints = {**hints, name: unit * (-(-least // unit) | 1)}
    return hints


def by_mixing(attempt: Attempt) -> Forms | FailedPlan:
    """Return formulas by runs with symbols for sizes that the code leaves free, else numbers."""
    hints = hints_for(attempt.target.symbols, attempt.above_one)

    def planned(_runs: Runs) -> SizePlan:
        pinned = attempt.pins, attempt.relations
        return plan_for(attempt.target, hints, attempt.phases, *pinned, by_module=attempt.by_module)

    return _by_plan(attempt, "mixed", planned)


def by_interpolation(attempt: Attempt) -> Forms | FailedPlan:
    """Return formulas by concrete runs: every size is a number, on as short runs as there are."""
    target, anchor = attempt.target, REAL_ANCHOR if attempt.target.mode.real else ANCHOR
    hints = hints_for(target.symbols, {**anchor, **attempt.above_one})

    def planned(runs: Runs) -> SizePlan:
        base = short_sizes(runs, hints, attempt.above_one)
        numbers = dict.fromkeys(target.symbols, sympy.S.One)
        return SizePlan(target, hints, base, numbers, by_module=attempt.by_module, concrete=runs)

    return _by_plan(attempt, "interpolated", planned)


def _by_plan(
    attempt: Attempt, method: str, planned: Callable[[Runs], SizePlan]
) -> Forms | FailedPlan:
    """Return the formulas of a plan, verified by concrete runs; ``planned`` makes the plan once."""
    operations = _MIXING_LAYERS if attempt.by_module else _MIXING
    runs = Runs(attempt.target, attempt.phases, A_LONG_RUN, operations)
    if method not in attempt.plans:
        attempt.plans[method] = planned(runs)
    plan = attempt.plans[method]
    plan.begin(runs)
    runs.use_meta_if_same(plan.base)
    formulas = mixed(plan, attempt.phases, runs)
    try:
        shapes = runs.verify(formulas, formulas.held_out(), strict=formulas.least != formulas.start)
    except ContradictedError:
        if formulas.least == formulas.start:
            raise
        formulas.least = formulas.start  # the peak may be elsewhere at smaller sizes
        shapes = runs.verify(formulas, formulas.held_out())
    if attempt.complete and formulas.operations(attempt.asked_sizes) <= A_LONG_RUN:
        formulas.reach(attempt.asked_sizes)  # they are verified there next
    elif attempt.by_module:
        _reach_asked(formulas, attempt.above_one, runs)
    forms = attempt.verify(method, formulas, shapes)
    ends = {x: end if x in formulas.branches else LARGEST for x, end in formulas.ends.items()}
    extended = replace(formulas, ends=ends)  # beyond verified sizes where no branch is known
    if not any(extended.holds({**x, **attempt.above_one}) for x in (formulas.near(), *shapes)):
        return FailedPlan(f"it holds for {'; '.join(formulas.domain)}", forms=forms)
    if formulas.narrow:
        return FailedPlan(f"it holds for few sizes: {'; '.join(formulas.borders)}", forms=forms)
    lacks_peak = any(
        "peak_bytes" not in quantities.keys() | formulas.withheld.get(phase, {})
        for phase, quantities in formulas.forms.items()
    )
    is_single = all(len(kinds) == 1 for kinds in formulas.kinds.values()) and not attempt.by_module
    if is_single and lacks_peak:  # sizes that round alike may have one
        return FailedPlan("the peak has no formula", forms=forms)
    return _with_all_counts(formulas, forms)


def _reach_asked(formulas: Mixed, asked_sizes: Sizes, runs: Runs) -> None:
    """Extend ranges to the asked sizes if a run there confirms the formulas."""
    shape = {**formulas.near(), **asked_sizes}
    if formulas.operations(shape) > A_LONG_RUN or formulas.branches or formulas.holds(shape):
        return
    with suppress(OutOfBudgetError):
        if formulas.fits(shape, runs):
            formulas.reach(shape)


def in_class(attempt: Attempt) -> Forms | FailedPlan:
    """Return formulas by symbols for sizes that round like the asked ones.

    Code makes numbers of rounded quotients, as ``range(-(-N // 64))`` does: it runs twice for N
    from 65 to 128.
    """
    if attempt.target.mode.loops_in_blocks or not attempt.pins or not attempt.above_one:
        return FailedPlan("")
    return by_symbols(replace(attempt, classed=attempt.above_one, symbolic=None))


def _with_all_counts(formulas: Solution, forms: Forms) -> Forms | FailedPlan:
    """Return the forms, or a failure with them if a count has no formula."""
    gaps = {kind: why for gone in formulas.withheld.values() for kind, why in gone.items()}
    if gaps.keys() <= {"bytes_moved", "peak_bytes"}:
        return forms
    return FailedPlan(next(iter(gaps.values())), forms=forms)


Strategy = Callable[[Attempt], Forms | FailedPlan]
#: Strategies in the order in which they are tried, and how the reason begins if one fails.
STRATEGIES: dict[Strategy, str] = {
    by_symbols: "one run on symbolic sizes was not enough",
    by_mixing: "symbols for some sizes were not enough",
    in_class: "one run on sizes of the asked class was not enough",
    by_interpolation: "no formula fits runs at many shapes",
}
#: Strategies that need symbols for sizes, which real tensors do not have.
ON_SYMBOLS = (by_symbols, by_mixing, in_class)
