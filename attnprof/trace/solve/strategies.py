"""One list of ways to formulas, tried in turn: by symbols, through runs, numbers at one shape."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.events import QUANTITIES, at_least, totals_by_phase, trains, uncounted
from attnprof.trace.report.derivation import Formula, PhaseForms
from attnprof.trace.request.target import ANCHOR, REAL_ANCHOR, Sizes, Target, hints_for, sizes_text
from attnprof.trace.run.runs import TooLongError
from attnprof.trace.solve import budget
from attnprof.trace.solve.count import count, held
from attnprof.trace.solve.interpolation import NOWHERE, Interpolated, interpolate
from attnprof.trace.solve.shapes import Line, shapes_in
from attnprof.trace.solve.symbolic import SymbolicRun, run_symbolically
from attnprof.user_code import error_text

#: How often ranges are cut until runs inside agree.
_CUTS = 6

Forms = dict[str, PhaseForms]
#: Formulas by phase, where they hold, and the run behind them; or what a run at one shape shows.
FoundForms = SymbolicRun | Interpolated | SimpleNamespace


@dataclass
class Attempt:
    """Phases that one run shows, with some sizes ``fixed``: ``target`` has the others.

    ``asked`` are those of them that were asked for. ``reasons`` say why what was tried before did
    not do; ``lines`` are those of an earlier interpolation.
    """

    target: Target
    phases: Sequence[str]
    asked: Sizes
    fixed: Sizes
    reasons: list[str]
    lines: dict[str, Line]

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
            raise budget.NoFormulaError(
                f"no {budget.HELD_OUT} shapes at which it could be verified"
            )
        values, notes = None, list[str]()
        if self.complete:
            where = sizes_text(self.asked)
            try:
                trace = budget.Runs(self.target, self.phases).at(self.asked)
            except TooLongError:
                notes.append(f"not run at {where}: more than {budget.A_LONG_RUN:,} operations")
            else:
                values = totals_by_phase(trace, self.phases)
                budget.refuse_contradiction(found.forms, values, self.asked)
                shapes = _last(shapes, self.asked)
        if not self.target.real:
            real = held(self.target, trains(self.phases), found.holds, shapes)
            if isinstance(real, str):
                notes.append(real)
            else:
                shape, trace = real
                counted = totals_by_phase(trace, self.phases)
                try:
                    budget.refuse_contradiction(found.forms, counted, shape)
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

        def inside(sizes: Sizes) -> bool:
            fits = all(sizes.get(name, size) == size for name, size in self.fixed.items())
            return fits and bool(found.holds({name: sizes[name] for name in self.target.symbols}))

        def formula(phase: str, quantity: str) -> Formula:
            if quantity in found.forms[phase]:
                return Formula(phase, quantity, found.forms[phase][quantity])
            return Formula(phase, quantity, None, values and values[phase][quantity])

        def told(phase: str) -> Iterator[str]:
            yield from dict.fromkeys(self.reasons)
            if method == "interpolated" and "peak_bytes" not in found.forms[phase]:
                yield "the peak has no formula: the memory held is no polynomial in the sizes"
            yield from (*notes, *found.trace.notes, *at_least(found.trace, phase))

        return {
            phase: PhaseForms(
                phase,
                method,
                {quantity: formula(phase, quantity) for quantity in QUANTITIES},
                (*given, *found.domain),
                tuple({**self.fixed, **shape} for shape in shapes),
                tuple(
                    f"{op} ×{times} ({touched} bytes)"
                    for op, (times, touched) in uncounted(found.trace, phase).items()
                ),
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
    """By a run with symbolic sizes, held against concrete runs."""
    target, phases = attempt.target, attempt.phases
    hints = hints_for(target.symbols, attempt.above_one)
    found = run_symbolically(target, hints, phases)
    runs = budget.Runs(target, phases, 2 * len(found.trace.calls) + 100)
    most = 2 * budget.MOST if found.most else budget.MOST
    shapes = runs.agreeing(found.forms, shapes_in(hints, found.holds), most)
    return attempt.verified("symbolic", found, shapes)


def by_interpolation(attempt: Attempt) -> Forms:
    """Through the counts of concrete runs; ranges end before a shape that does not agree."""
    target, phases = attempt.target, attempt.phases
    usual = REAL_ANCHOR if target.real else ANCHOR
    hints = hints_for(target.symbols, {**usual, **attempt.above_one})
    found = interpolate(target, hints, attempt.asked, phases, attempt.lines)
    attempt.lines.update(found.lines)
    runs = budget.Runs(target, phases)
    for _ in range(_CUTS):
        try:
            shapes = runs.agreeing(found.forms, found.held_out())
        except budget.ContradictedError as error:
            if error.only_peaks:
                found.without_peaks()
            elif not found.cut(error.shape):
                raise
        else:
            return attempt.verified("interpolated", found, shapes)
    raise budget.NoFormulaError(NOWHERE)


def at_one_shape(attempt: Attempt) -> Forms:
    """Numbers at the asked shape; CannotRunError without one, or where that run fails."""
    target, asked = attempt.target, attempt.asked
    why = "; ".join(dict.fromkeys(attempt.reasons))
    if not attempt.complete:
        at = ",".join(f"{name}={asked.get(name, '…')}" for name in target.symbols)
        raise CannotRunError(
            f"{target.name}: no closed form found ({why}); give all sizes with --at {at} for "
            "numbers at one shape"
        )
    try:
        trace = count(target, asked, attempt.phases[0], budget.A_LONG_RUN)
    except AttnprofError:
        raise
    except Exception as error:
        raise CannotRunError(
            f"{target.name}: no closed form found ({why}), and it cannot be counted at "
            f"{sizes_text(asked)}: {error_text(error)}"
        ) from error
    values = totals_by_phase(trace, attempt.phases)
    nothing: budget.PhaseCounts = {phase: {} for phase in attempt.phases}
    found = SimpleNamespace(
        forms=nothing, trace=trace, holds=lambda sizes: sizes == asked, domain=(sizes_text(asked),)
    )
    return attempt.phase_forms("counted", found, [asked], [], values)


#: Ways to formulas in the order in which they are tried, and what a reason against one says.
STRATEGIES: dict[Callable[[Attempt], Forms], str] = {
    by_symbols: "one run on symbolic sizes was not enough",
    by_interpolation: "no formula fits runs at many shapes",
}
