"""A mechanism's parameters: from the text of ``--set``, or as Python passes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field
from typing import Any

from attnprof.arguments import flag, is_whole, number, shown
from attnprof.errors import RequestError
from attnprof.units import integer


def parameter_value(item: Field[Any], value: Any) -> Any:
    """A parameter's value from text, or as Python passes it, by the type of its default.

    Raises :class:`RequestError` for what the type is not.
    """
    kind = str(item.type)
    if not isinstance(value, str):
        return _passed(item.name, kind, value)
    text = value.strip()
    if text.lower() in ("none", "null") and "None" in kind:
        return None
    readers: dict[str, Callable[[str], Any]] = {"bool": _boolean, "int": integer, "float": _real}
    for name, reader in readers.items():
        if name in kind:
            try:
                return reader(text)
            except ValueError:
                raise RequestError(
                    f"{item.name}={value}: not usable; {item.name} takes {kind}, "
                    f"for example {item.name}={item.default}"
                ) from None
    return text


def _passed(name: str, kind: str, value: Any) -> Any:
    """A parameter's value as Python passes it, of the type that its field has."""
    if value is None and "None" in kind:
        return None
    if "bool" in kind:
        return flag(name, value)
    if "int" in kind and is_whole(value):
        return int(value)
    if "float" in kind:
        return number(name, value)
    if any(word in kind for word in ("bool", "int", "float", "str")):
        raise RequestError(f"{name} must be {kind}, not {shown(value)}")
    return value


def _real(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(text)


def _boolean(text: str) -> bool:
    if (word := text.lower()) in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return word in ("true", "yes", "on", "1")
    raise ValueError(text)
