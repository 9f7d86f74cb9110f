"""Functions that a text calls where torch has no method: on torch tensors and counting ones."""

from __future__ import annotations

import math
from typing import Any

from attnprof.costs import Cost, more_than_one
from attnprof.ops import shapes
from attnprof.ops.attention import fused_attention
from attnprof.ops.counter import variable
from attnprof.ops.layout import Layout
from attnprof.ops.tensor import Tensor


def square_root(size: Any) -> Any:
    """The root of a size; of a symbol or an array, which are only counted with, itself."""
    if hasattr(size, "free_symbols") or hasattr(size, "dtype"):
        return size
    return math.sqrt(size)


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
