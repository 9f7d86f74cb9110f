"""The value of sympy expressions in exact arithmetic, without sympy's own (slow) evaluation."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add, mul
from typing import Any

import sympy

RELATIONS = {
    sympy.Le: lambda a, b: a <= b,
    sympy.Lt: lambda a, b: a < b,
    sympy.Ge: lambda a, b: a >= b,
    sympy.Gt: lambda a, b: a > b,
    sympy.Eq: lambda a, b: a == b,
    sympy.Ne: lambda a, b: a != b,
}
FUNCTIONS = {
    sympy.Add: lambda *terms: reduce(add, terms),
    sympy.Mul: lambda *factors: reduce(mul, factors),
    sympy.Abs: abs,
    sympy.Max: max,
    sympy.Min: min,
    sympy.floor: math.floor,
    sympy.ceiling: math.ceil,
    sympy.Not: lambda a: not a,
    sympy.And: lambda *parts: all(parts),
    sympy.Or: lambda *parts: any(parts),
    **RELATIONS,
}


class Evaluator:
    """Expressions at one point; a part that occurs again is not evaluated again."""

    def __init__(self, values: dict[sympy.Symbol, int]) -> None:
        self._known: dict[Any, Any] = dict(values)

    def __call__(self, expression: Any) -> Any:
        """An int where the value is whole, else a Fraction, or the truth of a condition."""
        if not isinstance(expression, sympy.Basic):
            return expression
        value = self._known.get(expression)
        if value is None:
            value = self._known[expression] = self._evaluated(expression)
        return value

    def _evaluated(self, node: Any) -> Any:
        if node in (sympy.true, sympy.false):
            return bool(node)
        if node.is_Rational:
            return _whole(node)
        if node.is_Piecewise:
            return next(self(value) for value, holds in node.args if self(holds))
        if node.is_Pow:
            base, power = (self(part) for part in node.args)
            return _whole((Fraction(base) if isinstance(base, int) else base) ** power)
        function = FUNCTIONS.get(node.func, node.func)  # logarithms stay sympy's until rounded
        return _whole(function(*(self(part) for part in node.args)))


def _whole(value: Any) -> Any:
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    if isinstance(value, sympy.Rational):
        return int(value.p) if value.q == 1 else Fraction(int(value.p), int(value.q))
    return value
