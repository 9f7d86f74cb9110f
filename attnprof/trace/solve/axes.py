"""Find the numbers of one size along which the cost is a polynomial: their begin and their step.

Four consecutive lengths may fit a polynomial by accident, as where code cuts a length into four
parts: 4, 9, 12, 13 are -N**2 + 14*N - 36 at N = 4 to 7. So a larger number has to fit as well;
else a later begin and larger steps are tried first.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from attnprof.trace.solve.budget import NoFormulaError, OutOfBudgetError
from attnprof.trace.solve.lattice import Ladder, Row, steps_of
from attnprof.trace.solve.plan import FIRST
from attnprof.trace.solve.symbolic import SymbolicRun

if TYPE_CHECKING:
    from attnprof.trace.solve.mixture import Mixture

#: Most runs along one size; runs made after counts fit, in search of numbers at which peaks do.
_ALONG, _PATIENCE = 9, 2
#: Steps beyond the last number at which one more run has to fit; of numbers alone, twice as far.
_FURTHER = 5
#: Steps that are tried last where all sizes are numbers: classes by 3 or 5, and long blocks.
_RARE_STEPS = 60, 256
#: Operations of all runs up to which twice as many runs are made in search of peaks that fit.
_ENOUGH = 6_000
#: Longest period that is tried: of layers of kinds A, B, B, A, B, B it is 3.
_PERIOD = 6

#: Numbers of a size at which runs fit, and the rows of values there, by name.
Axis = tuple[Ladder, Mapping[Any, Row]]


def axis_of(mixture: "Mixture", name: str) -> Axis:
    """Return the first numbers of a size from which on all counts are polynomials in it.

    Raises :class:`NoFormulaError` if there are none.
    """
    if kinds := mixture.plan.kinds.get(name):
        ladder = Ladder.minimal(mixture.base[name], kinds)
        runs = [run for x in ladder.xs if (run := mixture.run({**mixture.base, name: x}))]
        if len(runs) == len(ladder.xs) and (axis := mixture.fit(ladder, runs)[0]):
            return axis
    is_number = mixture.plan.blocks[name] == 1
    steps = steps_of(name) if is_number else (1,)
    steps += _RARE_STEPS if mixture.plan.concrete else ()
    first = next(filter(None, (_axis_by_step(mixture, name, step) for step in steps)), None)
    if first is None:
        of = name if mixture.plan.concrete else f"blocks of {name}"
        # with a number for this size, the other sizes may be symbols
        why = f"the cost is no polynomial in {of}"
        raise NoFormulaError(why, name if mixture.plan.concrete else "")
    checked = name in FIRST or mixture.plan.concrete
    if is_number and checked and not _fits_further(mixture, name, first[0]):
        later = first[0].xs[-1] + 1 - mixture.base[name]
        with suppress(OutOfBudgetError):
            for step, more in chain([(1, later)], ((step, 0) for step in steps[1:])):
                found = _axis_by_step(mixture, name, step, more)
                if found and _fits_further(mixture, name, found[0]):
                    return found
    return first


def _fits_further(mixture: "Mixture", name: str, ladder: Ladder) -> bool:
    """Return whether a larger number fits as well; True if the code does not run there."""
    step = ladder.xs[1] - ladder.xs[0]
    steps = ladder.xs[0] // step if mixture.plan.concrete else 0  # a number of a class is large
    far = ladder.xs[-1] + max(_FURTHER, steps) * step
    with suppress(OutOfBudgetError):
        runs = [mixture.run({**mixture.base, name: x}) for x in (*ladder.xs, far)]
        known = [run for run in runs if run is not None]
        longer = Ladder((*ladder.xs, far), ladder.kinds)
        return len(known) < len(runs) or mixture.fit(longer, known)[0] is not None
    return True


def _axis_by_step(mixture: "Mixture", name: str, step: int, later: int = 0) -> Axis | None:
    """Return numbers a step apart that fit, from the base plus ``later`` on; None if none do."""
    best: Axis | None = None
    xs, runs = list[int](), list[SymbolicRun]()
    start = later + (mixture.start if mixture.plan.blocks[name] != 1 else mixture.base[name])
    most = _PERIOD if step == mixture.plan.blocks[name] == 1 else 1
    place = since = patience = 0
    while place < _ALONG if best is None else place - since < patience:
        x = start + place * step
        place += 1
        try:
            run = mixture.run({**mixture.base, name: x})
        except OutOfBudgetError:
            if best:
                break
            raise
        if run is None:
            if xs:
                break
            continue
        xs.append(x)
        runs.append(run)
        again, smooth = _fit_ends(mixture, xs, runs, most)
        if again and smooth:
            return again
        if best is None:
            best, since = again, place
        if best:
            patience = _PATIENCE * (1 + (mixture.plan.spent < _ENOUGH)) * len(best[0].kinds)
    return best


def _fit_ends(
    mixture: "Mixture", xs: list[int], runs: list[SymbolicRun], most: int
) -> tuple[Axis | None, bool]:
    """Return the longest end of ``xs`` that fits with a period of ``most`` or less.

    Also returns whether peaks fit along it.
    """
    best = None
    for first in range(len(xs) - 2):
        for period in range(1, min(most, len(xs) - first - 3) + 1):
            axis, smooth = mixture.fit(Ladder.periodic(xs[first:], period), runs[first:])
            if axis and smooth:
                return axis, True
            best = best or axis
    return best, False
