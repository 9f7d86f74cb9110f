"""Leave weights undrawn in runs: drawing them takes time and pins symbolic sizes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import torch

#: Whether weights are drawn, as they are outside of all runs.
_DRAWN: ContextVar[bool] = ContextVar("drawn", default=True)


@contextmanager
def drawing(*, drawn: bool) -> Iterator[None]:
    """Let functions that draw weights leave them as they are inside, unless weights are ``drawn``.

    They are some sixty: ``patch.object`` for each would take as long as the run of a small module.
    """
    places = [] if drawn else _initialisers()
    functions = [(owner, name, vars(owner)[name]) for owner, name in places]
    before = _DRAWN.set(drawn)
    try:
        for owner, name, function in functions:
            setattr(owner, name, _undrawn_inside(function))
        yield
    finally:
        for owner, name, function in functions:
            setattr(owner, name, function)
        _DRAWN.reset(before)


@cache
def _undrawn_inside(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return an initialiser that leaves weights as they are, in worlds where none are drawn.

    Code that is imported inside may keep it, as transformers does in a table of its own: outside it
    draws.
    """

    @wraps(draw)
    def initialised(subject: Any, *args: Any, **kwargs: Any) -> Any:
        return draw(subject, *args, **kwargs) if _DRAWN.get() else subject

    return initialised


@cache
def _initialisers() -> list[tuple[Any, str]]:
    """Return where functions that draw weights are: owner and name, in torch and its layers."""
    layers = [m for name, m in sys.modules.items() if name.startswith("torch.nn.modules.")]
    functions = [
        (place, name)
        for place in (torch.nn.init, *layers)
        for name, value in vars(place).items()
        if getattr(value, "__module__", "") == "torch.nn.init"
        if name.endswith("_") and (name[0] != "_" or name.startswith("_no_grad_"))
    ]
    kinds = [kind for kind in vars(torch.nn).values() if isinstance(kind, type)]
    reset = "reset_parameters"
    return functions + [(kind, reset) for kind in kinds if reset in vars(kind)]
