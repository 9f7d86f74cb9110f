"""What the fused attention kernels of the CPU take for themselves.

From torch's ``FlashAttentionKernel.cpp``: each thread has a block of scores, in the format sums
are kept in; a half-precision kernel has it in its own format too.
"""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.layouts import is_contiguous
from attnprof.trace.rules.workspaces import threads, workspace
from attnprof.trace.sizes import nbytes, size_of

#: Keys of a block; queries of a block, from so many queries on.
_KEYS = 512
_QUERIES = ((768, 256), (192, 64), (0, 32))


@workspace("_scaled_dot_product_flash_attention_for_cpu")
def _forward(_out: Any, q: Any, k: Any, *_rest: Any) -> Size:
    """Scores, row maxima, row sums and results of a block of queries for each thread."""
    rows, keys = _block(q), _at_most(size_of(k.shape[2]), _KEYS)
    width, half = size_of(q.shape[3]), q.element_size() == 2
    sums = max(4, q.element_size())
    return threads() * rows * (sums * (keys + 2 + width) + (2 * keys if half else 0))


@workspace("_scaled_dot_product_flash_attention_for_cpu_backward")
def _backward(_out: Any, grad: Any, q: Any, k: Any, *_rest: Any) -> Size:
    """Weights and their gradients of a block for each thread, a sum for each of its rows.

    The gradient is laid out anew unless heads lie inside tokens.
    """
    rows, keys = _block(q), _at_most(size_of(k.shape[2]), _KEYS)
    sums, half = max(4, q.element_size()), q.element_size() == 2
    own = threads() * rows * keys * 2 * (sums + (2 if half else 0))
    anew = 0 if is_contiguous(grad.transpose(1, 2)) else nbytes(grad)
    return own + _at_most_threads(q) * rows * sums + anew


def _block(q: Any) -> Size:
    """Queries of a block: fewer than a step's where there are not so many."""
    n = size_of(q.shape[2])
    if isinstance(n, int):
        return min(n, next(rows for start, rows in _QUERIES if n >= start))
    import sympy

    steps = [(_at_most(n, rows), n >= start) for start, rows in _QUERIES[:-1]]
    return sympy.Piecewise(*steps, (_at_most(n, _QUERIES[-1][1]), True))


def _at_most_threads(q: Any) -> Size:
    """Threads that have a head to work on."""
    return _at_most(size_of(q.shape[0]) * size_of(q.shape[1]), threads())


def _at_most(value: Size, limit: int) -> Size:
    if isinstance(value, int):
        return min(value, limit)
    import sympy

    return sympy.Min(value, limit)
