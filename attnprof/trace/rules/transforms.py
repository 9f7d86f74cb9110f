"""Fourier transforms, counted as radix 2 whatever the library does.

A complex transform of F points has L = log2 F levels (rounded up) of F/2 butterflies, each of 4
multiplications and 6 additions; one between real points and half a spectrum is half of that. The
factor of a normalisation is taken to be part of the last level.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import Layout, collapses, larger, layout
from attnprof.trace.rules.table import A, Counts, M, rule, summed
from attnprof.trace.rules.workspaces import workspace
from attnprof.trace.sizes import levels, nbytes, numel, size_of


def _complex(tensor: Any, dims: Any) -> Counts:
    """Transforms along every dimension, one after another."""
    deep: Size = sum((levels(size_of(tensor.shape[dim])) for dim in dims), start=0)
    return {M: 2 * numel(tensor) * deep, A: 3 * numel(tensor) * deep}


def _real(tensor: Any, dim: int) -> Counts:
    """Half of the butterflies: 3/2 additions a point and level, rounded down."""
    deep = levels(size_of(tensor.shape[dim]))
    points = numel(tensor)
    return {M: points * deep, A: (points + _halved(tensor, points)) * deep}


def _halved(tensor: Any, points: Size) -> Size:
    """Points // 2, by torch's own arithmetic of sizes, which knows that they are whole."""
    if isinstance(points, int):
        return points // 2
    even = [size for size in tensor.shape if size_of(size // 2) * 2 == size_of(size)]
    if even:
        return points / 2
    total = tensor.numel()
    return size_of(total // 2)


@rule("_fft_c2c")
def _transform(_out: Any, a: Any, dims: Any, *_rest: Any) -> Counts:
    return _complex(a, dims)


@rule("_fft_r2c")
def _to_spectrum(out: Any, a: Any, dims: Any, _norm: int, onesided: bool) -> Counts:
    """The last dimension from real points; the others over the spectrum that is computed."""
    others = _complex(_half_spectrum(out, a, dims[-1], onesided), dims[:-1]) if dims[1:] else {}
    return summed(_real(a, dims[-1]), others)


class _Shape:
    """Sizes of a tensor that nobody makes."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


def _half_spectrum(out: Any, a: Any, dim: int, onesided: bool) -> Any:
    if onesided:
        return out
    shape = list(a.shape)
    shape[dim] = shape[dim] // 2 + 1
    return _Shape(shape)


@rule("_fft_c2r")
def _from_spectrum(out: Any, a: Any, dims: Any, *_rest: Any) -> Counts:
    return summed(_complex(a, dims[:-1]) if dims[1:] else {}, _real(out, dims[-1]))


@workspace("_fft_r2c _fft_c2c")
def _transform_inside(_out: Any, a: Any, dims: Any, *_rest: Any) -> Size:
    """The library transforms a list of lines: other layouts become one first (``_exec_fft``)."""
    return 0 if _is_list(layout(a), dims) else nbytes(a)


@workspace("_fft_c2r")
def _inverse(out: Any, a: Any, dims: Any, *_rest: Any) -> Size:
    """Of several dimensions the last is transformed last, from the others' result."""
    if len(dims) == 1:
        return _transform_inside(out, a, dims)
    import torch

    between = torch.ops.aten._fft_c2c(a, list(dims[:-1]), 0, False)  # noqa: SLF001 - for its layout
    last = _transform_inside(out, between, dims[-1:])
    first = _transform_inside(between, a, dims[:-1])
    return nbytes(a) + larger(last, first - nbytes(out))


def _is_list(dims: Layout, transformed: Any) -> bool:
    """Whether all other dimensions, in the order of their strides, can be seen as one."""
    inside = {dim % len(dims) for dim in transformed}
    rest = [pair for i, pair in enumerate(dims) if i not in inside]
    return any(collapses(list(order)) for order in permutations(rest))
