"""From a request to its formulas: symbolic first, interpolated where that breaks, verified."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnprof.errors import CannotRunError, RequestError, closest
from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.expressions import hints_for, sizes_text
from attnprof.trace.request.lookup import Texts, target_from, target_of
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.budget import NotInterpolatedError, NotRunningError, OutOfBudgetError
from attnprof.trace.solve.count import tried, value_reason
from attnprof.trace.solve.reality import PartedError, on_real_tensors
from attnprof.trace.solve.shapes import Line
from attnprof.trace.solve.strategies import Attempt
from attnprof.trace.solve.symbolic import NotSymbolicError
from attnprof.trace.solve.verification import A_LONG_RUN, runner
from attnprof.trace.totals import PHASES
from attnprof.user_code import error_text
from attnprof.workload import DTYPES, Workload

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
                f"{sizes_text(sizes)} is outside of where the formula of {target.name} holds, and "
                f"a run there takes {error}"
            ) from error
        except Exception as error:
            raise RequestError(
                f"{target.name} does not run at {sizes_text(sizes)}: {error_text(error)}"
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
            except (NotInterpolatedError, OutOfBudgetError) as error:
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
            raise CannotRunError(
                f"{self.target.name} cannot be derived: {value_reason(error)}"
            ) from error


def _given(fixed: Mapping[str, int]) -> str:
    """Which sizes were given, for a reason: `` with d = 32``."""
    said = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    return f" with {said}" if said else " with all sizes free"


if TYPE_CHECKING:
    from attnprof.trace.request.target import Target


def derived(target: Target, phases: Sequence[str], asked: Mapping[str, int]) -> Derivation:
    """Formulas of a target; its guesses and inputs go with them.

    Raises :class:`RequestError` where it does not run at all.
    """
    wrong = [phase for phase in phases if phase not in PHASES]
    if wrong or not phases:
        named = wrong[0] if wrong else ""
        raise RequestError(f"phase '{named}' is not derived: {closest(named, list(PHASES))}")
    unknown = [name for name in asked if name not in target.symbols]
    if unknown:
        raise RequestError(
            f"--at {unknown[0]}={asked[unknown[0]]}: {target.name} has no size {unknown[0]}; its "
            f"arguments and inputs use {', '.join(target.symbols) or 'none'}"
        )
    target = tried(target, asked, training=not {"backward", "train"}.isdisjoint(phases))
    try:
        found = derive_target(target, phases, asked)
    except Exception as error:
        if not type(error).__module__.startswith("torch."):
            raise
        raise CannotRunError(f"{target.name} cannot be derived: {value_reason(error)}") from error
    inputs = tuple(target.spelled_inputs)
    return replace(found, notes=target.notes, inputs=inputs, dtype=target.dtype)


def derive_anything(
    thing: Any,
    workload: Workload | None,
    *,
    args: Texts,
    inputs: Texts,
    phases: Sequence[str] | None,
    at: Mapping[str, int] | None,
    dtype: str,
    scope: str | None,
    causal: bool,
    params: Mapping[str, Any],
) -> Derivation:
    """The same for what Python passes; a workload gives the shape, the number format, the mask."""
    if workload is not None:
        dtype, causal = workload.dtype, workload.causal or causal
    if dtype not in DTYPES:
        raise RequestError(f"unknown dtype '{dtype}': {closest(dtype, list(DTYPES))}")
    how = (args, inputs, params, scope, causal, dtype)
    if isinstance(thing, str):
        target = target_from(thing, *how)
    else:
        width = None if workload is None else workload.d_model
        target = target_of(thing, _name(thing), *how, width)
    asked = {} if workload is None else _shape(workload, target)
    if phases is None:
        phases = ("forward", "backward")
        if workload is not None and workload.phase != "forward":
            phases = (workload.phase,)
    return derived(target, phases, {**asked, **(at or {})})


def _name(thing: Any) -> str:
    """What to call a Python object."""
    if isinstance(thing, type) or inspect.isroutine(thing):
        name = str(thing.__name__)
        return "module" if name == "<lambda>" else name
    return type(thing).__name__


def _shape(workload: Workload, target: Target) -> dict[str, int]:
    """The workload's sizes by the target's symbols."""
    sizes = workload.by_symbol()
    return {name: size for name, size in sizes.items() if name in target.symbols}
