"""Published values with one of their numbers changed: what a check must notice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from attnprof.papers.checks import formula

#: Stands for any text that is not a formula.
OTHER = "something else"
#: A number is changed by a little more than twice what it may be off: ours may be off the other way
BEYOND = 2.02
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")


def perturbed(value: Any, slack: Callable[[float], float] = lambda _: 0.0) -> Iterator[Any]:
    """The value with each of its numbers, statements and texts changed, one at a time.

    A number goes up and down by its last digit, or by more than ``slack`` lets it be off.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: other} for other in perturbed(item, slack))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            for other in perturbed(item, slack):
                yield [*value[:place], other, *value[place + 1 :]]
    else:
        yield from changed(value, slack)


def changed(leaf: Any, slack: Callable[[float], float]) -> Iterator[Any]:
    """Each way in which one leaf is changed."""
    if isinstance(leaf, bool):
        yield not leaf
    elif isinstance(leaf, (int, float)):
        step = BEYOND * slack(leaf) or last_digit(leaf)
        step = max(1, ceil(step)) if isinstance(leaf, int) else step
        yield from (type(leaf)(leaf + step), type(leaf)(leaf - step))
    elif isinstance(leaf, str):
        yield from changed_text(leaf)
    else:
        raise TypeError(f"{leaf!r} is no number, text, statement, list or mapping of these")


def last_digit(number: float) -> float:
    """One in the last place of a number as it is written."""
    if isinstance(number, int):
        return 1
    _, _, decimals = f"{number!r}".partition(".")
    return float(10.0 ** -len(decimals)) if decimals.isdigit() else abs(number) * 1e-6


def changed_text(text: str) -> Iterator[str]:
    """Another text; of a formula, one more, and each of its numbers larger by one."""
    if not is_formula(text):
        yield OTHER
        return
    yield f"({text}) + 1"
    for found in _NUMBER.finditer(text):
        number = found[0]
        more = f"{number[:-1]}{(int(number[-1]) + 1) % 10}" if "." in number else int(number) + 1
        yield f"{text[: found.start()]}{more}{text[found.end() :]}"


def is_formula(text: str) -> bool:
    """Whether a text is an expression; words and orders of growth are not."""
    try:
        return not text.startswith("O(") and bool(formula(text).is_commutative)
    except Exception:  # noqa: BLE001 - sympy says no in many ways
        return False
