"""New tensors, on torch tensors and counting ones: zeros, positions, columns of one number."""

from __future__ import annotations

from typing import Any

from attnprof.costs import Cost
from attnprof.ops import shapes
from attnprof.ops.counter import variable
from attnprof.ops.tensor import Tensor


def wide_zeros(like: Any, *shape: Any) -> Any:
    """Zeros in a tensor's number format, or in float32 where that has fewer digits."""
    if isinstance(like, Tensor):
        return _wide(variable("zeros"), like, shape)
    import torch

    return like.new_zeros(shape, dtype=torch.float32 if like.dtype.itemsize < 4 else like.dtype)


def wide_positions(like: Any, count: Any) -> Any:
    """The numbers 1 to ``count``, in float32 where a tensor's format has fewer digits."""
    if isinstance(like, Tensor):
        return _wide(variable("positions"), like, (count,))
    import torch

    dtype = torch.float32 if like.dtype.itemsize < 4 else like.dtype
    return torch.arange(1, count + 1, device=like.device, dtype=dtype)


def _wide(name: str, like: Tensor, shape: tuple[Any, ...]) -> Tensor:
    size = 4 if like.item_size == 2 else like.item_size
    return like.result(name, shape, Cost(), [], item_size=size)


def empty_int32(like: Any, *shape: Any) -> Any:
    """Memory for whole numbers of 4 bytes each."""
    if isinstance(like, Tensor):
        size = like.counter.bytes_of(4)
        return shapes.empty(variable("empty"), like, shape, item_size=size, whole=True)
    import torch

    return like.new_empty(shape, dtype=torch.int32)


def arange(like: Any, count: Any, step: Any = 1) -> Any:
    """``count`` numbers from 0 on: in the format of whole numbers, or else in 8 bytes each."""
    if isinstance(like, Tensor):
        size = like.item_size if like.whole else like.counter.bytes_of(8)
        return like.result(variable("range"), (count,), Cost(), [], item_size=size, whole=True)
    import torch

    dtype = torch.int64 if like.is_floating_point() else like.dtype
    return torch.arange(0, count * step, step, dtype=dtype, device=like.device)


def padded(x: Any, *, before: int = 0, after: int = 0, value: float = 0.0) -> Any:
    """With so many columns of one number in front and at the end."""
    if isinstance(x, Tensor):
        name, old = variable("padded"), x.shape
        return x.result(
            name, (*old[:-1], old[-1] + before + after), Cost(), [x],
            backward=lambda grad: [grad.result(f"{name}: grad", old, Cost(), [grad])],
        )  # fmt: skip
    from torch.nn.functional import pad

    return pad(x, (before, after), value=value)
