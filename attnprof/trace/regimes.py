"""Which of a formula's branches holds at a shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnprof.trace.evaluating import evaluate


def regime(expression: Any, sizes: Mapping[str, int]) -> Any:
    """The formula with every Max, Min and switch replaced by what it is at these sizes.

    Of a peak that is the polynomial of its worst moment; its value at ``sizes`` is the formula's,
    and near them it stays the formula. Of equal branches the first is taken.
    """
    if isinstance(expression, int | float):
        return expression
    import sympy

    return sympy.expand(_resolved(expression, sizes))


def _resolved(node: Any, sizes: Mapping[str, int]) -> Any:
    kind = type(node).__name__
    if kind in _CHOICES:
        chosen = _CHOICES[kind](node.args, key=lambda arg: evaluate(arg, sizes))
        return _resolved(chosen, sizes)
    if kind == "Piecewise":
        return _resolved(next(e for e, holds in node.args if evaluate(holds, sizes)), sizes)
    if not node.args:
        return node
    return node.func(*(_resolved(arg, sizes) for arg in node.args))


_CHOICES: dict[str, Any] = {"Max": max, "Min": min}
