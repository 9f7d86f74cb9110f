"""What Fourier transforms and convolutions take for themselves on the CPU."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import Layout, collapses, larger, layout
from attnprof.trace.rules.workspaces import workspace
from attnprof.trace.sizes import nbytes


@workspace("_fft_r2c _fft_c2c")
def _transform(_out: Any, a: Any, dims: Any, *_rest: Any) -> Size:
    """The library transforms a list of lines: other layouts become one first (``_exec_fft``)."""
    return 0 if _is_list(layout(a), dims) else nbytes(a)


@workspace("_fft_c2r")
def _inverse(out: Any, a: Any, dims: Any, *_rest: Any) -> Size:
    """Of several dimensions the last is transformed last, from the others' result."""
    if len(dims) == 1:
        return _transform(out, a, dims)
    import torch

    between = torch.ops.aten._fft_c2c(a, list(dims[:-1]), 0, False)  # noqa: SLF001 - for its layout
    last = _transform(out, between, dims[-1:])
    first = _transform(between, a, dims[:-1])
    return nbytes(a) + larger(last, first - nbytes(out))


def _is_list(dims: Layout, transformed: Any) -> bool:
    """Whether all other dimensions, in the order of their strides, can be seen as one."""
    inside = {dim % len(dims) for dim in transformed}
    rest = [pair for i, pair in enumerate(dims) if i not in inside]
    return any(collapses(list(order)) for order in permutations(rest))
