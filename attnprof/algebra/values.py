"""Evaluate sympy's expressions at sizes, in microseconds: integers stay exact, however large.

Entry points: :func:`evaluate`; :func:`chosen` for one branch of a maximum or Piecewise.
"""

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

Value = Any  # int | Fraction | float
#: A share of weights below 2**-128 is less than a byte; exact, it could have millions of digits.
_SHARE_BITS = 128


def evaluate(expression: Any, sizes: Mapping[str, Any]) -> Value:
    """Return the value of an expression at sizes: an int if the value is whole.

    Raises KeyError for a symbol that has no value.
    """
    value = _function(expression)(sizes)
    whole = isinstance(value, Fraction) and value.denominator == 1
    return value.numerator if whole else value


@lru_cache(maxsize=2**14, typed=True)
def _function(node: Any) -> Callable[[Mapping[str, Any]], Value]:
    """Return the function from sizes to an expression's value, cached for use at many shapes."""
    if isinstance(node, int | float | Fraction):
        return lambda _: node
    if node.is_Symbol:
        return operator.itemgetter(node.name)
    if node.is_Integer or node.is_Rational or node.is_Float:
        number = Fraction(int(node.p), int(node.q)) if node.is_Rational else float(node)
        value = int(node) if node.is_Integer else number
        return lambda _: value
    rule = RULES.get(type(node).__name__)
    if rule is None:
        return node.subs  # type: ignore[no-any-return]
    parts = [_function(arg) for arg in node.args]
    if not node.is_Relational:
        return lambda sizes: rule(*[part(sizes) for part in parts])

    def relation(sizes: Mapping[str, Any]) -> Value:
        try:
            return rule(*[part(sizes) for part in parts])
        except (ArithmeticError, ValueError):  # a side has no value: code cannot run at these sizes
            return False

    return relation


def chosen(expression: Any, at: Mapping[str, Any], *kinds: Any) -> Any:
    """Return an expression with each Max, Min and Piecewise replaced by the branch taken.

    ``at`` are sizes by name; ``kinds`` restricts which of the three are replaced.
    """
    import sympy

    def branch(node: Any) -> Any:
        if isinstance(node, sympy.Piecewise):
            return next(value for value, condition in node.args if evaluate(condition, at))
        value = evaluate(node, at)
        return next(arg for arg in node.args if evaluate(arg, at) == value)

    def replaced(node: Any) -> Any:
        if isinstance(node, kinds):  # from outside in: branches not taken are never rebuilt
            return replaced(branch(node))
        if not node.args:
            return node
        args = [replaced(arg) for arg in node.args]
        same = all(new is old for new, old in zip(args, node.args, strict=True))
        return node if same else node.func(*args)

    kinds = kinds or (sympy.Min, sympy.Max, sympy.Piecewise)
    return replaced(expression)


def power(base: Value, exponent: Value) -> Value:
    """Return a power, exactly if the exponent is an integer or the base a square, else as floats.

    A fraction below 1 to a high power, of whose digits there would be too many, is 2**-128.
    """
    if isinstance(exponent, int):
        if isinstance(base, Fraction) and 0 < base < 1 and exponent > _SHARE_BITS / (1 - base):
            return Fraction(1, 2**_SHARE_BITS)  # the power is exp(-_SHARE_BITS) at most
        return (base if exponent >= 0 else Fraction(base)) ** exponent
    if isinstance(exponent, Fraction) and exponent.denominator == 2 and isinstance(base, int):
        root = math.isqrt(max(base, 0))
        if root * root == base:
            return power(root, exponent.numerator)
    return float(base) ** float(exponent)


def _whole(rounded: Callable[[Any], int], value: Value) -> Value:
    """Return a rounded value; a float that misses an integer by its last digits is that integer."""
    misses = isinstance(value, float) and math.isclose(value, round(value), rel_tol=1e-14)
    return round(value) if misses else rounded(value)


#: Functions by the name of an expression's class: sympy's, and :mod:`attnprof.trace.doubles`'.
RULES: dict[str, Callable[..., Value]] = {
    "Add": lambda *args: sum(args), "Mul": lambda *args: math.prod(args), "Pow": power,
    "Max": max, "Min": min, "Abs": abs, "Mod": operator.mod, "log": math.log, "exp": math.exp,
    "floor": partial(_whole, math.floor), "ceiling": partial(_whole, math.ceil),
    "Piecewise": lambda *cases: next(value for value, holds in cases if holds),
    "ExprCondPair": lambda *case: case,
    "DoubleSum": lambda a, b: float(a) + float(b),
    "DoubleProduct": lambda a, b: float(a) * float(b),
    "DoubleQuotient": lambda a, b: float(a) / float(b),
    "DoublePower": lambda a, b: float(a) ** float(b),
    "DoubleFloor": math.floor, "DoubleCeiling": math.ceil, "DoubleRound": round,
    **{f"Double{name.title()}": getattr(math, name) for name in ("sqrt", "log", "log2", "exp")},
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge, "StrictLessThan": operator.lt,
    "LessThan": operator.le, "Equality": operator.eq, "Unequality": operator.ne,
    "BooleanTrue": lambda: True, "BooleanFalse": lambda: False, "Not": operator.not_,
    "And": lambda *args: all(args), "Or": lambda *args: any(args),
}  # fmt: skip
