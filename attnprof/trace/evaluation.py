"""Exact values of expressions in sizes: integers stay integers, at any size, in microseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Value = Any  # int | Fraction | float


def evaluate(expression: Any, sizes: Mapping[str, Any]) -> Value:
    """The expression at these sizes: an int wherever the value is whole.

    Raises KeyError for a symbol that has no value.
    """
    value = _value(expression, sizes)
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    return value


def _value(node: Any, sizes: Mapping[str, Any]) -> Value:
    if isinstance(node, int | float | Fraction):
        return node
    if node.is_Symbol:
        return sizes[node.name]
    if node.is_Integer:
        return int(node)
    if node.is_Rational or node.is_Float:
        return Fraction(int(node.p), int(node.q)) if node.is_Rational else float(node)
    rule = _RULES.get(type(node).__name__)
    if rule is None:
        return node.subs(sizes)
    return rule([_value(arg, sizes) for arg in node.args])


def _power(args: list[Value]) -> Value:
    base, exponent = args
    if isinstance(exponent, int) and exponent >= 0:
        return base**exponent
    if isinstance(exponent, int):
        return Fraction(1) / Fraction(base) ** -exponent
    return float(base) ** float(exponent)


def _log(args: list[Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], int) and args[0] & (args[0] - 1) == 0:
        return math.log(args[0])
    return math.log(*map(float, args))


def _whole(rounded: Callable[[Any], int]) -> Callable[[list[Value]], Value]:
    """Rounding; of a quotient of logarithms that misses a whole number by its last digits, that."""

    def whole(args: list[Value]) -> Value:
        value = args[0]
        if isinstance(value, float) and math.isclose(value, round(value), rel_tol=1e-14):
            return round(value)
        return rounded(value)

    return whole


def _piecewise(args: list[Value]) -> Value:
    return next(value for value, holds in args if holds)


def _called(name: str) -> Callable[[list[Value]], Value]:
    function = getattr(math, name)
    return lambda args: function(args[0])


#: Functions of floats, see :mod:`attnprof.trace.doubles`.
_FUNCTIONS = ("sqrt", "log", "log2", "exp")

_RULES: dict[str, Callable[[list[Value]], Value]] = {
    "Add": sum,
    "Mul": math.prod,
    "Pow": _power,
    "Max": max,
    "Min": min,
    "floor": _whole(math.floor),
    "ceiling": _whole(math.ceil),
    "DoubleSum": lambda args: float(args[0]) + float(args[1]),
    "DoubleProduct": lambda args: float(args[0]) * float(args[1]),
    "DoubleQuotient": lambda args: float(args[0]) / float(args[1]),
    "DoublePower": lambda args: float(args[0]) ** float(args[1]),
    "DoubleFloor": lambda args: math.floor(args[0]),
    "DoubleCeiling": lambda args: math.ceil(args[0]),
    "DoubleRound": lambda args: round(args[0]),
    **{f"Double{name.title()}": _called(name) for name in _FUNCTIONS},
    "bitwise_and": lambda args: args[0] & args[1],
    "bitwise_or": lambda args: args[0] | args[1],
    "bitwise_xor": lambda args: args[0] ^ args[1],
    "Mod": lambda args: args[0] % args[1],
    "log": _log,
    "exp": lambda args: math.exp(args[0]),
    "Abs": lambda args: abs(args[0]),
    "Piecewise": _piecewise,
    "ExprCondPair": tuple,
    "StrictGreaterThan": lambda args: args[0] > args[1],
    "GreaterThan": lambda args: args[0] >= args[1],
    "StrictLessThan": lambda args: args[0] < args[1],
    "LessThan": lambda args: args[0] <= args[1],
    "Equality": lambda args: args[0] == args[1],
    "Unequality": lambda args: args[0] != args[1],
    "BooleanTrue": lambda _: True,
    "BooleanFalse": lambda _: False,
    "And": all,
    "Or": any,
    "Not": lambda args: not args[0],
}
