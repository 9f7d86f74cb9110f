"""In which order an operation goes through the memory of its tensors."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any


def spread_strides(x: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a tensor spread over a shape; None where it does not fit."""
    missing = len(shape) - x.dim()
    if missing < 0 or any(a not in (1, b) for a, b in zip(x.shape, shape[missing:], strict=True)):
        return None
    strides = (0 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (*[0] * missing, *strides)


def loops(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return how often the innermost loop starts, and how far entries lie apart in it at most.

    Dimensions that every tensor goes through without a jump are one loop, as in torch's iterator;
    ``strides`` are those of each tensor, the result first.
    """
    if not strides:
        return 1, 1
    order = sorted((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: -strides[0][i])
    if not order:
        return 1, 1
    inner = shape[order[-1]]
    for outer, next_one in _pairs_from_inside(order):
        if any(strided[outer] != strided[next_one] * shape[next_one] for strided in strides):
            break
        inner *= shape[outer]
    return max(1, prod(shape) // inner), max(strided[order[-1]] for strided in strides)


def _pairs_from_inside(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    return ((outer, inner) for inner, outer in pairwise(reversed(order)))
