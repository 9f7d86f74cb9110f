"""Fourier transforms, counted as radix 2 whatever the library does.

A complex transform of F points has L = log2 F levels (rounded up) of F/2 butterflies, each of 4
multiplications and 6 additions; one between real points and half a spectrum is half of that. The
factor of a normalisation is taken to be part of the last level.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch

from attnprof.costs import maximum
from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import Layout, collapses, layout
from attnprof.trace.rules.table import NOTHING, A, Counts, M, rules
from attnprof.trace.rules.workspaces import workspaces
from attnprof.trace.sizes import levels, nbytes, numel, product, size_of


def _complex(shape: Any, dims: Any) -> Counts:
    """Transforms along every dimension, one after another."""
    deep: Size = sum((levels(size_of(shape[dim])) for dim in dims), start=0)
    return (2 * M + 3 * A) * product(shape) * deep


def _real(tensor: Any, dim: int) -> Counts:
    """Half of the butterflies: 3/2 additions a point and level, rounded down."""
    points = numel(tensor)
    return (M * points + A * (points + _halved(tensor, points))) * levels(
        size_of(tensor.shape[dim])
    )


def _halved(tensor: Any, points: Size) -> Size:
    """Points // 2, by torch's own arithmetic of sizes, which knows that they are whole."""
    if isinstance(points, int):
        return points // 2
    if any(size_of(size // 2) * 2 == size_of(size) for size in tensor.shape):
        return points / 2
    return size_of(tensor.numel() // 2)


def _to_spectrum(out: Any, call: Any) -> Counts:
    """The last dimension from real points; the others over the spectrum that is computed."""
    *others, last = call.dim
    shape = list(out.shape)
    if not call.onesided:
        shape[last] = call.self.shape[last] // 2 + 1
    return _real(call.self, last) + (_complex(shape, others) if others else NOTHING)


def _from_spectrum(out: Any, call: Any) -> Counts:
    *others, last = call.dim
    return _real(out, last) + (_complex(call.self.shape, others) if others else NOTHING)


def _copied(a: Any, dims: Any) -> Size:
    """The library transforms a list of lines: other layouts become one first (``_exec_fft``)."""
    return 0 if _is_list(layout(a), dims) else nbytes(a)


def _inverse(out: Any, call: Any) -> Size:
    """Of several dimensions the last is transformed last, from the others' result."""
    a, (*others, last) = call.self, call.dim
    if not others:
        return _copied(a, [last])
    between = torch.ops.aten._fft_c2c(a, others, 0, False)
    return nbytes(a) + maximum(_copied(between, [last]), _copied(a, others) - nbytes(out))


def _is_list(dims: Layout, transformed: Any) -> bool:
    """Whether all other dimensions, in the order of their strides, can be seen as one."""
    inside = {dim % len(dims) for dim in transformed}
    rest = [pair for i, pair in enumerate(dims) if i not in inside]
    return any(collapses(list(order)) for order in permutations(rest))


rules(
    {
        "_fft_c2c": lambda _, c: _complex(c.self.shape, c.dim),
        "_fft_r2c": _to_spectrum,
        "_fft_c2r": _from_spectrum,
    }
)
workspaces({"_fft_r2c _fft_c2c": lambda _, c: _copied(c.self, c.dim), "_fft_c2r": _inverse})
