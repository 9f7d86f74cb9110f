"""Extend the ranges of mixed formulas upwards, by concrete runs at larger sizes."""

import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice, product
from typing import TYPE_CHECKING

from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.budget import (
    A_LONG_RUN,
    NoFormulaError,
    OutOfBudgetError,
    Runs,
    differences,
)
from attnprof.trace.solve.lattice import of_every_kind
from attnprof.trace.solve.plan import FIRST
from attnprof.trace.solve.shapes import shapes_in, telling_sizes
from attnprof.trace.solve.symbolic import SymbolicRun

if TYPE_CHECKING:
    from attnprof.trace.solve.mixed import Mixed

#: Operations of a run that verifies formulas, and of one that shows how far they hold.
SHORT, LONG = 400, 4_000
#: How many times as many turns of a loop as the runs behind formulas had are tried.
_TIMES = 2
#: Sizes at which a range is tried: of long runs, at least and at most; operations of all of them.
_CHECKS, _ALL_CHECKS = (3, 5, 20), 2_500
#: A size at which large arrays that code makes outside of torch show.
_REAL = 2048
#: Most steps of a search for a border.
_STEPS = 12
#: How often ranges are halved until formulas hold at all corners; why peaks may hold at none.
_HALVES, _MOVING = 6, "which moment is the worst changes inside the range"
#: Most layers that are tried, and most operations of such a run.
_LAYERS, _DEEP = 64, 8_500


def extend_upwards(formulas: "Mixed", name: str, runs: Runs) -> None:
    """Extend a size's range to the largest number that runs confirm; record a border before it."""
    stride, rest = formulas.strides.get(name, (1, 0))
    if formulas.blocks and name == formulas.blocks.name and formulas.divided:
        stride, rest = formulas.blocks.at(formulas.near()), 0
    first = low = (least := formulas.near()[name]) + (rest - least) % stride
    high, bad = _furthest(formulas, name, low, stride, runs), None
    while high > low and not formulas.fits(formulas.near(**{name: high}), runs):
        bad, high = high, low + (high - low) // 2 // stride * stride
    low = max(low, high)
    for _ in range(_STEPS):
        middle = low + ((bad or low) - low) // 2 // stride * stride
        if middle in (low, bad):
            break
        if formulas.fits(formulas.near(**{name: middle}), runs):
            low = middle
        else:
            bad = middle
    if low == first and bad:
        raise NoFormulaError(f"the formulas hold for no other {name} than {first}")
    if bad and runs.tried(formulas.near(**{name: bad})):
        formulas.borders.append(f"the code branches between {name} = {low} and {bad}")
        formulas.branches[name] = bad
    _end_at(formulas, name, low)
    _check_all_over(formulas, name, range(first, low + 1, stride), runs)


