"""Whether a kernel can read a tensor as it lies: strides of int or symbolic size, no guards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.sizes import nbytes, size_of

Layout = list[tuple[Size, Size]]


def layout(tensor: Any) -> Layout:
    """(size, stride) of each dimension."""
    sizes = map(size_of, tensor.shape)
    return list(zip(sizes, map(_stride, tensor.stride()), strict=True))


def _stride(stride: Any) -> Size:
    """Without torch's max(1, size): it differs only for tensors without entries."""
    found = size_of(stride)
    if isinstance(found, int):
        return found
    import sympy

    least = {part: sympy.Max(*(arg for arg in part.args if arg != 1))
             for part in found.atoms(sympy.Max) if 1 in part.args}  # fmt: skip
    return found.xreplace(least) if least else found


def same(one: Size, other: Size) -> bool:
    """Whether two sizes are the same number, or the same expression."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    import sympy

    return bool(sympy.expand(one - other) == 0)


def is_contiguous(tensor: Any) -> bool:
    """Whether entries lie in order without gaps."""
    return collapses(layout(tensor)) and (
        all(size == 1 for size, _ in layout(tensor)) or same(_last_stride(tensor), 1)
    )


def _last_stride(tensor: Any) -> Size:
    return next(stride for size, stride in reversed(layout(tensor)) if size != 1)


def collapses(dims: Layout) -> bool:
    """Whether dimensions can be seen as one."""
    wide = [(size, stride) for size, stride in dims if size != 1]
    return all(same(outer, size * stride) for (_, outer), (size, stride) in pairwise(wide))


def copied(*tensors: Any) -> Size:
    """Bytes of those tensors that are laid out anew before they are read."""
    total: Size = 0
    for tensor in tensors:
        if tensor is not None and not is_contiguous(tensor):
            total = total + nbytes(tensor)
    return total


def has_unit_stride(tensor: Any) -> bool:
    """Whether a matrix (or each of a batch) has rows or columns that lie in order, as BLAS asks."""
    (rows, row), (columns, column) = layout(tensor)[-2:]
    by_row = same(column, 1) or columns == 1
    by_column = same(row, 1) or rows == 1
    return by_row or by_column
