"""Published values with one leaf changed: what a check must notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnprof.papers.agreement import formula

#: Stands for any text that is not a formula.
OTHER = "something else"


def perturbed(value: Any) -> Iterator[Any]:
    """The value with each of its leaves changed, one at a time."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: other} for other in perturbed(item))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            for other in perturbed(item):
                yield [*value[:place], other, *value[place + 1 :]]
    else:
        yield changed(value)


def changed(leaf: Any) -> Any:
    """A statement turned round, a number well off, a formula plus one, another text."""
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, (int, float)):
        return type(leaf)(leaf + 1 + 0.37 * abs(leaf))
    if isinstance(leaf, str):
        return f"({leaf}) + 1" if is_formula(leaf) else OTHER
    raise AssertionError(f"{leaf!r} is no number, text, statement, list or mapping of these")


def is_formula(text: str) -> bool:
    """Whether a text is an expression; words and orders of growth are not."""
    try:
        return not text.startswith("O(") and bool(formula(text).is_commutative)
    except Exception:  # noqa: BLE001 - sympy says no in many ways
        return False
