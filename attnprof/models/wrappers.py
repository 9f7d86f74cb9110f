"""Modules around a model that are derived like one: its cache copied, an optimizer's step."""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.trace.rules import result_of
from attnprof.trace.run.experts import Routing
from attnprof.trace.run.limits import Limit


class Unrecorded(TorchDispatchMode):
    """A mode in which code does on tensors without values what it does when recorded."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._routing, self._limit = Routing(), Limit()

    @property
    def operations(self) -> int:
        """The number of operations so far."""
        return self._limit.done

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._limit()
        kwargs = kwargs or {}
        out = self._routing.answered(func, args, kwargs)
        if out is None:
            out = result_of(func, args, kwargs)
        self._routing.ran(func, args, kwargs, out)
        return out


class CacheLayer(nn.Module):
    """One layer's tensors of a cache, copied when it is called."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self.tensors = tensors

    def forward(self) -> list[Any]:
        """Return a copy of each tensor."""
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in self.tensors]


class CacheCopy(nn.Module):
    """A cache, copied layer by layer: all copies are held at once, each tensor once."""

    def __init__(self, layers: list[list[Any]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CacheLayer(tensors) for tensors in layers)

    def forward(self) -> list[list[Any]]:
        """Return the copies of every layer."""
        return [layer() for layer in self.layers]


class OptimizerStep(nn.Module):
    """A step of an optimizer, after a first one that made its state.

    Weights named in ``ungraded`` have no gradient, and so no state.
    """

    def __init__(self, model: nn.Module, kind: Any, ungraded: frozenset[str]) -> None:
        super().__init__()
        self.model = model
        self.optimizer = kind(model.parameters())
        for name, weights in model.named_parameters():
            if name not in ungraded:
                weights.grad = torch.empty_like(weights)
        self.optimizer.step()

    def forward(self) -> None:
        """Run one step."""
        self.optimizer.step()
