"""The ways to what a phase costs: by symbols, by interpolation, or at one shape only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.events import QUANTITIES, Trace
from attnprof.trace.report.derivation import (
    COUNTED,
    INTERPOLATED,
    SYMBOLIC,
    Formula,
    PhaseForms,
)
from attnprof.trace.request.expressions import ANCHOR, REAL_ANCHOR, hints_for, sizes_text
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.budget import BudgetedRuns, NotInterpolatedError
from attnprof.trace.solve.count import count
from attnprof.trace.solve.interpolation import Interpolated, interpolate
from attnprof.trace.solve.reality import held
from attnprof.trace.solve.shapes import Line, shapes_in
from attnprof.trace.solve.symbolic import NotSymbolicError, run_symbolically
from attnprof.trace.solve.verification import (
    A_LONG_RUN,
    HELD_OUT,
    MOST,
    Checks,
    ContradictedError,
    Counts,
    Runner,
    refuse_contradiction,
    runner,
)
from attnprof.trace.totals import at_least, totals, uncounted
from attnprof.user_code import error_text

#: How often ranges are cut until runs inside agree.
_CUTS = 6


@dataclass
class Attempt:
    """Phases of one kind (``forward``, or ``backward`` and ``train``) with some sizes given.

    ``target`` has the other sizes; ``asked`` are those of them that were asked for. ``reasons``
    say why what was tried before did not do; ``lines`` are those of an earlier interpolation.
    """

    target: Target
    phases: Sequence[str]
    asked: Mapping[str, int]
    fixed: Mapping[str, int]
    reasons: list[str] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every size was asked for."""
        return set(self.asked) == set(self.target.symbols)

    def symbolic(self) -> dict[str, PhaseForms]:
        """By a run with symbolic sizes, held against concrete runs; or NotSymbolicError."""
        hints = hints_for(self.target.symbols, _above_one(self.asked))
        result = run_symbolically(self.target, hints, self.phases)
        calls = len(result.trace.calls)
        checks = Checks(self.target, self.phases, 2 * calls + 100)
        most = 2 * MOST if result.most else MOST
        try:
            shapes = checks.agreeing(result.forms, shapes_in(hints, result.holds), most)
        except (ContradictedError, TooLongError) as error:
            raise NotSymbolicError(str(error)) from error
        shapes, notes = self._and_asked(result.forms, shapes, NotSymbolicError)
        inside = lambda sizes: _large(sizes) and result.holds(sizes)  # noqa: E731
        shapes, notes = self._held(result.forms, inside, shapes, notes, NotSymbolicError)
        return {
            phase: self._forms(
                phase,
                SYMBOLIC,
                {q: Formula(phase, q, e) for q, e in result.forms[phase].items()},
                (f"{', '.join(self.target.symbols)} >= 2", *result.conditions),
                shapes,
                notes,
                result.trace,
                inside,
            )
            for phase in self.phases
        }

    def interpolated(self) -> dict[str, PhaseForms]:
        """Through the counts of concrete runs; or NotInterpolatedError, OutOfBudgetError."""
        usual = REAL_ANCHOR if self.target.real else ANCHOR
        hints = hints_for(self.target.symbols, {**usual, **_above_one(self.asked)})
        runs = BudgetedRuns(self.target, training="forward" not in self.phases)
        found = interpolate(self.target, runs, hints, self.asked, self.phases, self.lines)
        self.lines.update(found.lines)
        run = runner(self.target, self.phases, A_LONG_RUN)
        shapes, notes = self._and_asked(found.forms, self._held_out(found), NotInterpolatedError)
        shapes, notes = self._held(found.forms, found.holds, shapes, notes, NotInterpolatedError)
        return {
            phase: self._forms(
                phase,
                INTERPOLATED,
                self._formulas(phase, found.forms[phase], run),
                found.domain,
                shapes,
                [*found.notes(phase), *notes],
                found.trace,
                found.holds,
            )
            for phase in self.phases
        }

    def _held_out(self, found: Interpolated) -> list[dict[str, int]]:
        """Shapes at which it agrees; ranges end before one at which it does not."""
        checks = Checks(self.target, self.phases, A_LONG_RUN)
        for _ in range(_CUTS):
            try:
                return checks.agreeing(found.forms, found.held_out())
            except TooLongError as error:
                raise NotInterpolatedError(str(error)) from error
            except ContradictedError as error:
                if error.only_peaks:
                    found.without_peaks()
                elif not found.cut(error.shape):
                    raise NotInterpolatedError(str(error)) from error
        raise NotInterpolatedError("the polynomials hold nowhere but where they were fitted")

    def counted(self) -> dict[str, PhaseForms]:
        """At the asked shape only; CannotRunError without one, or where that run fails."""
        whole = {**self.fixed, **self.asked}
        why = "; ".join(dict.fromkeys(self.reasons))
        if not self.complete:
            at = ",".join(f"{name}={whole.get(name, '…')}" for name in self.target.symbols)
            raise CannotRunError(
                f"{self.target.name}: no closed form found ({why}); give all sizes with "
                f"--at {at} for numbers at one shape"
            )
        try:
            trace = count(self.target, self.asked, self.phases[0], A_LONG_RUN)
        except AttnprofError:
            raise
        except Exception as error:
            raise CannotRunError(
                f"{self.target.name}: no closed form found ({why}), and it cannot be counted at "
                f"{sizes_text(whole)}: {error_text(error)}"
            ) from error
        return {
            phase: self._forms(
                phase,
                COUNTED,
                {q: Formula(phase, q, None, v) for q, v in totals(trace, phase).items()},
                (sizes_text(self.asked),),
                [dict(self.asked)],
                [],
                trace,
                lambda sizes: sizes == self.asked,
            )
            for phase in self.phases
        }

    def _formulas(self, phase: str, forms: Mapping[str, Any], run: Runner) -> dict[str, Formula]:
        """A formula for every quantity; for those without, the value at the asked shape."""
        found = {q: Formula(phase, q, expression) for q, expression in forms.items()}
        for quantity in set(QUANTITIES) - set(found):
            value = run(self.asked)[phase][quantity] if self.complete else None
            found[quantity] = Formula(phase, quantity, None, value)
        return {quantity: found[quantity] for quantity in QUANTITIES}

    def _and_asked(
        self, forms: Counts, shapes: list[dict[str, int]], error: type[Exception]
    ) -> tuple[list[dict[str, int]], list[str]]:
        """The shapes and the asked one, where a run gives what the formulas give; and a note."""
        if len(shapes) < HELD_OUT:
            raise error(f"no {HELD_OUT} shapes at which it could be verified")
        if not self.complete:
            return shapes, []
        try:
            counted = runner(self.target, self.phases, A_LONG_RUN)(self.asked)
            refuse_contradiction(forms, counted, self.asked)
        except TooLongError:
            return shapes, [
                f"not run at {sizes_text(self.asked)}: more than {A_LONG_RUN} operations"
            ]
        except ContradictedError as wrong:
            raise error(str(wrong)) from wrong
        others = [shape for shape in shapes if shape != self.asked]
        return [*others, dict(self.asked)], []

    def _held(
        self,
        forms: Mapping[str, Mapping[str, Any]],
        holds: Callable[[Mapping[str, int]], bool],
        shapes: list[dict[str, int]],
        notes: list[str],
        error: type[Exception],
    ) -> tuple[list[dict[str, int]], list[str]]:
        """With the shape of a run on real tensors; PartedError where that does something else."""
        if self.target.real:
            return shapes, notes
        found = held(self.target, "forward" not in self.phases, holds, iter(shapes))
        if isinstance(found, str):
            return shapes, [*notes, found]
        shape, trace = found
        try:
            refuse_contradiction(forms, {p: totals(trace, p) for p in self.phases}, shape)
        except ContradictedError as wrong:
            raise error(f"on real tensors, {wrong}") from wrong
        return [*(other for other in shapes if other != shape), shape], notes

    def _forms(
        self,
        phase: str,
        method: str,
        formulas: Mapping[str, Formula],
        domain: Sequence[str],
        shapes: Sequence[Mapping[str, int]],
        notes: Sequence[str],
        trace: Trace,
        holds: Any,
    ) -> PhaseForms:
        given = tuple(f"{name} = {size}" for name, size in self.fixed.items())
        return PhaseForms(
            phase,
            method,
            formulas,
            (*given, *domain),
            tuple({**self.fixed, **shape} for shape in shapes),
            _named(trace, phase),
            (*dict.fromkeys(self.reasons), *notes, *trace.notes, *at_least(trace, phase)),
            trace,
            _inside(self.fixed, self.target.symbols, holds),
        )


def _above_one(asked: Mapping[str, int]) -> dict[str, int]:
    """The asked sizes that a symbol can stand for: 1 is the special case."""
    return {name: size for name, size in asked.items() if size != 1}


def _large(sizes: Mapping[str, int]) -> bool:
    """Whether no size is 1, which is another case: torch lays such tensors out in other ways."""
    return not any(isinstance(size, int) and size == 1 for size in sizes.values())


def _inside(fixed: Mapping[str, int], free: Sequence[str], holds: Any) -> Any:
    def inside(sizes: Mapping[str, int]) -> bool:
        given = all(sizes.get(name, size) == size for name, size in fixed.items())
        return given and bool(holds({name: sizes[name] for name in free}))

    return inside


def _named(trace: Trace, phase: str) -> tuple[str, ...]:
    found = uncounted(trace, phase)
    return tuple(f"{op} ×{times} ({touched} bytes)" for op, (times, touched) in found.items())
