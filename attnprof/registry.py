"""Find mechanisms by name: the shipped folders, entry points, and ``path.py:Class``."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

import attnprof.mechanisms as shipped
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism

ENTRY_POINTS = "attnprof.mechanisms"
#: What users ask for, and what it is called here.
HINTS = {
    "taylor": "TaylorShift has three: taylor-direct, taylor-efficient, taylorshift (switches)",
    "efficient-taylorshift": "that is taylor-efficient; efficient is Efficient Attention (000)",
    "direct-taylorshift": "that is taylor-direct",
    "mha": "that is standard (written out) or sdpa (torch's fused kernel)",
    "flash": "torch's fused kernel is sdpa",
}


@cache
def _shipped() -> dict[str, tuple[type[Mechanism], str]]:
    """Shipped mechanisms by name, with the folder each lives in."""
    found: dict[str, tuple[type[Mechanism], str]] = {}
    for folder in pkgutil.iter_modules(shipped.__path__):
        package = f"{shipped.__name__}.{folder.name}"
        for mechanism in import_module(f"{package}.spec").MECHANISMS:
            found[mechanism.name] = (mechanism, package)
    return found


def names() -> list[str]:
    """Names of the shipped mechanisms, in the order documents introduce them."""
    return sorted(_shipped(), key=lambda name: (_shipped()[name][0].document, name))


def get(name: str, **params: Any) -> Mechanism:
    """A mechanism with its parameters; :class:`RequestError` for an unknown name."""
    found = _shipped().get(name)
    if found is None:
        hint = HINTS.get(name.lower()) or closest(name, names())
        raise RequestError(f"unknown mechanism '{name}': {hint} (see: attnprof list)")
    return found[0]().with_params(params)


def module_of(name: str) -> Any:
    """The torch side of a mechanism: its folder's ``module``, imported now."""
    get(name)
    return import_module(f"{_shipped()[name][1]}.module")
