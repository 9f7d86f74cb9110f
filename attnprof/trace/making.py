"""Modules made of fake tensors: nothing is allocated, no weight is drawn.

Initialisation would only cost time, and under symbolic sizes it pins symbols (``math.sqrt`` of a
fan): it is left out. ``math.sqrt`` of a symbolic size stays symbolic.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_world(environment: Any = None, dtype: str = "float32") -> Iterator[FakeTensorMode]:
    """Tensors made inside are fake; with a shape environment, of symbolic sizes."""
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if environment is not None:
            stack.enter_context(enable_python_dispatcher())
        mode = stack.enter_context(
            FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        )
        for place in _quiet():
            stack.enter_context(place)
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            yield mode
        finally:
            torch.set_default_dtype(before)


def _quiet() -> Iterator[Any]:
    """Patches for the time of a run: no initialisation, symbolic square roots."""
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            yield patch.object(torch.nn.init, name, _as_it_is)
    for layer in _resettable():
        yield patch.object(layer, "reset_parameters", _no_reset)
    yield patch.object(math, "sqrt", _root(math.sqrt))


def _resettable() -> list[Any]:
    layers = vars(torch.nn).values()
    return [x for x in layers if isinstance(x, type) and "reset_parameters" in vars(x)]


def _as_it_is(tensor: Any, *_args: Any, **_named: Any) -> Any:
    return tensor


def _no_reset(_module: Any) -> None:
    """Weights keep whatever they are: nobody reads them."""


def _root(plain: Callable[[float], float]) -> Callable[[Any], Any]:
    def root(value: Any) -> Any:
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return torch.sym_sqrt(value)
        return plain(value)

    return root
