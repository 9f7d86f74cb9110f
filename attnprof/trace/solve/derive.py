"""Derive the formulas of a target: strategies are tried in turn until one gives formulas.

The first strategy runs the code with symbols for all sizes. Code that makes a number of a size
fails there; it is then run with numbers for that size, which the other strategies fit.
:func:`derived` takes a :class:`Target`, :func:`derive_anything` a class, module, function or name.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.errors import AttnprofError, CannotRunError, RequestError, closest
from attnprof.processes.progress import tell
from attnprof.trace.events import PHASES, QUANTITIES, totals, totals_by_phase, trains
from attnprof.trace.report.derivation import Derivation, PhaseForms, tokens_first
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import EVEN, SHORTER, Sizes, Target, hints_for, sizes_text
from attnprof.trace.rules import check_registered
from attnprof.trace.run.limits import TooLongError, TooSlowError
from attnprof.trace.run.runs import outcome, record
from attnprof.trace.run.surroundings import only_runs
from attnprof.trace.run.values import generator_states
from attnprof.trace.run.worlds import quiet_hub
from attnprof.trace.solve.count import PartedError, count, on_real_tensors, runnable
from attnprof.trace.solve.plan import SizePlan
from attnprof.trace.solve.small_runs import NotRunningError, refusing_chance
from attnprof.trace.solve.strategies import (
    ON_SYMBOLS,
    STRATEGIES,
    Attempt,
    FailedPlan,
    Forms,
    Strategy,
    by_symbols,
)
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically
from attnprof.trace.solve.verification import (
    A_LONG_RUN,
    ContradictedError,
    NoFormulaError,
    PhaseCounts,
)
from attnprof.user_code import collecting_seldom, error_text
from attnprof.workload import DTYPES, Workload

#: Sizes that code loops over: samples and tokens; and how many of them a run has that shows it.
_LOOPED, _SHORT_LOOP = ("B", "N"), 5


@collecting_seldom()
@only_runs()
@quiet_hub()
def derived(
    target: Target,
    phases: Sequence[str] = PHASES[:3],
    asked_sizes: Mapping[str, int] | None = None,
    *,
    runs: bool = False,
    by_module: bool = False,
    pinned: PinnedError | None = None,
    symbolic: SymbolicRun | Exception | None = None,
) -> Derivation:
    """Return formulas of a target for phases, of the code's branch at the ``asked_sizes``.

    ``runs``: the target is known to run at these sizes. ``by_module``: costs of each module are
    asked for, and no peaks where these take further runs. ``pinned`` ended a symbolic run of the
    target, or of a part of it; ``symbolic`` is the outcome of its own at these sizes, if one was
    made. Raises :class:`RequestError` for sizes that it does not have and if
    it does not run at all, :class:`CannotRunError` if there is neither a formula nor, at a complete
    shape, a number.
    """
    check_registered()
    asked_sizes = dict(asked_sizes or {})
    for phase in phases or [""]:
        if phase not in PHASES:
            raise RequestError(f"phase '{phase}' is not derived: {closest(phase, list(PHASES))}")
    for name, size in asked_sizes.items():
        if name not in target.symbols:
            raise RequestError(
                f"--at {name}={size}: {target.name} has no size {name}; its arguments and inputs "
                f"use {', '.join(target.symbols) or 'none'}"
            )
    start: Sizes = asked_sizes
    draws = generator_states()
    if not runs:
        target, start = _first_run(target, asked_sizes, training=trains(phases))
    with refusing_chance(target, phases, draws):
        forms = _forms(target, phases, _Search(target, start, by_module, pinned, symbolic))
    inputs = tuple(target.spelled_inputs)
    notes = (*target.notes, *tokens_first(inputs, target.notes, forms))
    return Derivation(target.name, target.symbols, forms, asked_sizes, inputs, notes, target.dtype)


def _first_run(target: Target, asked_sizes: Sizes, *, training: bool) -> tuple[Target, Sizes]:
    """Return the target as it runs, and sizes to begin with: a shorter length if no usual one runs.

    Lengths within a module's tables come before powers of two, at which sizes cannot be symbols.
    """
    free = "N" in set(target.symbols) - set(asked_sizes)
    shorter = [{**asked_sizes, "N": length} for length in SHORTER] if free else []
    tries = [(sizes, False) for sizes in (asked_sizes, *shorter[:1]) if free]
    failures = []
    for sizes, even in (*tries, *((sizes, True) for sizes in (asked_sizes, *shorter))):
        try:
            return runnable(target, sizes, training=training, even=even), sizes
        except RequestError as error:
            failures += [error] if sizes is asked_sizes else []
    raise failures[-1]


def _forms(target: Target, phases: Sequence[str], search: "_Search") -> Forms:
    """Return the result of every phase; backward and train share a run, decode is another one."""
    if "decode" in phases and target.step is None:
        raise RequestError(f"{target.name} has no decoding step to derive; use --phase forward")
    searches = dict.fromkeys(PHASES, search)
    searches["decode"] = _Search(
        target.step or target, search.asked_sizes, search.by_module, search.pinned, search.symbolic
    )
    forms = dict[str, PhaseForms]()
    for group in (("forward",), ("backward", "train"), ("decode",)):
        if wanted := [phase for phase in group if phase in phases]:
            forms |= searches[wanted[0]].forms(wanted)
    counted = {phase: _counts_by_run(searches[phase].target, phase) for phase in phases}
    return {phase: replace(forms[phase], counted=counted[phase]) for phase in phases}


def _counts_by_run(target: Target, part: str) -> Callable[[Mapping[str, int]], Mapping[str, Any]]:
    """Return a function that counts every quantity of a phase by a run at a shape."""

    @cache
    def run(shape: tuple[tuple[str, int], ...]) -> Mapping[str, Any]:
        trace = record(target, dict(shape), training=trains([part]), most=A_LONG_RUN)
        return totals(trace, part)

    def counted(sizes: Mapping[str, int]) -> Mapping[str, Any]:
        try:
            return run(tuple(sorted(sizes.items())))
        except Exception as error:
            where = sizes_text(sizes)
            message = f"{target.name} does not run at {where}: {error_text(error)}"
            if isinstance(error, TooLongError):
                message = f"{where} is outside of where the formula of {target.name} holds, and a "
                message += f"run there takes {error}"
            raise RequestError(message) from error

    return counted


@dataclass
class _Search:
    """The search for formulas of a target; plans of one group of phases help the next."""

    target: Target
    asked_sizes: Sizes
    by_module: bool = False
    pinned: PinnedError | None = None
    symbolic: SymbolicRun | Exception | None = None
    plans: dict[str, dict[str, SizePlan]] = field(default_factory=dict)
    _failed: dict[tuple[str, str], FailedPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pinned is not None:
            self._failed[by_symbols.__name__, "{}"] = FailedPlan(str(self.pinned), self.pinned)

    def forms(self, phases: Sequence[str]) -> Forms:
        """Return the result of phases of one run; on real tensors if the code differs there."""
        try:
            return self._first_result(phases, [])
        except PartedError as error:
            self.target = on_real_tensors(self.target, training=trains(phases))
            self._failed.clear()
            self.plans.clear()
            return self._first_result(phases, [str(error)])

    def _first_result(self, phases: Sequence[str], reasons: list[str]) -> Forms:
        """Return the result of the first strategy that does not fail.

        All sizes are free at first; then asked sizes of 1 are fixed, and a size in which the cost
        is no polynomial. If no strategy has all formulas, the first result with some is returned.
        """
        partial: Forms | None = None
        pinned = FailedPlan("")
        waiting = list(product(STRATEGIES, self._starts()))
        while waiting:
            strategy, fixed = waiting.pop(0)
            attempt = self._attempt(phases, fixed, reasons)
            if not attempt.target.symbols or (strategy in ON_SYMBOLS and self.target.mode.real):
                continue  # real tensors have no symbols for sizes
            key = strategy.__name__, str(fixed)
            earlier = self._failed.get(key)
            method = strategy.__name__.replace("_", " ")
            tell(f"deriving {', '.join(phases)} of {self.target.name} {method}")
            result = earlier or attempt.outcome(strategy)
            if not isinstance(result, FailedPlan):
                return result
            if partial is None and fixed in self._starts():
                _raise_if_never_running(result, attempt)
            partial = partial or result.forms
            # no length is given that nobody asked
            name = "" if result.name == "N" and "N" not in self.asked_sizes else result.name
            if not (earlier and name):
                reasons += _reasons(strategy, fixed, result)
            if name or isinstance(result.error, PinnedError | TooSlowError):
                self._failed[key] = result
            if strategy is by_symbols and not fixed:
                pinned = result
                alone = self._over_fewer_sizes(result, phases, reasons, all_pinned=False)
                if alone is not None:
                    return alone
            if name:  # next, with a number for this size
                size = self.asked_sizes.get(name) or hints_for(self.target.symbols, {})[name]
                waiting[:0] = product(STRATEGIES, [{**fixed, name: size}])
        partial = self._over_fewer_sizes(pinned, phases, reasons, all_pinned=True) or partial
        return partial or at_one_shape(
            self._attempt(phases, {}, reasons), self._number(phases, pinned.pins)
        )

    def _over_fewer_sizes(
        self, failed: FailedPlan, phases: Sequence[str], reasons: list[str], *, all_pinned: bool
    ) -> Forms | None:
        """Return formulas with numbers for sizes that are cases of their own, if one is asked for.

        The code then pins it at that number alone, as ``if N == 256``, or a window of 256 tokens. A
        size that it pins at any number, as by ``int(heads)``, gets one only if ``all_pinned`` do.
        Returns None if the code loops over tokens or samples.
        """
        unasked = {"N", "B"} - set(self.asked_sizes)
        pinned = {size.name for pin in failed.pins for size in pin.free_symbols}
        numbers = [(symbol(name), size) for name, size in self.asked_sizes.items()]
        cases = {pin.args[0].name for pin in failed.pins if pin.args in numbers}
        if not cases:
            return None
        anywhere = {name for name in pinned if self._is_pinned_anywhere(name, phases)}
        pinned -= unasked if all_pinned else unasked | anywhere
        if not (anywhere.isdisjoint(_LOOPED) and cases & pinned) or (all_pinned and not anywhere):
            return None
        usual = {**hints_for(self.target.symbols, {}), **self.asked_sizes}
        fixed = {name: usual[name] for name in self.target.symbols if name in pinned}
        partial: Forms | None = None
        for strategy in ON_SYMBOLS if len(fixed) < len(self.target.symbols) else ():
            result = self._attempt(phases, fixed, reasons).outcome(strategy)
            if not isinstance(result, FailedPlan):
                return result
            if isinstance(result.error, PinnedError):
                self._failed[strategy.__name__, str(fixed)] = result
            reasons += _reasons(strategy, fixed, result)
            partial = partial or result.forms
        return partial

    def _is_pinned_anywhere(self, name: str, phases: Sequence[str]) -> bool:
        """Return whether a size is pinned at another number, too, as by ``range(tokens)``."""
        size, hints = symbol(name), hints_for(self.target.symbols, self.asked_sizes)
        other = 3 * hints[name]  # no power of two, which tables of widths have
        if name in _LOOPED:
            other = _SHORT_LOOP + (self.asked_sizes.get(name) == _SHORT_LOOP)
        try:
            run_symbolically(self.target, {**hints, name: other}, phases)
        except PinnedError as again:
            return any(pin.args == (size, other) for pin in again.pins)
        except (NoFormulaError, RequestError, TooLongError):
            pass
        return False

    def _number(self, phases: Sequence[str], pins: Sequence[Any]) -> Sizes:
        """Return a number for a size with which the others have formulas: ``{"N": 256}``, or {}.

        A length is tried first, then the sizes that a symbolic run pinned.
        """
        pinned = sorted({size.name for pin in pins for size in pin.free_symbols} - {"N"})
        numbers = [("N", 256), ("N", 64), *((name, EVEN.get(name, 16)) for name in pinned)]
        for name, size in numbers:
            if self.asked_sizes.get(name) or name not in self.target.symbols:
                continue
            # RequestError: the inputs' own expressions ask for another number
            with contextlib.suppress(RequestError):
                result = self._attempt(phases, {name: size}, []).outcome(by_symbols)
                if not isinstance(result, FailedPlan):
                    return {name: size}
        return {}

    def _starts(self) -> list[dict[str, int]]:
        """Return the sizes to fix at first, in turn: none, then asked sizes of 1."""
        ones = {name: size for name, size in self.asked_sizes.items() if size == 1}
        if ones and len(self.asked_sizes) < len(self.target.symbols):
            return [ones]  # no run at the asked shape could tell that a 1 is another case
        return [{}, ones] if ones else [{}]

    def _attempt(self, phases: Sequence[str], fixed: Sizes, reasons: list[str]) -> Attempt:
        """Return an attempt with numbers for ``fixed`` sizes, told of earlier failures."""
        target = self.target.fixed(**fixed) if fixed else self.target
        asked_sizes = {name: size for name, size in self.asked_sizes.items() if name not in fixed}
        plans = self.plans.setdefault(str(fixed), {})
        failed = self._failed.get((by_symbols.__name__, str(fixed)), FailedPlan(""))
        relations = getattr(failed.error, "relations", ())
        return Attempt(
            target, phases, asked_sizes, fixed, reasons, plans, failed.pins, relations,
            by_module=self.by_module, symbolic=None if fixed else self.symbolic,
        )  # fmt: skip


def _raise_if_never_running(failed: FailedPlan, attempt: Attempt) -> None:
    """Raise the error of code that runs at no shape, unless it may run at the asked one."""
    if isinstance(error := failed.error, NotRunningError):
        torchs = type(error.cause).__module__.startswith("torch.")
        if torchs or not attempt.complete:
            raise error


def _reasons(strategy: Strategy, fixed: Sizes, failed: FailedPlan) -> list[str]:
    """Return the sentence on why a strategy failed; ``fixed`` are sizes that were numbers."""
    start, error = STRATEGIES[strategy], failed.error
    if isinstance(error, NotRunningError) or not failed.why:
        return [failed.why] if failed.why else []
    if isinstance(error, ContradictedError) and 1 in error.shape.values():
        start = "these formulas are for the size of 1; those for 2 and more would be wrong there"
    elif fixed:
        start += f" with {', '.join(f'{name} = {size}' for name, size in fixed.items())}"
    return [f"{start}: {failed.why}"]


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
    """Return formulas of a class, module, function or name; a workload gives shape, dtype and mask.

    ``how`` are further arguments of :func:`attnprof.trace.request.lookup.target_of`.
    """
    if workload is not None:
        dtype, causal = workload.dtype, workload.causal or causal
    if dtype not in DTYPES:
        raise RequestError(f"unknown dtype '{dtype}': {closest(dtype, list(DTYPES))}")
    width = None if workload is None or isinstance(thing, str) else workload.d_model
    target = target_of(thing, causal=causal, dtype=dtype, width=width, **how)
    sizes = {} if workload is None else workload.by_symbol()
    shape = {name: size for name, size in sizes.items() if name in target.symbols}
    if phases is None:
        phases = ("forward", "backward")
        if workload is not None and workload.phase != "forward":
            phases = (workload.phase,)
    return derived(target, phases, {**shape, **(at or {})})


# -- numbers at one shape, where no strategy gives formulas ------------------------------
def _as_options(sizes: Sizes) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def at_one_shape(attempt: Attempt, fixed: Sizes) -> Forms:
    """Return numbers at the asked shape; CannotRunError if sizes are missing or the run fails.

    With numbers for the ``fixed`` sizes there are formulas in the other ones.
    """
    target, asked_sizes = attempt.target, attempt.asked_sizes
    why = "; ".join(dict.fromkeys(attempt.reasons))
    if not attempt.complete:
        sizes = {name: {**EVEN, **fixed, **asked_sizes}.get(name, 16) for name in target.symbols}
        free = _as_options({**fixed, **asked_sizes})
        advice = [f"type --at {free} for formulas in the other sizes"] if fixed else []
        if not isinstance(outcome(target, sizes, training=trains(attempt.phases)), Exception):
            advice += [f"type --at {_as_options(sizes)}, say, for numbers at one shape"]
        how = "; ".join(advice or ["give all sizes with --at for numbers at one shape"])
        square = "; if N has to be a square, type S**2 for it in --input" * ("sqrt(N)" in why)
        raise CannotRunError(f"{target.name}: no closed form found ({why}){square}; {how}")
    try:
        trace = count(target, asked_sizes, attempt.phases[0], A_LONG_RUN)
    except AttnprofError:
        raise
    except Exception as error:
        raise CannotRunError(
            f"{target.name}: no closed form found ({why}), and it cannot be counted at "
            f"{sizes_text(asked_sizes)}: {error_text(error)}"
        ) from error
    values = totals_by_phase(trace, attempt.phases)
    nothing: PhaseCounts = {phase: {} for phase in attempt.phases}
    no_reason = {phase: dict.fromkeys(QUANTITIES, "") for phase in attempt.phases}
    domain = {"holds": lambda sizes: sizes == asked_sizes, "domain": (sizes_text(asked_sizes),)}
    counts = SimpleNamespace(forms=nothing, trace=trace, withheld=no_reason, **domain)
    return attempt.phase_forms("counted", counts, [asked_sizes], [], values)
