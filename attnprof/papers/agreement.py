"""When two values say the same: exactly, as formulas, or as far as printed digits tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from attnprof.algebra.expressions import expression_of
from attnprof.algebra.parser import Number, parse

Agree = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Agreement:
    """Two values agree if all their leaves do; values in lists and dicts are walked through.

    ``slack`` is how far a printed number may be off and still agree: half of its last digit
    where it was rounded, nothing where it is exact.
    """

    alike: Agree
    slack: Callable[[float], float] = field(default=lambda _: 0.0)

    def __call__(self, published: Any, ours: Any) -> bool:
        """Whether the two say the same."""
        return _walked(published, ours, self.alike)


#: Equal, values inside lists and dicts too; tuples and lists are alike.
exactly = Agreement(lambda a, b: type(a) is type(b) and bool(a == b))


def rounded(digits: int) -> Agreement:
    """Equal once ours is rounded to the printed number of decimals (halves either way)."""
    half = 0.5 * 10.0**-digits
    return within(absolute=half * (1 + 1e-9))


def within(*, absolute: float = 0.0, relative: float = 0.0) -> Agreement:
    """No further apart than this; the relative part is of ours. Texts and bools: equal."""

    def near(a: Any, b: Any) -> bool:
        if not _is_number(a) or not _is_number(b):
            return bool(a == b)
        return bool(abs(a - b) <= absolute + relative * abs(b))

    return Agreement(near, lambda value: absolute + relative * abs(value))


def above(digits: int = 0) -> Agreement:
    """Ours is what is printed or more, by less than one of its last digit: "more than 4 points"."""
    step = 10.0**-digits

    def reached(a: Any, b: Any) -> bool:
        if not _is_number(a) or not _is_number(b):
            return bool(a == b)
        return bool(a <= b < a + step)

    return Agreement(reached, lambda _: step / 2)


def between(published: Any, ours: Any) -> bool:
    """What is printed lies between the two ends that ours has for it, by name."""
    return set(published) == set(ours) and all(
        low <= published[name] <= high for name, (low, high) in ours.items()
    )


def formula(text: Any) -> Any:
    """A formula's text as a sympy expression, every name a positive symbol."""
    import sympy

    return _parsed(text) if isinstance(text, str) else sympy.sympify(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    import sympy

    tree = parse(text, stored=True)
    if isinstance(tree, Number) and isinstance(tree.value, Fraction):
        return sympy.Float(text)  # to as many digits as are printed
    return expression_of(tree)


@lru_cache(maxsize=4096)
def _equal_formulas(a: Any, b: Any) -> bool:
    import sympy

    difference = sympy.expand(formula(a) - formula(b))
    return bool(difference == 0 or sympy.simplify(difference) == 0)


#: Texts or expressions that sympy finds equal for all positive values of their symbols.
same_formula = Agreement(_equal_formulas)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _walked(a: Any, b: Any, same: Agree) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return set(a) == set(b) and all(_walked(a[key], b[key], same) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_walked(x, y, same) for x, y in zip(a, b, strict=True))
    if isinstance(a, (Mapping, list, tuple)) or isinstance(b, (Mapping, list, tuple)):
        return False
    if _is_number(a) and _is_number(b) and float(a) == float(b):
        return True
    return same(a, b)
