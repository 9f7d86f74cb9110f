"""Whether an expression is 0 at all sizes: by values first, which decide in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

#: Shapes that are drawn, and operations beyond which algebra takes too long.
_DRAWS = 3
_LONG = 150
_SURELY = 1e-9


def is_zero(expression: Any) -> bool:
    """Whether it is 0 wherever its symbols are positive.

    A value that is not 0 decides; a quotient of polynomials that is 0 at sizes drawn at random is
    0 everywhere. What else seems to be 0 is left to sympy.
    """
    import sympy

    expression = sympy.sympify(expression)
    if expression.is_Rational:
        return bool(expression == 0)
    values = list(_values(expression))
    if any(value is not None and abs(value) > _SURELY for value in values):
        return False
    rational = expression.is_rational_function(*expression.free_symbols)
    if rational and all(value is not None and value.is_Rational for value in values):
        return not any(values)
    if sympy.count_ops(expression) >= _LONG:
        return bool(sympy.expand(expression) == 0)
    return bool(sympy.simplify(expression) == 0)


def constant_ratio(a: Any, b: Any) -> Any:
    """The number that a is times b at all sizes, None where there is none."""
    import sympy

    if b == 0 or a.has(sympy.Max):
        return None
    ratio = a / b
    if ratio.is_rational_function(*ratio.free_symbols):
        found = set(_values(ratio))
        value = found.pop()
        return value if not found and value is not None and value.is_Rational else None
    ratio = sympy.cancel(ratio) if sympy.count_ops(ratio) < _LONG else b
    return ratio if ratio.is_number else None


def _values(expression: Any) -> Iterator[Any]:
    """Its values at a few shapes, the same for the same symbols; None where it has none."""
    import sympy

    chance = random.Random(0)  # noqa: S311 - no secret
    for _ in range(_DRAWS):
        sizes = {
            symbol: _drawn(chance, small=symbol.is_Dummy)
            for symbol in sorted(expression.free_symbols, key=str)
        }
        value = expression.xreplace(sizes)
        value = value if value.is_Rational else sympy.N(value, maxn=60)
        yield value if value.is_Number and value.is_finite else None


def _drawn(chance: random.Random, *, small: bool) -> Any:
    """A size; for what rounding leaves, a number below 1."""
    import sympy

    if small:
        return sympy.Rational(chance.randrange(1, 997), 997)
    return sympy.Integer(chance.randrange(2, 10**6))
