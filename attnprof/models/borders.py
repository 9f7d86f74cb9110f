"""Lengths that are a case of their own, as just a window's: formulas are derived beside them."""

from collections.abc import Mapping
from dataclasses import replace

from attnprof.errors import AttnprofError
from attnprof.trace.request.target import Target, hints_for
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.budget import NoFormulaError
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically


def on_symbols(target: Target, phase: str, near: Mapping[str, int]) -> SymbolicRun:
    """One run on symbolic sizes, of a model that another of its kind was derived for."""
    return run_symbolically(replace(target, own=True), hints_for(target.symbols, near), (phase,))


def beside_borders(
    target: Target, phase: str, asked: Mapping[str, int]
) -> tuple[dict[str, int], SymbolicRun | None]:
    """Sizes to derive formulas near, and the run on symbols there, where one was enough.

    Those are the asked ones, if above 1; with a token more where the code makes that length, and
    not the next one, a number.
    """
    near = {name: size for name, size in asked.items() if size > 1}
    for sizes in (near, {**near, "N": near["N"] + 1}) if "N" in near else ():
        try:
            return sizes, on_symbols(target, phase, sizes)
        except PinnedError:
            continue
        except (NoFormulaError, AttnprofError, TooLongError):
            break
    return near, None
