"""Meta tensors for loops of many thousand operations: each layout's shapes are found once.

torch finds the shapes of many operations in Python, at up to half a millisecond a call. A loop
over chunks repeats the same few operations on the same few layouts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

Layout = tuple[Any, ...]


def layout(tensor: Tensor) -> Layout:
    return (*tensor.shape, None, *tensor.stride(), tensor.dtype)


def key(value: Any) -> Any:
    """Something hashable that tells operands apart as far as a result's layout can."""
    if isinstance(value, Tensor):
        return layout(value)
    if isinstance(value, (list, tuple)):
        return tuple(key(item) for item in value)
    return type(value), value


def like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


class RememberedLayouts(TorchDispatchMode):
    """Inside it an operation runs once a layout of its operands; later results are shaped like it.

    Views run every time. What overwrites memory that it is given returns that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        asked = (func, key(args), key(sorted(kwargs.items())))
        if asked not in self.seen:
            self.seen[asked] = func(*args, **kwargs)
            return self.seen[asked]
        if func._schema.is_mutable:
            return kwargs.get("out", args[0])
        return tree_map_only(Tensor, like, self.seen[asked])
