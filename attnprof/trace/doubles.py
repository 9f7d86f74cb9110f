"""Keep Python's float arithmetic inside formulas: step by step, as the code computes it.

``ceil(N*0.07)`` at N = 100 is 8 in Python, where the product is 7.000000000000001, and 7 in real
numbers. So :func:`from_torch` writes it with a ``DoubleProduct``, which sympy does not rearrange,
is printed as ``0.07*N``, and is evaluated with floats by :mod:`attnprof.algebra.values`.
"""

import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE

#: Floats that are multiples of 1/4096, such as 0.25, are fractions: arithmetic on sizes is exact.
_DENOMINATOR = 2**12


class Double(sympy.Function):  # type: ignore[misc]
    """An operation on floats; ``plain`` makes that on real numbers, which is printed."""

    is_real = True
    plain: Callable[..., Any]

    def _eval_evalf(self, prec: int) -> Any:
        """Return the value, None if it has sizes; sympy orders terms by it."""
        from attnprof.algebra.values import evaluate

        return None if self.free_symbols else sympy.Float(evaluate(self, {}), precision=prec)

    def _sympystr(self, printer: Any) -> str:
        return str(printer._print(self.plain(*self.args)))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        printed = str(printer._print(self.plain(*self.args)))
        return printed if exp is None else rf"\left({printed}\right)^{{{exp}}}"


def _operation(name: str, precedence: str, plain: Callable[[Any, Any], Any]) -> Any:
    """Return the class of an operation on two floats, which is printed as that of ``plain``."""
    members = {"precedence": PRECEDENCE[precedence], "plain": staticmethod(plain)}
    return type(name, (Double,), members)


DoubleSum = _operation("DoubleSum", "Add", partial(sympy.Add, evaluate=False))
DoubleProduct = _operation("DoubleProduct", "Mul", partial(sympy.Mul, evaluate=False))
DoublePower = _operation("DoublePower", "Pow", partial(sympy.Pow, evaluate=False))
DoubleQuotient = _operation(
    "DoubleQuotient", "Mul", lambda a, b: DoubleProduct.plain(a, DoublePower.plain(b, -1))
)


class _FloatFunction(Double):
    """A function of a float, printed by its name: as ``text``, in LaTeX as ``tex``."""

    precedence = PRECEDENCE["Func"]
    text = tex = ""

    def _eval_is_nonnegative(self) -> bool | None:
        """Return True for roots; for roundings, whether their argument is nonnegative."""
        if type(self).__name__ == "DoubleSqrt":
            return True
        return self.args[0].is_nonnegative if isinstance(self, _Rounding) else None

    def _sympystr(self, printer: Any) -> str:
        return self.text.format(", ".join(map(printer._print, self.args)))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        inside = ", ".join(map(printer._print, self.args))
        power = "" if exp is None else f"^{{{exp}}}"
        return rf"{self.tex}{power}\left({inside}\right)"


class DoubleLog2(_FloatFunction):
    """The logarithm to base 2, exact at powers of two as that of C."""

    text, tex = "log({}, 2)", r"\log_2"


class _Rounding(_FloatFunction):
    """A rounding of a float to an integer."""

    is_integer = True


@cache
def float_function(name: str, printed: str = "", *, whole: bool = False) -> Any:
    """Return the function that :mod:`attnprof.algebra.values` has as ``name``.

    ``printed`` is its name in formulas, which sympy can read. ``whole``: it gives integers.
    """
    printed = printed or name
    members = {"text": f"{printed}({{}})", "tex": rf"\operatorname{{{printed}}}"}
    return type(name, (_Rounding if whole else _FloatFunction,), members)


def is_double(value: Any) -> bool:
    """Return whether Python's code has a float here; a float rounded to an integer is none."""
    whole = _Rounding | sympy.floor | sympy.ceiling
    if not isinstance(value, sympy.Basic) or isinstance(value, whole):
        return False
    return isinstance(value, Double | sympy.Float) or any(map(is_double, value.args))


def exact(number: Any) -> Any:
    """Return a multiple of 1/4096 as a rational, 0.25 as 1/4; other floats as they are."""
    scaled = float(number) * _DENOMINATOR
    is_short = scaled.is_integer() and abs(scaled) < 2**50
    return sympy.Rational(int(scaled), _DENOMINATOR) if is_short else number


def _sum_or_product(double: Any, plain: Any, *args: Any) -> Any:
    """Return ``double`` of two numbers if one is a float, else ``plain`` of all, which are exact.

    Raises ValueError for more than two: the order in which floats are added changes the sum.
    """
    if not any(map(is_double, args)):
        return plain(*args)
    if len(args) != 2:
        raise ValueError(f"{plain(*args)}: the order of these floats is not known")
    return double(*args)


