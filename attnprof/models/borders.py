"""Derive formulas next to special lengths, and extend them to these.

A model whose window is as long as the asked N takes another branch there than for other lengths.
Its formulas are derived one token above or below, and extended if a run at N agrees.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes, Target, hints_for
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.conditions import condition_text
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically
from attnprof.trace.solve.verification import NoFormulaError


def on_symbols(target: Target, phase: str, near: Mapping[str, int]) -> SymbolicRun:
    """Return one symbolic run of a model, which is not compared with other runs."""
    verified = target.running(trusted=True, loops_in_blocks=True)
    return run_symbolically(verified, hints_for(target.symbols, near), (phase,))


def _sizes_near(
    target: Target, phase: str, target_sizes: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], SymbolicRun | PinnedError | None]]:
    """Yield sizes to derive formulas at, with the symbolic run there, or the error that ended it.

    The asked sizes come first. If the code compares N with that very length, the lengths one token
    above and below follow; not if it compares a number of blocks, which is the same at all three.
    The asked sizes without a run come last.
    """
    near = {name: size for name, size in target_sizes.items() if size > 1}
    pinned: PinnedError | None = None
    for step in (0, 1, -1) if "N" in near else ():
        sizes = {**near, "N": near["N"] + step}
        try:
            run = on_symbols(target, phase, sizes)
        except PinnedError as error:
            pinned = pinned if step else error
            is_rounded = any(pin.args[0] != symbol("N") for pin in error.pins)
            if not step and target.mode.loops_in_blocks and is_rounded:
                yield near, pinned
            if any(map(_counts_blocks, error.pins)):
                break
        except (NoFormulaError, AttnprofError, TooLongError):
            if not step:
                break
        else:
            if step < 0 and not _is_bounded(run, hints_for(target.symbols, near)):
                continue  # loops have fewer iterations, or the last block is shorter
            yield sizes, run
            return
    yield near, pinned


def _counts_blocks(pin: Any) -> bool:
    """Return whether a condition compares a number of blocks with a constant above 2."""
    import sympy

    rounded, number = pin.args
    quotient = rounded.as_coeff_Mul()[1]
    is_count = quotient.func in (sympy.floor, sympy.ceiling) and number.is_Integer
    return bool(is_count and abs(number) > 2)  # fewer are none or a single one at lengths nearby


def _is_bounded(run: SymbolicRun, sizes: Mapping[str, int]) -> bool:
    """Return whether a bound on N alone keeps these sizes out of a run's domain."""
    out = (condition for condition in run.guards.relations if not evaluate(condition, sizes))
    return {*map(condition_text, out)} <= {f"N {sign} {sizes['N']}" for sign in "<>"}


def _first_run(
    target: Target, phase: str, near: Mapping[str, int]
) -> SymbolicRun | Exception | None:
    """Return the outcome of the symbolic run that formulas are derived from at first.

    None for code that is run otherwise: with marked loops, or experts that are chosen evenly.
    """
    if target.mode.loops_in_blocks or target.mode.routed or target.mode.real:
        return None
    try:
        return run_symbolically(target, hints_for(target.symbols, near), (phase,))
    except (NoFormulaError, AttnprofError, TooLongError) as error:
        return error


def derived_near(
    target: Target, few: Target, phase: str, sizes: Mapping[str, int], *, by_module: bool = False
) -> tuple[PhaseForms, dict[str, int], SymbolicRun | None]:
    """Return formulas of a phase near the asked sizes, these sizes, the symbolic run there.

    That run is of ``few``, which is the target with fewer layers. ``by_module``: formulas of each
    module are asked for, and no peaks where these take further runs.
    """
    errors = list[CannotRunError]()
    counted = list[Any]()
    asked = {name: size for name, size in sizes.items() if size > 1}
    first = _first_run(target, phase, asked)
    tries: Iterable[Any] = _sizes_near(few, phase, sizes)
    if first is not None and not isinstance(first, PinnedError):
        tries = [(asked, first)]
    for near, outcome in tries:
        run = outcome if isinstance(outcome, SymbolicRun) else None
        options: dict[str, Any] = {"runs": True, "by_module": by_module}
        options["symbolic"] = first if near == asked else None
        pinned = isinstance(outcome, PinnedError) and not outcome.refused
        if pinned and not target.mode.loops_in_blocks:
            options["pinned"] = outcome  # a run with more layers would end the same way
        try:
            forms = derived(replace(target, step=target), (phase,), near, **options).phases[phase]
        except CannotRunError as error:
            errors.append(error)
        else:
            if forms.method != "counted":
                return forms, near, run
            counted.append((forms, near, run))
    if not counted:
        raise errors[0]
    return counted[0]  # type: ignore[no-any-return]


def extended(
    forms: PhaseForms,
    near: Mapping[str, int],
    run: SymbolicRun | None,
    sizes: Mapping[str, int],
    agrees: Callable[[Sizes], bool],
) -> PhaseForms:
    """Return formulas of a ``run`` near the asked sizes, extended to the asked length if possible.

    It is if a bound on N alone excludes that length, and a run there ``agrees`` with the formulas.
    """
    length, above_one = sizes.get("N"), {name: max(2, size) for name, size in sizes.items()}
    if run is None or near.get("N") in (None, length) or forms.holds(above_one):
        return forms
    if not _is_bounded(run, above_one) or not agrees(above_one):
        return forms
    wider = {f"N {sign} {length}": f"N {sign}= {length}" for sign in "<>"}

    def holds(sizes: Sizes) -> bool:
        return forms.holds({**sizes, "N": near["N"]} if sizes["N"] == length else sizes)

    return replace(forms, domain=tuple(wider.get(x, x) for x in forms.domain), holds=holds)
