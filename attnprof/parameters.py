"""Parameters of a mechanism from the text that a user types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field
from typing import Any

from attnprof.errors import RequestError
from attnprof.units import integer


def parsed(item: Field[Any], value: Any) -> Any:
    """A parameter's value from text, by the type of its default."""
    if not isinstance(value, str):
        return value
    text, kind = value.strip(), str(item.type)
    if text.lower() in ("none", "null") and "None" in kind:
        return None
    readers: dict[str, Callable[[str], Any]] = {"bool": _boolean, "int": integer, "float": float}
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


def _boolean(text: str) -> bool:
    if (word := text.lower()) in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return word in ("true", "yes", "on", "1")
    raise ValueError(text)
