"""Functions that a text calls where torch has no method: on torch tensors and counting ones."""

from __future__ import annotations

import math
from typing import Any

from attnprof.costs import Cost, more_than_one
from attnprof.ops import pointwise, products, shapes
from attnprof.ops.attention import fused_attention
from attnprof.ops.counter import variable
from attnprof.ops.layout import Layout
from attnprof.ops.tensor import Tensor


def square_root(size: Any, over: Any = 1) -> float:
    """The root of a size, or of a ratio of sizes; one where they are no numbers, but counted with.

    What a tensor is scaled by changes no count.
    """
    known = isinstance(size, int | float) and isinstance(over, int | float)
    return math.sqrt(size / over) if known else 1.0


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """(…, k) times weight (n, k) transposed, plus bias."""
    if isinstance(x, Tensor):
        return x.linear(weight, bias)
    from torch.nn.functional import linear as of_torch

    return of_torch(x, weight, bias)


def copy_in_rows(x: Any) -> Any:
    """A copy laid out row by row, also of what already is."""
    if isinstance(x, Tensor):
        return x.clone()
    import torch

    return x.clone(memory_format=torch.contiguous_format)


def in_rows_for(group: Any, x: Any) -> Any:
    """Laid out row by row, by a copy where needed, for a group above one; else as it is."""
    if isinstance(x, Tensor):
        return shapes.in_rows("split heads", x, group)
    return x.contiguous() if group != 1 else x


def repeat_rows(x: Any, times: Any) -> Any:
    """(n, m) so many times over, (times·n, m); itself for once."""
    if isinstance(x, Tensor):
        n, m = x.shape
        moved = Cost(bytes_moved=(1 + times) * x.size_bytes)
        layout = Layout.rows((times * n, m))
        return x.where(more_than_one(times), variable("rows"), (times * n, m), layout, moved)
    return x if times == 1 else x.repeat(times, 1)


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, causal: bool = False, group: Any = 1
) -> Any:
    """Torch's fused softmax attention: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv)."""
    if isinstance(q, Tensor):
        return fused_attention(q, k, v, causal)
    from torch.nn.functional import scaled_dot_product_attention as of_torch

    return of_torch(q, k, v, is_causal=causal, enable_gqa=group != 1)


def row_norms(x: Any) -> Any:
    """The root of the sum of squares of each row of (…, d), as (…, 1); no gradient."""
    if isinstance(x, Tensor):
        return x.norm(dim=-1, keepdim=True)
    from torch.linalg import vector_norm

    return vector_norm(x, dim=-1, keepdim=True)


# -- memory of one's own, and what is written there ------------------------------------------
def empty_like(x: Any, *, in_rows: bool = False) -> Any:
    """Memory for as many entries, laid out as they are or row by row."""
    if isinstance(x, Tensor):
        return shapes.empty(variable("empty"), x, x.shape, None if in_rows else x.layout)
    import torch

    kept = torch.contiguous_format if in_rows else torch.preserve_format
    return torch.empty_like(x, memory_format=kept)


def zeros_like(x: Any, *, in_rows: bool = False) -> Any:
    """Zeros for as many entries, laid out as they are or row by row."""
    if isinstance(x, Tensor):
        layout = None if in_rows else x.layout
        return x.result(variable("zeros"), x.shape, Cost(), [], layout=layout)
    import torch

    kept = torch.contiguous_format if in_rows else torch.preserve_format
    return torch.zeros_like(x, memory_format=kept)


def put_product(to: Any, a: Any, b: Any) -> None:
    """The products of (batch, m, k) and (batch, k, n) where ``to`` lies."""
    if isinstance(to, Tensor):
        products.into(variable("product"), to, a, b)
        return
    from attnprof.ops.on_torch import put

    put(to, "bmm", a, b)


