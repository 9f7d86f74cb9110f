"""Arithmetic of Python's floats inside formulas: done step by step, as the code does it.

To sympy ``N*0.07`` and ``log(N)/log(2)`` are real numbers, which it reorders; rounded up they can
differ by one from what the code computes. These functions print as what they mean and are left as
they are; :mod:`attnprof.trace.evaluation` computes them with floats.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE

#: A float of so many binary places, or fewer, is exact in all that sizes go through.
_PLACES = 2**12


class Double(sympy.Function):  # type: ignore[misc]
    """A step of float arithmetic; ``plain`` is the same among real numbers, to be printed."""

    is_real = True
    precedence = PRECEDENCE["Add"]

    def plain(self) -> Any:
        """What sympy prints for it."""
        raise NotImplementedError

    def _sympystr(self, printer: Any) -> str:
        return str(printer._print(self.plain()))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        printed = str(printer._print(self.plain()))
        return printed if exp is None else rf"\left({printed}\right)^{{{exp}}}"


class DoubleSum(Double):
    """a + b."""

    def plain(self) -> Any:
        return sympy.Add(*self.args, evaluate=False)


class DoubleProduct(Double):
    """a * b."""

    precedence = PRECEDENCE["Mul"]

    def plain(self) -> Any:
        return sympy.Mul(*self.args, evaluate=False)


class DoubleQuotient(Double):
    """a / b."""

    precedence = PRECEDENCE["Mul"]

    def plain(self) -> Any:
        a, b = self.args
        return sympy.Mul(a, sympy.Pow(b, -1, evaluate=False), evaluate=False)


class DoublePower(Double):
    """a ** b."""

    precedence = PRECEDENCE["Pow"]

    def plain(self) -> Any:
        return sympy.Pow(*self.args, evaluate=False)


class _Called(Double):
    """A function, printed by its name."""

    precedence = PRECEDENCE["Func"]
    printed = ""

    def _sympystr(self, printer: Any) -> str:
        return f"{self.printed}({', '.join(map(printer._print, self.args))})"

    def _latex(self, printer: Any, exp: Any = None) -> str:
        inside = ", ".join(map(printer._print, self.args))
        power = "" if exp is None else f"^{{{exp}}}"
        return rf"\operatorname{{{self.printed}}}{power}\left({inside}\right)"


class DoubleLog2(_Called):
    """The logarithm to base 2: exact at powers of two, as C's."""

    def _sympystr(self, printer: Any) -> str:
        return f"log({printer._print(self.args[0])}, 2)"

    def _latex(self, printer: Any, exp: Any = None) -> str:
        power = "" if exp is None else f"^{{{exp}}}"
        return rf"\log_2{power}\left({printer._print(self.args[0])}\right)"


class _Whole(_Called):
    is_integer = True


@cache
def called(name: str, printed: str = "", *, whole: bool = False) -> Any:
    """The function ``name`` of the evaluator, printed under a name that sympy reads."""
    return type(name, (_Whole if whole else _Called,), {"printed": printed or name})


def is_double(value: Any) -> bool:
    """Whether it is a number that float arithmetic gives, and no integer made of one."""
    whole = _Whole | sympy.floor | sympy.ceiling
    if not isinstance(value, sympy.Basic) or isinstance(value, whole):
        return False
    return isinstance(value, Double | sympy.Float) or any(map(is_double, value.args))


def exact(number: Any) -> Any:
    """A float of few binary places as the number that it is; others as they are."""
    scaled = float(number) * _PLACES
    if scaled.is_integer() and abs(scaled) < 2**50:
        return sympy.Rational(int(scaled), _PLACES)
    return number


def added(*terms: Any) -> Any:
    """A sum; of two, where one is a float."""
    return _paired(DoubleSum, sympy.Add, terms)


def multiplied(*factors: Any) -> Any:
    """A product; of two, where one is a float."""
    return _paired(DoubleProduct, sympy.Mul, factors)


def _paired(double: Any, plain: Any, args: tuple[Any, ...]) -> Any:
    if not any(map(is_double, args)):
        return plain(*args)
    if len(args) != 2:
        raise ValueError(f"{plain(*args)}: the order of these floats is not known")
    return double(*args)


def divided(a: Any, b: Any = 1) -> Any:
    """A quotient: exact where both are."""
    if b == 1:
        return a
    return DoubleQuotient(a, b) if is_double(a) or is_double(b) else a / sympy.sympify(b)


def raised(a: Any, b: Any) -> Any:
    """A power; of floats where the exponent is no natural number."""
    whole = getattr(b, "is_Integer", isinstance(b, int)) and b >= 0
    return a**b if whole and not is_double(a) else DoublePower(a, b)


def rounded(name: str, value: Any) -> Any:
    """``floor``, ``ceiling``, ``trunc`` or ``round`` of float arithmetic."""
    return called(f"Double{name.title()}", name, whole=True)(value)
