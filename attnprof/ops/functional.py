"""Functions that a text calls where torch has no method: on torch tensors and counting ones."""

from __future__ import annotations

import math
from typing import Any

from attnprof.ops.attention import fused_attention
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


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, causal: bool = False, grouped: bool = False
) -> Any:
    """Torch's fused softmax attention: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv)."""
    if isinstance(q, Tensor):
        return fused_attention(q, k, v, causal)
    from torch.nn.functional import scaled_dot_product_attention as of_torch

    return of_torch(q, k, v, is_causal=causal, enable_gqa=grouped)