def add_product(to: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> None:
    """``alpha`` times the same, or the product of two matrices, plus ``beta`` times ``to``."""
    if isinstance(to, Tensor):
        products.into(variable("product"), to, a, b, add=True, factors=(beta != 1) + (alpha != 1))
        return
    from attnprof.ops.on_torch import put

    put(to, "baddbmm" if to.dim() == 3 else "addmm", to, a, b, beta=beta, alpha=alpha)


def add_row_(x: Any, row: Any) -> Any:
    """(b, n, d) plus one row (b, 1, d), in place."""
    return (
        pointwise.row_added(variable("add row"), x, row) if isinstance(x, Tensor) else x.add_(row)
    )


_PER_ENTRY = {"mul": pointwise.TIMES, "div": pointwise.OVER, "add": pointwise.ADD}


def put_entries(to: Any, operation: str, a: Any, b: Any) -> None:
    """``mul``, ``div`` or ``add`` of a and b, which may be a number, where ``to`` lies."""
    if isinstance(to, Tensor):
        operands = (a, b) if isinstance(b, Tensor) else (a,)
        pointwise.entrywise(variable(operation), _PER_ENTRY[operation], *operands, into=to)
        return
    from attnprof.ops.on_torch import put

    put(to, operation, a, b)


def put_along(to: Any, operation: str, x: Any, dim: int) -> None:
    """The ``sum`` or the largest entry, ``amax``, along an axis of x, where ``to`` lies."""
    if isinstance(to, Tensor):
        added = Cost(additions=x.count, reduction_outputs=to.count)
        cost = added if operation == "sum" else Cost(other=x.count)
        to.result(variable(operation), to.shape, cost, [x], into=to)
        return
    from attnprof.ops.on_torch import put

    put(to, operation, x, dim=dim, keepdim=to.dim() == x.dim())


def searchsorted(rows: Any, numbers: Any) -> Any:
    """The place of each number in its ascending row: of the first entry that is not smaller."""
    if isinstance(rows, Tensor):
        size = rows.counter.bytes_of(8)
        return rows.result(
            variable("place"), numbers.shape, Cost(), [rows, numbers], item_size=size, whole=True
        )
    import torch

    return torch.searchsorted(rows, numbers)


def records(like: Any) -> bool:
    """Whether autograd records what is done."""
    if isinstance(like, Tensor):
        return like.counter.grad
    import torch

    return torch.is_grad_enabled()


def plain_size(size: Any) -> Any:
    """A plain number, also of a compiler's; of a symbolic run the symbol, to be compared itself."""
    import operator

    import torch

    symbolic = isinstance(size, torch.SymInt) and not torch.compiler.is_compiling()
    return size if symbolic else operator.index(size)


def softmax_(scores: Any) -> None:
    """Softmax over the last axis of contiguous scores, in their own memory."""
    if isinstance(scores, Tensor):
        pointwise.softmax(variable("softmax"), scores, into=scores)
        return
    import torch

    torch.ops.aten._softmax.out(scores, -1, False, out=scores)  # noqa: SLF001 - an operation


def softmax_grad_(grad: Any, weights: Any) -> None:
    """Gradient of the scores from that of the weights, in the memory of the latter."""
    if isinstance(grad, Tensor):
        cost = pointwise.SOFTMAX_BACKWARD * grad.count
        grad.result(variable("softmax: grad"), grad.shape, cost, [grad, weights], into=grad)
        return
    import torch

    run = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001 - an operation
    run(grad, weights, -1, grad.dtype, grad_input=grad)


def join(parts: Any, dim: int) -> Any:
    """Tensors one after the other along an axis (torch.cat)."""
    if isinstance(parts[0], Tensor):
        return Tensor.join(parts, dim)
    import torch

    return torch.cat(parts, dim)


# -- number formats --------------------------------------------------------------------------
def wide(x: Any) -> Any:
    """In float32 where the format has fewer digits; else itself."""
    if isinstance(x, Tensor):
        return pointwise.cast(variable("wide"), x, max(x.item_size, 4) if x.item_size > 1 else 1)
    return x.float() if x.element_size() < 4 else x


def as_format_of(x: Any, like: Any) -> Any:
    """In another tensor's number format: a copy where that differs; else itself."""
    if isinstance(x, Tensor):
        return pointwise.cast(variable("cast"), x, like.item_size)
    return x.to(like.dtype)
