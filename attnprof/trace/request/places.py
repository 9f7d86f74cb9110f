"""From what is typed to the Python object: ``my.py:MyAttention``, ``torch.nn:Transformer``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from attnprof.errors import NotFoundError, RequestError, closest
from attnprof.user_code import module_in, module_named

_SHOWN = 12


def is_place(text: str) -> bool:
    """Whether a text names a place in code, not a registered mechanism."""
    return ":" in text or text.endswith(".py")


def loaded(text: str) -> Any:
    """The class, function or module that ``path.py:Name`` or ``package.module:Name`` names.

    Raises :class:`RequestError` where nothing is found, with the names that exist, and where
    importing fails, with the exception and its line.
    """
    path, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    module = module_in(path, text) if path.endswith(".py") else module_named(path, text)
    if not name:
        raise RequestError(f"{text}: say what to derive of it; {_type_one_of(path, module)}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotFoundError(f"{text}: {path} has no '{name}': {_near(path, name, module)}")
        found = getattr(found, part)
    return found


def offered(module: ModuleType) -> list[str]:
    """What a module itself defines that can be derived: modules, then functions."""
    from torch import nn

    values = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = {n: v for n, v in values.items() if getattr(v, "__module__", None) == module.__name__}
    layers = [n for n, v in own.items() if isinstance(v, type) and issubclass(v, nn.Module)]
    instances = [n for n, v in values.items() if isinstance(v, nn.Module)]
    functions = [n for n, v in own.items() if callable(v) and not isinstance(v, type)]
    return list(dict.fromkeys([*layers, *instances, *functions]))


def _type_one_of(path: str, module: ModuleType) -> str:
    names = offered(module)
    if not names:
        return f"{path} defines no module and no function"
    return f"type {' or '.join(f'{path}:{name}' for name in names[:_SHOWN])}"


def _near(path: str, name: str, module: ModuleType) -> str:
    defined = offered(module)
    public = [n for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
    hint = closest(name, sorted({*defined, *public}))
    if hint.startswith("did you mean"):
        return hint
    names = defined or public
    if not names:
        return f"{path} defines no module and no function"
    more = ", …" if len(names) > _SHOWN else ""
    return f"it defines {', '.join(names[:_SHOWN])}{more}"
