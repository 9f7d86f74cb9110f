"""Lazy layers, such as ``nn.LazyLinear``, whose weights get their sizes from the first call.

The weights of a run are there before it. So a module that has lazy ones is called once, unrecorded,
and each weight is made anew in the world of the run, with symbolic sizes, too: :func:`settle`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy


@contextmanager
def real_until_settled() -> Iterator[None]:
    """Make weights without sizes outside of the fake world, which cannot hold them."""

    def outside(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(kind: Any, *args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return make(kind, *args, **kwargs)

        return made

    with ExitStack() as stack:
        for kind in (UninitializedParameter, UninitializedBuffer):
            stack.enter_context(patch.object(kind, "__new__", outside(kind.__new__)))
        yield


def is_unsettled(module: torch.nn.Module) -> bool:
    """Return whether a module has weights without sizes."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def settle(subject: Any, positional: Any, named: Any) -> None:
    """Call a module once if it has lazy weights: they have sizes then."""
    if not isinstance(subject, torch.nn.Module):
        return
    places = {
        id(tensor): (table, name)
        for part in subject.modules()
        for table in (part._parameters, part._buffers)
        for name, tensor in table.items()
        if tensor is not None and is_lazy(tensor)
    }

    def made(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        table, name = places[id(lazy)]
        tensor: Any = torch.empty(shape, device=device, dtype=dtype or lazy.dtype)
        if isinstance(lazy, UninitializedParameter):
            tensor = torch.nn.Parameter(tensor, lazy.requires_grad)
        table[name] = tensor

    if places:
        lazy_tensor = UninitializedParameter.__mro__[1]  # which gives both kinds their method
        with patch.object(lazy_tensor, "materialize", made), torch.no_grad():
            subject(*positional, **named)
