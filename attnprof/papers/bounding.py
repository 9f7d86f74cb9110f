"""Formulas by their values: at a shape, and whether one bounds the other as sizes grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any

from attnprof.trace.evaluating import evaluate

#: From the first to the second of these a bound's ratio may not rise by more than a tenth: a
#: logarithm rises by a third, the root of a size a thousandfold.
SMALL, LARGE = 2**30, 2**40
RISE = 1.1


def value(expression: Any, shape: Mapping[str, int]) -> int | float:
    """The expression at sizes: an int where it is whole, nan where it has no value."""
    try:
        found = evaluate(expression, shape)
        return int(found) if found == int(found) else float(found)
    except (ArithmeticError, ValueError, TypeError):  # 1/(N - 128) at 128, an overflow
        return nan


def bound_by_values(
    printed: Any, ours: Any, growing: Sequence[str], shapes: Sequence[Mapping[str, int]]
) -> tuple[bool, None, str]:
    """Whether ours stays below a multiple of what is printed up to 2**40, and that in words."""
    rises = [_rise(printed, ours, names, shapes[0]) for names in _paths(growing)]
    if any(isnan(rise) for rise in rises):
        return False, None, f"no values up to 2**40 tell how the two grow: {printed}"
    told = "by values up to 2**40, where terms do not tell"
    if not all(rise <= RISE for rise in rises):
        return False, None, f"ours grows faster than what is printed, {told}"
    tight = any(rise >= 1 / RISE for rise in rises)
    return True, None, told if tight else f"a bound that is not tight, {told}"


def _paths(growing: Sequence[str]) -> Iterator[Sequence[str]]:
    """Each size by itself, and all together."""
    yield from ([name] for name in growing)
    if len(growing) > 1:
        yield growing


def _rise(printed: Any, ours: Any, names: Sequence[str], shape: Mapping[str, int]) -> float:
    """How much the ratio of ours to printed rises from the small to the large sizes."""
    ratios = []
    for size in (SMALL, LARGE):
        sizes = {**shape, **dict.fromkeys(names, size)}
        below = value(printed, sizes)
        ratios.append(value(ours, sizes) / below if below else nan)
    return ratios[1] / ratios[0] if ratios[0] else nan
