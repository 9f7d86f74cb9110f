"""Lengths that are a case of their own, as just a window's: formulas are derived beside them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Target, hints_for
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.budget import NoFormulaError
from attnprof.trace.solve.conditions import condition_text
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically


def on_symbols(target: Target, phase: str, near: Mapping[str, int]) -> SymbolicRun:
    """One run on symbolic sizes, of a model that another of its kind was derived for."""
    own = replace(target, own=True, in_blocks=True)
    return run_symbolically(own, hints_for(target.symbols, near), (phase,))


def _beside_borders(
    target: Target, phase: str, asked: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], SymbolicRun | None]]:
    """Sizes to derive formulas near, in turn, and the run on symbols there, if one was enough.

    Those are the asked ones, if above 1; with a token more, or less, where the code makes that
    length, and not the other one, a number. Mechanisms of ours have formulas where it makes one of
    blocks of a length, too.
    """
    near = {name: size for name, size in asked.items() if size > 1}
    for more in (0, 1, -1) if "N" in near else ():
        sizes = {**near, "N": near["N"] + more}
        try:
            run = on_symbols(target, phase, sizes)
        except PinnedError as error:
            in_blocks = any(pin.args[0] != symbol("N") for pin in error.pins)
            if not more and target.in_blocks and in_blocks:
                yield near, None
        except (NoFormulaError, AttnprofError, TooLongError):
            if not more:
                break
        else:
            yield sizes, run
            return
    yield near, None


def derived_beside(
    target: Target, few: Target, phase: str, asked: Mapping[str, int]
) -> tuple[PhaseForms, dict[str, int], SymbolicRun | None]:
    """Formulas of a phase near the asked sizes, where those are, and the run on symbols there.

    That run is of ``few``, which is the target with fewer layers.
    """
    failed = list[CannotRunError]()
    counted = list[Any]()
    for near, run in _beside_borders(few, phase, asked):
        try:
            found = derived(replace(target, step=target), (phase,), near, runs=True).phases[phase]
        except CannotRunError as error:
            failed.append(error)
        else:
            if found.method != "counted":
                return found, near, run
            counted.append((found, near, run))
    if not counted:
        raise failed[0]
    return counted[0]  # type: ignore[no-any-return]


def reaching(
    domain: Sequence[str], known: SymbolicRun, sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Where formulas hold that hold at these sizes, too; None where more than a bound says not."""
    out = [condition for condition in known.guards.relations if not evaluate(condition, sizes)]
    told = {
        text: text.replace(" < ", " <= ").replace(" > ", " >= ")
        for text in map(condition_text, out)
    }
    bounds = {f"N {sign} {sizes['N']}" for sign in "<>"}
    return tuple(told.get(text, text) for text in domain) if {*told} <= bounds else None
