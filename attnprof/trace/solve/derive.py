"""From a request to its formulas, and its numbers at any shape."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.errors import CannotRunError, RequestError, closest
from attnprof.processes.progress import tell
from attnprof.trace.events import PHASES, totals, trains
from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import SHORTER, Sizes, Target, hints_for, sizes_text
from attnprof.trace.rules import check_registered
from attnprof.trace.run.chance import draws_seen
from attnprof.trace.run.limits import TooLongError, TooSlowError
from attnprof.trace.run.runs import record
from attnprof.trace.solve.budget import A_LONG_RUN, ContradictedError, NoFormulaError
from attnprof.trace.solve.count import PartedError, on_real_tensors, tried
from attnprof.trace.solve.one_shape import at_one_shape
from attnprof.trace.solve.plan import SizePlan
from attnprof.trace.solve.reasons import NotRunningError
from attnprof.trace.solve.shapes import Line
from attnprof.trace.solve.small_runs import explained
from attnprof.trace.solve.squares import asked_of_side, in_length, of_side, side_of
from attnprof.trace.solve.strategies import (
    ON_SYMBOLS,
    STRATEGIES,
    Attempt,
    Forms,
    by_symbols,
)
from attnprof.trace.solve.symbolic import PinnedError
from attnprof.user_code import collecting_seldom, error_text
from attnprof.workload import DTYPES, Workload


@collecting_seldom()
def derived(
    target: Target,
    phases: Sequence[str] = PHASES[:3],
    asked: Mapping[str, int] | None = None,
    *,
    runs: bool = False,
) -> Derivation:
    """Formulas of a target for phases; ``asked`` sizes choose the branch and must be met.

    Its guesses and inputs go with them; ``runs``: it is known to run at those sizes. Raises
    :class:`RequestError` for sizes it does not have and where it does not run at all,
    :class:`CannotRunError` where neither a formula nor, at a complete shape, a number can be had.
    """
    check_registered()
    asked = dict(asked or {})
    for phase in phases or [""]:
        if phase not in PHASES:
            raise RequestError(f"phase '{phase}' is not derived: {closest(phase, list(PHASES))}")
    for name, size in asked.items():
        if name not in target.symbols:
            raise RequestError(
                f"--at {name}={size}: {target.name} has no size {name}; its arguments and inputs "
                f"use {', '.join(target.symbols) or 'none'}"
            )
    start: Sizes = asked
    drawn = draws_seen()
    if not runs:
        target, start = _started(target, asked, training=trains(phases))
    with explained(target, phases, drawn):
        forms = _forms(target, phases, start)
    inputs = tuple(target.spelled_inputs)
    return Derivation(target.name, target.symbols, forms, asked, inputs, target.notes, target.dtype)


def _started(target: Target, asked: Sizes, *, training: bool) -> tuple[Target, Sizes]:
    """The target and the sizes to begin with; a shorter length where it runs at no usual one.

    At a length that its tables reach sizes can be symbols; at powers of two alone they cannot.
    """
    free = "N" in set(target.symbols) - set(asked)
    shorter = [{**asked, "N": length} for length in SHORTER] if free else []
    tries = [*((sizes, False) for sizes in (asked, *shorter[:1]) if free), (asked, True)]
    failures = []
    for sizes, even in (*tries, *((sizes, True) for sizes in shorter)):
        try:
            return tried(target, sizes, training=training, even=even), sizes
        except RequestError as error:
            failures.append(error)
    raise failures[len(tries) - 1]


def _forms(target: Target, phases: Sequence[str], asked: Sizes) -> Forms:
    """Every phase: those together that one run shows; a decoding step is a run of its own."""
    if "decode" in phases and target.step is None:
        raise RequestError(f"{target.name} has no decoding step to derive; use --phase forward")
    searches = dict.fromkeys(PHASES, _Search(target, asked))
    searches["decode"] = _Search(target.step or target, asked)
    found = dict[str, PhaseForms]()
    for group in (("forward",), ("backward", "train"), ("decode",)):
        if wanted := [phase for phase in group if phase in phases]:
            found |= searches[wanted[0]].forms(wanted)
    counted = {phase: _by_run(searches[phase].target, phase) for phase in phases}
    return {phase: replace(found[phase], counted=counted[phase]) for phase in phases}


def _by_run(target: Target, part: str) -> Callable[[Mapping[str, int]], Mapping[str, Any]]:
    """Every quantity of a phase by a run at a shape; RequestError where it cannot run there."""

    @cache
    def run(shape: tuple[tuple[str, int], ...]) -> Mapping[str, Any]:
        trace = record(target, dict(shape), training=trains([part]), most=A_LONG_RUN)
        return totals(trace, part)

    def counted(sizes: Mapping[str, int]) -> Mapping[str, Any]:
        try:
            return run(tuple(sorted(sizes.items())))
        except Exception as error:
            where = sizes_text(sizes)
            told = f"{target.name} does not run at {where}: {error_text(error)}"
            if isinstance(error, TooLongError):
                told = f"{where} is outside of where the formula of {target.name} holds, and a run "
                told += f"there takes {error}"
            raise RequestError(told) from error

    return counted


@dataclass
class _Search:
    """Tries the strategies in turn; what one group of phases showed spares the next one work."""

    target: Target
    asked: Sizes
    lines: dict[str, Line] = field(default_factory=dict)
    plans: dict[str, dict[str, SizePlan]] = field(default_factory=dict)
    _failed: dict[tuple[str, str], Exception] = field(default_factory=dict)

    def forms(self, phases: Sequence[str]) -> Forms:
        """Phases that one run shows; on real tensors where code does something else there."""
        try:
            return self._first(phases, [])
        except PartedError as error:
            self.target = on_real_tensors(self.target, training=trains(phases))
            self._failed.clear()
            self.lines.clear()
            self.plans.clear()
            return self._first(phases, [str(error)])

    def _first(self, phases: Sequence[str], reasons: list[str]) -> Forms:
        """What the first strategy gives that does not fail, with all sizes free at first.

        Then those of 1 are given, and one in which the cost is no polynomial. Where runs
        contradict some counts and no other way has them all, that is what is given.
        """
        partial: Forms | None = None
        waiting = list(product(STRATEGIES, self._starts()))
        while waiting:
            strategy, fixed = waiting.pop(0)
            attempt = self._attempt(phases, fixed, reasons)
            if not attempt.target.symbols or (strategy in ON_SYMBOLS and self.target.real):
                continue  # real tensors have no symbols for sizes
            key = strategy.__name__, str(fixed)
            known = self._failed.get(key)
            way = strategy.__name__.replace("_", " ")
            tell(f"deriving {', '.join(phases)} of {self.target.name} {way}")
            try:
                if known:
                    raise known
                return strategy(attempt)
            except NotRunningError as error:
                alone = partial is None and fixed in self._starts()
                torchs = type(error.cause).__module__.startswith("torch.")
                if alone and (torchs or not attempt.complete):
                    raise  # it will not run for numbers either
                reasons.append(str(error))
            except (NoFormulaError, TooLongError) as error:
                partial = partial or getattr(error, "forms", None)
                name = getattr(error, "name", "")
                # no length is given that nobody asked
                name = "" if name == "N" and name not in self.asked else name
                if str(error) and not (known and name):
                    reasons.append(f"{_failing(STRATEGIES[strategy], fixed, error)}: {error}")
                if name or isinstance(error, PinnedError | TooSlowError):
                    self._failed[key] = error
                first = strategy is by_symbols and not fixed
                if found := first and self._otherwise(error, phases, reasons):
                    return found
                waiting[:0] = self._with_given(name, fixed)
        partial = partial or self._narrowed(phases, reasons)
        return partial or at_one_shape(self._attempt(phases, {}, reasons), self._given(phases))

    def _with_given(self, name: str, fixed: Sizes) -> Iterator[Any]:
        """All strategies, with a number for the size of this name, if there is one."""
        if name:
            size = self.asked.get(name) or hints_for(self.target.symbols, {})[name]
            yield from product(STRATEGIES, [{**fixed, name: size}])

    def _of_squares(self, phases: Sequence[str]) -> Forms | None:
        """Formulas over the root of a length that has to be a square, if it has to."""
        side = side_of(self.target, self.asked)
        if not side:
            return None
        search = _Search(of_side(self.target, side), asked_of_side(self.asked, side))
        with contextlib.suppress(CannotRunError, NotRunningError):
            found = search.forms(phases)
            return {phase: in_length(forms, side) for phase, forms in found.items()}
        return None

    def _otherwise(
        self, error: Exception, phases: Sequence[str], reasons: list[str]
    ) -> Forms | None:
        """Formulas where a run on symbols shows at once that none are over all of these sizes.

        It makes a square of a length, or its conditions hold at an asked size and at no other.
        """
        if found := self._of_squares(phases):
            return found
        asked = [(symbol(name), size) for name, size in self.asked.items()]
        alone = any(pin.args in asked for pin in getattr(error, "pins", ()))
        return self._narrowed(phases, reasons) if alone else None

    def _given(self, phases: Sequence[str]) -> Sizes:
        """The length with which there are formulas in the other sizes, if one is found."""
        for length in () if self.asked.get("N") or "N" not in self.target.symbols else (256, 64):
            # RequestError: the inputs' own expressions ask for another length
            with contextlib.suppress(NoFormulaError, NotRunningError, TooLongError, RequestError):
                by_symbols(self._attempt(phases, {"N": length}, []))
                return {"N": length}
        return {}

    def _starts(self) -> list[dict[str, int]]:
        ones = {name: size for name, size in self.asked.items() if size == 1}
        if ones and len(self.asked) < len(self.target.symbols):
            return [ones]  # no run at the asked shape could tell that a 1 is another case
        return [{}, ones] if ones else [{}]

    def _narrowed(self, phases: Sequence[str], reasons: list[str]) -> Forms | None:
        """With numbers for the widths that a run on symbols makes numbers of, if any other way."""
        pins = getattr(self._failed.get((by_symbols.__name__, "{}")), "pins", ())
        unasked = {"N", "B"} - set(self.asked)
        pinned = {size.name for pin in pins for size in pin.free_symbols} - unasked
        usual = {**hints_for(self.target.symbols, {}), **self.asked}
        fixed = {name: usual[name] for name in self.target.symbols if name in pinned}
        tried = fixed and len(fixed) < len(self.target.symbols) and not self.target.real
        partial: Forms | None = None
        for strategy in ON_SYMBOLS if tried else ():
            try:
                return strategy(self._attempt(phases, fixed, reasons))
            except (NoFormulaError, TooLongError, NotRunningError) as error:
                if str(error):
                    reasons.append(f"{_failing(STRATEGIES[strategy], fixed, error)}: {error}")
                partial = partial or getattr(error, "forms", None)
        return partial

    def _attempt(self, phases: Sequence[str], fixed: Sizes, reasons: list[str]) -> Attempt:
        target = self.target.fixed(**fixed) if fixed else self.target
        asked = {name: size for name, size in self.asked.items() if name not in fixed}
        plans = self.plans.setdefault(str(fixed), {})
        pins = getattr(self._failed.get((by_symbols.__name__, str(fixed))), "pins", ())
        return Attempt(target, phases, asked, fixed, reasons, self.lines, plans, pins)


def _failing(strategy: str, fixed: Sizes, error: Exception) -> str:
    if isinstance(error, ContradictedError) and 1 in error.shape.values():
        return "these formulas are for the size of 1; those for 2 and more would be wrong there"
    given = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    return f"{strategy} with {given}" if given else strategy


def derive_anything(
    thing: Any,
    workload: Workload | None = None,
    *,
    phases: Sequence[str] | None = None,
    at: Mapping[str, int] | None = None,
    dtype: str = "float32",
    causal: bool = False,
    **how: Any,
) -> Derivation:
    """The same for what Python passes; a workload gives the shape, the number format, the mask.

    ``how`` is what else :func:`attnprof.trace.request.lookup.target_of` takes.
    """
    if workload is not None:
        dtype, causal = workload.dtype, workload.causal or causal
    if dtype not in DTYPES:
        raise RequestError(f"unknown dtype '{dtype}': {closest(dtype, list(DTYPES))}")
    width = None if workload is None or isinstance(thing, str) else workload.d_model
    target = target_of(thing, causal=causal, dtype=dtype, width=width, **how)
    sizes = {} if workload is None else workload.by_symbol()
    asked = {name: size for name, size in sizes.items() if name in target.symbols}
    if phases is None:
        phases = ("forward", "backward")
        if workload is not None and workload.phase != "forward":
            phases = (workload.phase,)
    return derived(target, phases, {**asked, **(at or {})})
