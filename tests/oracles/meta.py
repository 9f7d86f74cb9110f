"""Meta tensors for loops of many thousand operations: each layout is run and counted once.

torch finds the shapes of many operations in Python, at up to half a millisecond a call, and to
count a call takes as long. A loop over chunks repeats the same few operations on the same few
layouts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from tests.oracles.aten import KINDS, Counts, OperationCounter

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

    Views run every time, and count nothing. What overwrites memory that it is given returns that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counter = OperationCounter()
        self._seen: dict[Any, Any] = {}
        self._counted: dict[Any, tuple[int, Counts]] = {}
        self._times: Counter[Any] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here: torch need not guard each call against it

    @property
    def products(self) -> int:
        """FLOPs, by the formulas of torch's ``FlopCounterMode``."""
        return sum(n * self._counted[asked][0] for asked, n in self._times.items())

    @property
    def unknown(self) -> set[str]:
        return {name for _, counts in self._counted.values() for name in counts.unknown}

    @property
    def bytes_moved(self) -> int:
        return sum(n * self._counted[asked][1].bytes_moved for asked, n in self._times.items())

    def by_kind(self) -> dict[str, int]:
        totals = dict.fromkeys(KINDS, 0)
        for asked, times in self._times.items():
            for kind, count in self._counted[asked][1].by_kind().items():
                totals[kind] += times * count
        return totals

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        asked = (func, key(args), key(sorted(kwargs.items())))
        self._times[asked] += 1
        if asked not in self._seen:
            before = len(self._counter.trace.calls)
            with self._counter:
                out = self._seen[asked] = func(*args, **kwargs)
            counts = Counts(tuple(self._counter.trace.calls[before:]))
            products = flop_registry.get(func.overloadpacket)
            theirs = products(*args, **kwargs, out_val=out) if products else 0
            self._counted[asked] = theirs, counts
            return out
        if func._schema.is_mutable:
            return kwargs.get("out", args[0])
        layouts = self._seen[asked]
        return (
            like(layouts) if isinstance(layouts, Tensor) else tree_map_only(Tensor, like, layouts)
        )