def quotient(a: Any, b: Any = 1) -> Any:
    """Return a quotient, a fraction unless one of both is a float."""
    if b == 1:
        return a
    return DoubleQuotient(a, b) if is_double(a) or is_double(b) else a / sympy.sympify(b)


def power(a: Any, b: Any) -> Any:
    """Return a power: that of floats unless the exponent is a natural number and the base exact."""
    whole = getattr(b, "is_Integer", isinstance(b, int)) and b >= 0
    return a**b if whole and not is_double(a) else DoublePower(a, b)


# -- torch's functions --------------------------------------------------------------------


def from_torch(expression: Any, names: Mapping[Any, Any]) -> Any:
    """Return torch's expression in sympy's functions and those here; ``names`` replace symbols.

    Raises ValueError for a function that has no such form.
    """
    if expression.is_Symbol:
        return names.get(expression, expression)
    if expression.is_Float:
        return exact(expression)
    args = [from_torch(arg, names) for arg in expression.args]
    kind = type(expression).__name__
    if kind in _FROM_TORCH:
        return _FROM_TORCH[kind](*args)
    if kind.startswith("OpaqueUnaryFn_"):
        name = kind.removeprefix("OpaqueUnaryFn_")  # a function of :mod:`math`
        rule = DoubleLog2 if name == "log2" else float_function(f"Double{name.title()}", name)
        return rule(*args)
    if kind in {"TruncToFloat", "RoundDecimal", "LShift", "RShift", "Where"}:
        raise ValueError(f"{expression}: a size that no formula here can say")
    return expression.func(*args) if args else expression


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer: sizes are, though the user's symbols are only real.

    A polynomial is one, as N·(N + 1)/2, if it is at 0 to its degree in each size.
    """
    sizes = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in value.free_symbols}
    if value.xreplace(sizes).is_integer or not sizes or not value.is_polynomial(*sizes):
        return bool(value.xreplace(sizes).is_integer)
    polynomial = sympy.Poly(value, *sizes)
    places = product(*(range(degree + 1) for degree in polynomial.degree_list()))
    return all(polynomial(*place).is_integer for place in places)


def _rounding(name: str, *ratio: Any) -> Any:
    """Return ``floor``, ``ceiling`` or ``round`` of a ratio: exact, or as floats compute it."""
    value = quotient(*ratio)
    is_integer = _is_integer(value)
    if is_double(value) or (name == "round" and not is_integer):
        return float_function(f"Double{name.title()}", name, whole=True)(value)
    if is_integer:
        return value
    for term in sympy.Add.make_args(value):  # floor(floor(x)/n + k/n) is floor(x/n + k/n)
        part, inner = term.as_coeff_Mul()
        rest = value - term
        if part.p == 1 and inner.func is getattr(sympy, name) and _is_integer(rest / part):
            return _rounding(name, part * inner.args[0] + rest)
    return getattr(sympy, name)(value)


def _maximum(*args: Any) -> Any:
    """Return the maximum, without 1 if one argument is a product of sizes: these are 2 or more."""
    above = any(
        all(base.is_Symbol and exponent.is_Integer and exponent > 0 for base, exponent in powers)
        for powers in (argument.as_powers_dict().items() for argument in args)
    )
    return sympy.Max(*(argument for argument in args if argument != 1 or not above))


#: Constructors by the name of torch's function.
_FROM_TORCH: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("FloorDiv", "FloorToInt", "TruncToInt"), partial(_rounding, "floor")),
    **dict.fromkeys(("CeilDiv", "CeilToInt"), partial(_rounding, "ceiling")),
    "RoundToInt": partial(_rounding, "round"),
    **dict.fromkeys(("ToFloat", "Identity"), lambda a: a),
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a - b * _rounding("floor", a, b)),
    "BitwiseFn_bitwise_and": float_function("bitwise_and", whole=True),
    "BitwiseFn_bitwise_or": float_function("bitwise_or", whole=True),
    "BitwiseFn_bitwise_xor": float_function("bitwise_xor", whole=True),
    "Max": _maximum, "Min": sympy.Min, "PowByNatural": operator.pow, "FloatPow": power,
    "Add": partial(_sum_or_product, DoubleSum, sympy.Add),
    "Mul": partial(_sum_or_product, DoubleProduct, sympy.Mul),
    **dict.fromkeys(("CleanDiv", "IntTrueDiv", "FloatTrueDiv"), quotient),
}  # fmt: skip
