"""Derive formulas next to special lengths, and extend them to these.

A model whose window is as long as the asked N takes another branch there than for other lengths.
Its formulas are derived one token above or below, and extended if a run at N agrees.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes, Target, hints_for
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.conditions import condition_text
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically
from attnprof.trace.solve.verification import NoFormulaError


def on_symbols(target: Target, phase: str, near: Mapping[str, int]) -> SymbolicRun:
    """Return one symbolic run of a model; another number of its layers was verified already."""
    verified = target.running(trusted=True, loops_in_blocks=True)
    return run_symbolically(verified, hints_for(target.symbols, near), (phase,))


def _sizes_near(
    target: Target, phase: str, target_sizes: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], SymbolicRun | PinnedError | None]]:
    """Yield sizes to derive formulas near, in turn, with the symbolic run there, or how it ended.

    The asked sizes come first. If the code compares N with that very length, lengths of a token
    more and less follow, unless it is a number of blocks that the code fixes: it would there, too.
    The asked sizes without a run come last.
    """
    near = {name: size for name, size in target_sizes.items() if size > 1}
    pinned: PinnedError | None = None
    for more in (0, 1, -1) if "N" in near else ():
        sizes = {**near, "N": near["N"] + more}
        try:
            run = on_symbols(target, phase, sizes)
        except PinnedError as error:
            pinned = pinned if more else error
            in_blocks = any(pin.args[0] != symbol("N") for pin in error.pins)
            if not more and target.mode.loops_in_blocks and in_blocks:
                yield near, pinned
            if any(map(_counts_blocks, error.pins)):
                break
        except (NoFormulaError, AttnprofError, TooLongError):
            if not more:
                break
        else:
            here = hints_for(target.symbols, near)
            if more < 0 and not _is_bounded(run, here):
                continue  # other turns of loops, or another rest of blocks
            yield sizes, run
            return
    yield near, pinned


def _counts_blocks(pin: Any) -> bool:
    """Return whether a condition fixes a number of blocks, as it does one token further, too."""
    import sympy

    rounded, number = pin.args
    quotient = rounded.as_coeff_Mul()[1]
    is_count = quotient.func in (sympy.floor, sympy.ceiling) and number.is_Integer
    return bool(is_count and abs(number) > 2)  # fewer are none or a single one at lengths nearby


def _is_bounded(run: SymbolicRun, sizes: Mapping[str, int]) -> bool:
    """Return whether a bound on N alone keeps these sizes out of a run's domain."""
    out = (condition for condition in run.guards.relations if not evaluate(condition, sizes))
    return {*map(condition_text, out)} <= {f"N {sign} {sizes['N']}" for sign in "<>"}


def derived_beside(
    target: Target, few: Target, phase: str, sizes: Mapping[str, int], *, by_module: bool = False
) -> tuple[PhaseForms, dict[str, int], SymbolicRun | None]:
    """Return formulas of a phase near the asked sizes, these sizes, the symbolic run there.

    That run is of ``few``, which is the target with fewer layers. ``by_module``: formulas of each
    module are asked for, and no peaks where these take further runs.
    """
    failed = list[CannotRunError]()
    counted = list[Any]()
    for near, ran in _sizes_near(few, phase, sizes):
        run = ran if isinstance(ran, SymbolicRun) else None
        how: dict[str, Any] = {"runs": True, "by_module": by_module}
        if isinstance(ran, PinnedError) and not (ran.refused or target.mode.loops_in_blocks):
            how["pinned"] = ran  # as it would be with more layers
        try:
            forms = derived(replace(target, step=target), (phase,), near, **how).phases[phase]
        except CannotRunError as error:
            failed.append(error)
        else:
            if forms.method != "counted":
                return forms, near, run
            counted.append((forms, near, run))
    if not counted:
        raise failed[0]
    return counted[0]  # type: ignore[no-any-return]


def reached(
    forms: PhaseForms,
    near: Mapping[str, int],
    known: SymbolicRun | None,
    sizes: Mapping[str, int],
    meets: Callable[[Sizes], bool],
) -> PhaseForms:
    """Return formulas derived ``near`` the asked sizes, extended to that length if they hold there.

    They do if a bound on N alone keeps it out, and a run there ``meets`` the formulas.
    """
    length, above_one = sizes.get("N"), {name: max(2, size) for name, size in sizes.items()}
    if known is None or near.get("N") in (None, length) or forms.holds(above_one):
        return forms
    if not _is_bounded(known, above_one) or not meets(above_one):
        return forms
    wider = {f"N {sign} {length}": f"N {sign}= {length}" for sign in "<>"}

    def holds(sizes: Sizes) -> bool:
        return forms.holds({**sizes, "N": near["N"]} if sizes["N"] == length else sizes)

    return replace(forms, domain=tuple(wider.get(x, x) for x in forms.domain), holds=holds)
