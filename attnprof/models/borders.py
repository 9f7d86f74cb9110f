"""Lengths that are a case of their own, as just a window's: formulas are derived beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Target, hints_for
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.budget import NoFormulaError
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

    Those are the asked ones, if above 1; with a token more where the code makes that length, and
    not the next one, a number. Mechanisms of ours have formulas at such lengths, too.
    """
    near = {name: size for name, size in asked.items() if size > 1}
    for sizes in (near, {**near, "N": near["N"] + 1}) if "N" in near else ():
        try:
            run = on_symbols(target, phase, sizes)
        except PinnedError:
            if target.in_blocks and sizes is near:
                yield near, None
            continue
        except (NoFormulaError, AttnprofError, TooLongError):
            break
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