def check_large_corner(formulas: "Mixed", runs: Runs) -> None:
    """Withhold formulas that a run contradicts in which all numbers are large."""
    for part in range(_STEPS if len(formulas.least) > 1 else 0):
        share = 1 - part / _STEPS
        sizes = {x: int(n * (formulas.ends[x] / n) ** share) for x, n in formulas.least.items()}
        for name, (stride, rest) in formulas.strides.items():
            sizes[name] -= (sizes[name] - rest) % stride
        if formulas.blocks:
            blocks = max(formulas.turns + 1, sizes[formulas.blocks.name])
            one = formulas.blocks.at(formulas.near(**{**sizes, formulas.blocks.name: blocks}))
            counted = formulas.unit(formulas.blocks.name, formulas.near()) > 1
            whole = blocks if counted else -(-blocks // one)
            sizes[formulas.blocks.name] = whole * one
        shape = formulas.near(**sizes)
        if formulas.holds(shape) and formulas.operations(shape) <= LONG:
            if not formulas.fits(shape, runs) and (trace := runs.tried(shape)):
                formulas.hold(trace, shape)
            return


def narrow_to_corners(formulas: "Mixed", runs: Runs) -> None:
    """Halve ranges until formulas hold at all their corners; if need be without peaks.

    Borders between branches may move with other sizes. Raises :class:`NoFormulaError` if hardly any
    size is left.
    """
    ends = dict(formulas.ends)
    for peaks in (True, False):
        formulas.ends.update(ends)
        for phase, forms in formulas.forms.items() if not peaks else ():
            if forms.pop("peak_bytes", None) is not None:
                formulas.withheld.setdefault(phase, {})["peak_bytes"] = _MOVING
        for _ in range(_HALVES):
            sides = ({formulas.least[x], formulas.ends[x]} for x in formulas.least)
            corners = [dict(zip(formulas.least, x, strict=True)) for x in product(*sides)]
            if all(formulas.fits(x, runs) or runs.tried(x) is None for x in corners):
                return
            for name, end in formulas.ends.items():
                least, step = formulas.least[name], formulas.strides.get(name, (1, 0))[0]
                formulas.ends[name] = least + (end - least) // 2 // step * step
    raise NoFormulaError("the polynomials hold nowhere but where they were fitted")


def _end_at(formulas: "Mixed", name: str, size: int) -> None:
    """End a range at a size, counted in blocks if their length is one: none larger was tried."""
    formulas.ends[name] = size // formulas.unit(name, formulas.near())


def _furthest(formulas: "Mixed", name: str, low: int, stride: int, runs: Runs) -> int:
    """Return the largest size to try: of layers as many as models have, or as are asked for."""

    def long(size: int, most: float = LONG) -> bool:
        return formulas.operations(formulas.near(**{name: size})) > most

    end = high = formulas.ends[name] - (formulas.ends[name] - low) % stride
    if high > _REAL > low and makes_arrays(formulas, name, _REAL, runs):
        high = low + (_REAL - low) // stride * stride
    while high > low and long(high):
        high = low + (high - low) // 2 // stride * stride
    if high == end:
        return high
    further = low + _TIMES * _largest_fitted(formulas, name) // stride * stride
    if high < further <= end and not long(further, A_LONG_RUN // 2):
        high = further
    if name in FIRST:
        return high
    most = min(_DEEP * (1 + bool(runs.swift)), runs.left / 9)
    deep = (x for x in range(_LAYERS, high, -1) if (x - low) % stride == 0)
    high = next((x for x in deep if not long(x, most)), high)
    asked = int(formulas.plan.hints[name])
    fits = high < asked <= end and (asked - low) % stride == 0
    return asked if fits and not long(asked, A_LONG_RUN) else high


def _shape_with(formulas: "Mixed", others: Sizes, name: str, size: int) -> dict[str, int]:
    """Return a shape with these sizes and small others; a length keeps its number of blocks."""
    near = formulas.near(**others)
    usual, unit = formulas.unit(name, formulas.near()), formulas.unit(name, near)
    return {**near, name: size // usual * unit + min(size % usual, unit - 1) if unit > 1 else size}


def _largest_fitted(formulas: "Mixed", name: str) -> int:
    """Return the largest number, or length in tokens, of the runs behind the formulas."""
    most = max((point[name] for point in formulas.points), default=0)
    counted = formulas.blocks if formulas.blocks and formulas.blocks.name == name else None
    return most * (counted.at(formulas.near()) if counted else 1)


def _check_all_over(formulas: "Mixed", name: str, sizes: range, runs: Runs) -> None:
    """Try sizes all over a range, where code likes to branch; end it before one that differs."""
    longest = formulas.operations(formulas.near(**{name: sizes[-1]}))
    few, least, most = _CHECKS
    least = few if longest > LONG else least
    many = max(least, min(most, int(_ALL_CHECKS / max(longest, 1))))
    telling = telling_sizes(sizes, sizes[0], many)
    if name not in FIRST and longest > SHORT:  # layers of every kind; the most of them are seen
        telling = of_every_kind(sizes, formulas.kinds.get(name, (0,)))
    for place, size in enumerate(sorted(telling)):
        shape = _shape_with(formulas, formulas.others[place % len(formulas.others)], name, size)
        if formulas.holds(shape) and not formulas.fits(shape, runs):
            last = max(x for x in sizes if x < size) if size > sizes[0] else 0
            if last <= sizes[0] + sizes.step:
                raise NoFormulaError(f"the formulas do not hold at {name} = {size}")
            formulas.borders.append(f"the code branches at {name} = {size}")
            formulas.branches[name] = size
            _end_at(formulas, name, last)
            return


# -- checks with one number far larger ---------------------------------------------------
#: Shapes at which formulas and a symbolic run are compared; a number far above small ones.
_DRAWN, _FAR = 60, 9
#: Bytes outside of torch from which on a run makes large arrays.
_BYTES = 2**21


def holds_beyond(formulas: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether formulas hold at a smaller size also if another number is far larger.

    They are compared with a symbolic run there; where there is none, they are taken to hold.
    """
    blocks = formulas.blocks
    base = {**formulas.least, name: size}
    if blocks:
        base[blocks.name] = formulas.turns + (not formulas.divided)
    for other in (x for x in base if x != name):
        counts = {**base, other: _far_number(formulas, other, base[other])}
        with suppress(OutOfBudgetError):
            run = formulas.plan.at(counts, runs.phases, ragged=False)
            if isinstance(run, SymbolicRun) and not _agrees(formulas, run, counts):
                return False
    return True


def _far_number(formulas: "Mixed", name: str, size: int) -> int:
    """Return a far larger number, in steps of the numbers that the formulas are for."""
    step = formulas.strides.get(name, (1, 0))[0]
    return size + -(-max(size + 1, _FAR - size) // step) * step


def _agrees(formulas: "Mixed", run: SymbolicRun, counts: Mapping[str, int]) -> bool:
    blocks = formulas.blocks
    plain = {x: n for x, n in counts.items() if not blocks or x != blocks.name}

    def placed(sizes: Sizes) -> dict[str, int]:
        shape = {**sizes, **plain}
        return shape | ({blocks.name: counts[blocks.name] * blocks.at(shape)} if blocks else {})

    shapes = map(placed, shapes_in(formulas.near(**plain), lambda _: True))
    inside = (x for x in shapes if run.holds(x) and formulas.conditions.holds(x))
    return not any(
        differences(formulas.forms, run.numbers(shape), shape) for shape in islice(inside, _DRAWN)
    )


def makes_arrays(formulas: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether code makes large arrays at a size: outside of torch, so with real values."""
    shape = formulas.near(**{name: size})
    if formulas.operations(shape) > SHORT:
        return False
    tracemalloc.start()
    try:
        trace = runs.tried(shape)
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return trace is not None and largest > _BYTES
