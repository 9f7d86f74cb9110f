"""Inputs that are parts of one argument: ``x.0`` of a tuple, ``x[0]`` of a list, ``x.name``."""

import re
from collections.abc import Mapping
from typing import Any


def folded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by argument: ``{"x.0": 1, "x.1": 2}`` is ``{"x": (1, 2)}``.

    Names like ``x[0]`` make a list, any other ``x.name`` a dict.
    """
    result: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, rest = _STEP.match(name).groups()  # type: ignore[union-attr]  # it matches anything
        if rest:
            inside.setdefault(first, {})[rest.removeprefix(".")] = value
        result[first] = value
    for name, entries in inside.items():
        parts = folded(entries)
        if all(key.startswith("[") for key in parts):
            result[name] = list(parts.values())
        else:
            result[name] = tuple(parts.values()) if all(map(str.isdigit, parts)) else parts
    return result


#: The first name of ``x.0``, of ``[0].name``, and the rest.
_STEP = re.compile(r"(\[?[^.[]*)(.*)", re.DOTALL)


def base_of(name: str) -> str:
    """Return the argument that an input belongs to: ``x`` for ``x.0`` and ``x[0]``."""
    return next(iter(folded({name: None})))
