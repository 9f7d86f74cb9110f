"""The value of a tree of formula text: one walk, and the rules of exact numbers.

Rules are functions by what a call's ``function`` says (``number`` for a number), so that one walk
serves ints and fractions, torch's symbolic sizes, and sympy's expressions.
"""

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from attnprof.algebra.parser import DIGITS, FormulaError, Literal, Name, Tree

Rules = Mapping[str, Callable[..., Any]]
#: Bits of a number with as many digits as numbers may have.
BITS = math.ceil(DIGITS * math.log2(10))


def evaluate(tree: Tree, values: Callable[[str], Any], rules: Rules) -> Any:
    """What the tree is, with a value for every name; FormulaError where it has none."""
    try:
        return _value(tree, values, rules)
    except FormulaError:
        raise
    except ZeroDivisionError as error:
        raise FormulaError("it divides by 0") from error
    except (ArithmeticError, ValueError) as error:
        raise FormulaError("it has no real value") from error


def _value(tree: Tree, values: Callable[[str], Any], rules: Rules) -> Any:
    if isinstance(tree, Literal):
        return rules["number"](tree.value)
    if isinstance(tree, Name):
        return values(tree.name)
    rule = rules.get(tree.function)
    if rule is None:
        spoken = {"tuple": ",", "neg": "-"}.get(tree.function, tree.function)
        raise FormulaError(f"'{spoken}' has no meaning here")
    return rule(*[_value(arg, values, rules) for arg in tree.args])


def check_power(bits: int, exponent: float) -> None:
    """Refuse a power whose digits would never end: of a base of so many bits."""
    if bits * abs(exponent) > BITS:
        raise FormulaError(f"a power has more than {DIGITS} digits")


def bits_of(value: int | Fraction) -> int:
    """How long a number is."""
    whole = Fraction(value)
    return max(abs(whole.numerator).bit_length(), whole.denominator.bit_length())


def _bounded(value: Any) -> Any:
    """A number as an int where it is whole; one too long is refused."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormulaError("it has no finite value")
        return int(value) if value.is_integer() else value
    if bits_of(value) > BITS:
        raise FormulaError(f"a number has more than {DIGITS} digits")
    return value.numerator if value.denominator == 1 else value


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and not isinstance(base, float):
        if base not in (0, 1, -1):
            check_power(bits_of(base), exponent)
        return Fraction(base) ** exponent if abs(base) != 1 else base ** abs(exponent)
    if base < 0:
        raise FormulaError("a root of a negative number has no real value")
    return float(base) ** float(exponent)


def _root(value: Any) -> Any:
    whole = math.isqrt(value) if isinstance(value, int) else None
    return whole if whole is not None and whole * whole == value else math.sqrt(value)


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "+": lambda *parts: sum(parts), "neg": operator.neg, "//": operator.floordiv, "%": operator.mod,
    "*": lambda *parts: reduce(lambda a, b: _bounded(a * b), parts, 1),
    "/": lambda a, b: a / b if isinstance(a, float) else Fraction(a) / b, "**": _power,
    "sqrt": _root, "log": math.log, "log2": math.log2, "exp": math.exp, "ceil": math.ceil,
    "floor": math.floor, "max": max, "min": min,
}  # fmt: skip
#: Ints and fractions, exactly, none too long; roots and logarithms that are not whole are floats.
EXACT: Rules = {
    "number": _bounded,
    **{name: lambda *args, rule=rule: _bounded(rule(*args)) for name, rule in _PLAIN.items()},
}
