"""From a target to its formulas: symbolic first, interpolated where that breaks, verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.anchoring import NotRunningError
from attnprof.trace.derivation import Derivation, PhaseForms, told
from attnprof.trace.lines import Line
from attnprof.trace.loading import told as said
from attnprof.trace.probing import NotPolynomialError
from attnprof.trace.reality import PartedError, on_real_tensors
from attnprof.trace.shots import OutOfBudgetError, TooLongError
from attnprof.trace.symbolic_run import NotSymbolicError
from attnprof.trace.symbols import hints_for
from attnprof.trace.target import Target
from attnprof.trace.totals import PHASES
from attnprof.trace.trying import why
from attnprof.trace.verification import A_LONG_RUN, runner
from attnprof.trace.ways import Attempt

Forms = dict[str, PhaseForms]
Counter = Callable[[Mapping[str, int]], Mapping[str, Any]]


def derive_target(
    target: Target, phases: Sequence[str] = PHASES[:3], asked: Mapping[str, int] | None = None
) -> Derivation:
    """Formulas of a target for phases; ``asked`` sizes choose the branch and must be met.

    Raises :class:`RequestError` for sizes it does not have, :class:`CannotRunError` where neither
    a formula nor, at a complete shape, a number can be had.
    """
    asked = dict(asked or {})
    unknown = set(asked) - set(target.symbols)
    if unknown:
        raise RequestError(
            f"{', '.join(sorted(unknown))}: no such size; {target.name} has "
            f"{', '.join(target.symbols)}"
        )
    search = _Search(target, asked)
    found: Forms = {}
    for group in (("forward",), ("backward", "train")):
        wanted = [phase for phase in group if phase in phases]
        if wanted:
            found.update(search.forms(wanted))
    runs = {phase: _by_run(search.target, phase) for phase in found}
    if "decode" in phases:
        found["decode"], runs["decode"] = _decoding(target, asked)
    forms = {p: replace(found[p], counted=runs[p]) for p in phases}
    return Derivation(target.name, target.symbols, forms, asked)


def _by_run(target: Target, part: str) -> Counter:
    """Every quantity of a phase by a run at a shape; RequestError where it cannot run there."""
    run = runner(target, [part], A_LONG_RUN)

    def counted(sizes: Mapping[str, int]) -> Mapping[str, Any]:
        try:
            return run(sizes)[part]
        except TooLongError as error:
            raise RequestError(
                f"{told(sizes)} is outside of where the formula of {target.name} holds, and a run "
                f"there takes {error}"
            ) from error
        except Exception as error:
            raise RequestError(
                f"{target.name} does not run at {told(sizes)}: {said(error)}"
            ) from error

    return counted


def _decoding(target: Target, asked: Mapping[str, int]) -> tuple[PhaseForms, Counter]:
    """One step, run like a forward pass; and its numbers at a shape."""
    if target.step is None:
        raise RequestError(f"{target.name} has no decoding step to derive; use --phase forward")
    search = _Search(target.step, asked)
    found = search.forms(("forward",))["forward"]
    formulas = {q: replace(formula, phase="decode") for q, formula in found.formulas.items()}
    return replace(found, phase="decode", formulas=formulas), _by_run(search.target, "forward")


@dataclass
class _Search:
    """Tries the ways in turn; what one group of phases showed spares the next one work."""

    target: Target
    asked: Mapping[str, int]
    lines: dict[str, Line] = field(default_factory=dict)
    _hopeless: dict[tuple[str, str], str] = field(default_factory=dict)

    def forms(self, phases: Sequence[str]) -> Forms:
        """Phases that one run shows.

        First with all sizes free, then with those of 1 given; where the cost is no polynomial in
        a size, with that one given, too.
        """
        try:
            return self._tried(phases, [])
        except PartedError as error:
            self.target = on_real_tensors(self.target, training="forward" not in phases)
            self._hopeless.clear()
            self.lines.clear()
            return self._tried(phases, [str(error)])

    def _tried(self, phases: Sequence[str], reasons: list[str]) -> Forms:
        ones = {name: size for name, size in self.asked.items() if size == 1}
        starts: list[dict[str, int]] = [{}, ones] if ones else [{}]
        if ones and len(self.asked) < len(self.target.symbols):
            starts = [ones]  # no run at the asked shape could tell that a 1 is another case
        for fixed in starts:
            found = self._symbolic(self._attempt(phases, fixed, reasons))
            if found:
                return found
        for fixed in starts:
            found = self._interpolated(phases, fixed, reasons)
            if found:
                return found
        return self._attempt(phases, {}, reasons).counted()

    def _attempt(
        self, phases: Sequence[str], fixed: Mapping[str, int], reasons: list[str]
    ) -> Attempt:
        target = self.target.fixed(**fixed) if fixed else self.target
        asked = {name: size for name, size in self.asked.items() if name not in fixed}
        return Attempt(target, phases, asked, fixed, reasons, self.lines)

    def _symbolic(self, attempt: Attempt) -> Forms | None:
        if self.target.real:  # real tensors have no symbols for sizes
            return None
        known = ("symbolic", str(attempt.fixed))
        if known in self._hopeless or not attempt.target.symbols:
            attempt.reasons += [self._hopeless[known]] if known in self._hopeless else []
            return None
        try:
            return attempt.symbolic()
        except NotSymbolicError as error:
            attempt.reasons.append(f"no symbolic run{_given(attempt.fixed)}: {error}")
            if error.lasting:
                self._hopeless[known] = attempt.reasons[-1]
            return None

    def _interpolated(
        self, phases: Sequence[str], fixed: Mapping[str, int], reasons: list[str]
    ) -> Forms | None:
        """With further sizes given as long as the cost is no polynomial in them."""
        attempt = self._attempt(phases, fixed, reasons)
        known = ("interpolated", str(fixed))
        if not attempt.target.symbols:
            return None
        if known not in self._hopeless:
            try:
                return attempt.interpolated()
            except NotRunningError as error:
                self._refuse(error.cause, attempt)
                reasons.append(str(error))
                return None
            except (NotPolynomialError, OutOfBudgetError) as error:
                reasons.append(f"not interpolated{_given(fixed)}: {error}")
                name = getattr(error, "name", "")
                if not name or (name == "N" and name not in self.asked):
                    return None
                self._hopeless[known] = name
        name = self._hopeless[known]
        size = self.asked.get(name) or hints_for(self.target.symbols, {})[name]
        return self._given_too(phases, {**fixed, name: size}, reasons)

    def _given_too(
        self, phases: Sequence[str], fixed: Mapping[str, int], reasons: list[str]
    ) -> Forms | None:
        """With one more size given: by symbols, or interpolated."""
        if len(fixed) == len(self.target.symbols):
            return None
        found = self._symbolic(self._attempt(phases, fixed, reasons))
        return found or self._interpolated(phases, fixed, reasons)

    def _refuse(self, error: Exception, attempt: Attempt) -> None:
        """Runs that fail everywhere will not give numbers either, if not at the asked shape."""
        if type(error).__module__.startswith("torch.") or not attempt.complete:
            raise CannotRunError(f"{self.target.name} cannot be derived: {why(error)}") from error


def _given(fixed: Mapping[str, int]) -> str:
    """Which sizes were given, for a reason: `` with d = 32``."""
    said = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    return f" with {said}" if said else " with all sizes free"
