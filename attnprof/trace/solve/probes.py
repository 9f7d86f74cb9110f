"""Checks of the domain of mixed formulas, by runs in which one of the numbers is far larger."""

import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.budget import OutOfBudgetError, Runs, differences
from attnprof.trace.solve.shapes import shapes_in
from attnprof.trace.solve.symbolic import SymbolicRun

if TYPE_CHECKING:
    from attnprof.trace.solve.mixed import Mixed

#: Shapes at which formulas and a symbolic run are compared; a number far above small ones.
_DRAWN, _FAR = 60, 9
#: Operations of a run that looks for arrays, and bytes that are many.
_SHORT, _BYTES = 400, 2**21


def holds_beyond(found: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether formulas hold at a smaller size also if another number is far larger.

    They are compared with a symbolic run there; where there is none, they are taken to hold.
    """
    blocks = found.blocks
    base = {**found.least, name: size}
    if blocks:
        base[blocks.name] = found.turns + (not found.divided)
    for other in (x for x in base if x != name):
        counts = {**base, other: _far_number(found, other, base[other])}
        with suppress(OutOfBudgetError):
            run = found.plan.at(counts, runs.phases, ragged=False)
            if isinstance(run, SymbolicRun) and not _agrees(found, run, counts):
                return False
    return True


def _far_number(found: "Mixed", name: str, size: int) -> int:
    """Return a far larger number, in steps of the numbers that the formulas are for."""
    step = found.strides.get(name, (1, 0))[0]
    return size + -(-max(size + 1, _FAR - size) // step) * step


def _agrees(found: "Mixed", run: SymbolicRun, counts: Mapping[str, int]) -> bool:
    blocks = found.blocks
    plain = {x: n for x, n in counts.items() if not blocks or x != blocks.name}

    def placed(sizes: Sizes) -> dict[str, int]:
        own = {**sizes, **plain}
        return own | ({blocks.name: counts[blocks.name] * blocks.at(own)} if blocks else {})

    shapes = map(placed, shapes_in(found.near(**plain), lambda _: True))
    inside = (x for x in shapes if run.holds(x) and found.conditions.holds(x))
    return not any(
        differences(found.forms, run.numbers(shape), shape) for shape in islice(inside, _DRAWN)
    )


def makes_arrays(found: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether code makes large arrays at a size: outside of torch, so with real values."""
    shape = found.near(**{name: size})
    if found.operations(shape) > _SHORT:
        return False
    tracemalloc.start()
    try:
        trace = runs.tried(shape)
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return trace is not None and largest > _BYTES
