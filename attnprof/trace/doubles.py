"""Keep Python's float arithmetic inside formulas: done step by step, as the code does it.

To sympy ``N*0.07`` and ``log(N)/log(2)`` are real numbers, which it reorders; rounded up they can
differ by one from what the code computes. The functions here (:func:`plain` makes them of torch's
expressions) print like real arithmetic, but sympy leaves them as they are, and
:mod:`attnprof.algebra.values` evaluates them with floats.
"""

import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE

#: A float of so many binary places, or fewer, is exact in all that sizes go through.
_PLACES = 2**12


class Double(sympy.Function):  # type: ignore[misc]
    """A step of float arithmetic; ``plain`` makes the step on real numbers, to be printed."""

    is_real = True
    plain: Callable[..., Any]

    def _eval_evalf(self, prec: int) -> Any:
        """Return the value if no sizes are in it, which sympy needs to order terms."""
        from attnprof.algebra.values import evaluate

        return None if self.free_symbols else sympy.Float(evaluate(self, {}), precision=prec)

    def _sympystr(self, printer: Any) -> str:
        return str(printer._print(self.plain(*self.args)))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        printed = str(printer._print(self.plain(*self.args)))
        return printed if exp is None else rf"\left({printed}\right)^{{{exp}}}"


def _step(name: str, precedence: str, plain: Callable[[Any, Any], Any]) -> Any:
    """Return the class of an operation on two floats, printed as ``plain`` prints it."""
    members = {"precedence": PRECEDENCE[precedence], "plain": staticmethod(plain)}
    return type(name, (Double,), members)


DoubleSum = _step("DoubleSum", "Add", partial(sympy.Add, evaluate=False))
DoubleProduct = _step("DoubleProduct", "Mul", partial(sympy.Mul, evaluate=False))
DoublePower = _step("DoublePower", "Pow", partial(sympy.Pow, evaluate=False))
DoubleQuotient = _step(
    "DoubleQuotient", "Mul", lambda a, b: DoubleProduct.plain(a, DoublePower.plain(b, -1))
)


class _Called(Double):
    """A function, printed by its name."""

    precedence = PRECEDENCE["Func"]
    text = tex = ""

    def _eval_is_nonnegative(self) -> bool | None:
        """Return True for roots; for roundings, whether their argument is nonnegative."""
        if type(self).__name__ == "DoubleSqrt":
            return True
        return self.args[0].is_nonnegative if isinstance(self, _Whole) else None

    def _sympystr(self, printer: Any) -> str:
        return self.text.format(", ".join(map(printer._print, self.args)))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        inside = ", ".join(map(printer._print, self.args))
        power = "" if exp is None else f"^{{{exp}}}"
        return rf"{self.tex}{power}\left({inside}\right)"


class DoubleLog2(_Called):
    """The logarithm to base 2: exact at powers of two, as C's."""

    text, tex = "log({}, 2)", r"\log_2"


class _Whole(_Called):
    """A rounding of a float to an integer."""

    is_integer = True


@cache
def called(name: str, printed: str = "", *, whole: bool = False) -> Any:
    """Return the sympy function ``name`` of the evaluator, printed by a name that sympy reads."""
    printed = printed or name
    members = {"text": f"{printed}({{}})", "tex": rf"\operatorname{{{printed}}}"}
    return type(name, (_Whole if whole else _Called,), members)


def is_double(value: Any) -> bool:
    """Return whether a value is a float of float arithmetic; an integer rounded from one is not."""
    whole = _Whole | sympy.floor | sympy.ceiling
    if not isinstance(value, sympy.Basic) or isinstance(value, whole):
        return False
    return isinstance(value, Double | sympy.Float) or any(map(is_double, value.args))


def exact(number: Any) -> Any:
    """Return a float of few binary places as a rational, 0.25 as 1/4; others as they are."""
    scaled = float(number) * _PLACES
    is_short = scaled.is_integer() and abs(scaled) < 2**50
    return sympy.Rational(int(scaled), _PLACES) if is_short else number


def _paired(double: Any, plain: Any, *args: Any) -> Any:
    """Return a sum or product: ``double`` of two floats, ``plain`` of exact numbers."""
    if not any(map(is_double, args)):
        return plain(*args)
    if len(args) != 2:
        raise ValueError(f"{plain(*args)}: the order of these floats is not known")
    return double(*args)


def divided(a: Any, b: Any = 1) -> Any:
    """Return a quotient, exact if both numbers are."""
    if b == 1:
        return a
    return DoubleQuotient(a, b) if is_double(a) or is_double(b) else a / sympy.sympify(b)


def raised(a: Any, b: Any) -> Any:
    """Return a power; as floats compute it unless the exponent is a natural number."""
    whole = getattr(b, "is_Integer", isinstance(b, int)) and b >= 0
    return a**b if whole and not is_double(a) else DoublePower(a, b)


# -- torch's functions --------------------------------------------------------------------


def plain(expression: Any, names: Mapping[Any, Any]) -> Any:
    """Return torch's expression over the user's symbols, with functions that print and evaluate.

    Raises ValueError for a function that has no such form.
    """
    if expression.is_Symbol:
        return names.get(expression, expression)
    if expression.is_Float:
        return exact(expression)
    args = [plain(arg, names) for arg in expression.args]
    kind = type(expression).__name__
    if kind in _PLAIN:
        return _PLAIN[kind](*args)
    if kind.startswith("OpaqueUnaryFn_"):
        name = kind.removeprefix("OpaqueUnaryFn_")  # of :mod:`math`, as floats compute it
        return (DoubleLog2 if name == "log2" else called(f"Double{name.title()}", name))(*args)
    if kind in {"TruncToFloat", "RoundDecimal", "LShift", "RShift", "Where"}:
        raise ValueError(f"{expression}: a size that no formula here can say")
    return expression.func(*args) if args else expression


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer: sizes are, though the user's symbols are only real."""
    sizes = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in value.free_symbols}
    return bool(value.xreplace(sizes).is_integer)


def _rounded(name: str, *ratio: Any) -> Any:
    """Return ``floor``, ``ceiling`` or ``round`` of a ratio: exact, or as floats compute it."""
    value = divided(*ratio)
    is_integer = _is_integer(value)
    if is_double(value) or (name == "round" and not is_integer):
        return called(f"Double{name.title()}", name, whole=True)(value)
    if is_integer:
        return value
    for term in sympy.Add.make_args(value):  # floor(floor(x)/n + k/n) is floor(x/n + k/n)
        part, inner = term.as_coeff_Mul()
        rest = value - term
        if part.p == 1 and inner.func is getattr(sympy, name) and _is_integer(rest / part):
            return _rounded(name, part * inner.args[0] + rest)
    return getattr(sympy, name)(value)


def _larger(*args: Any) -> Any:
    """Return the maximum, without 1 if a product of sizes is in it: free sizes are 2 or more."""
    above = any(
        all(base.is_Symbol and exponent.is_Integer and exponent > 0 for base, exponent in powers)
        for powers in (argument.as_powers_dict().items() for argument in args)
    )
    return sympy.Max(*(argument for argument in args if argument != 1 or not above))


#: Torch's functions by name, as plain sympy; its arithmetic with floats, which may be exact.
_PLAIN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("FloorDiv", "FloorToInt", "TruncToInt"), partial(_rounded, "floor")),
    **dict.fromkeys(("CeilDiv", "CeilToInt"), partial(_rounded, "ceiling")),
    "RoundToInt": partial(_rounded, "round"),
    **dict.fromkeys(("ToFloat", "Identity"), lambda a: a),
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a - b * _rounded("floor", a, b)),
    "BitwiseFn_bitwise_and": called("bitwise_and", whole=True),
    "BitwiseFn_bitwise_or": called("bitwise_or", whole=True),
    "BitwiseFn_bitwise_xor": called("bitwise_xor", whole=True),
    "Max": _larger, "Min": sympy.Min, "PowByNatural": operator.pow, "FloatPow": raised,
    "Add": partial(_paired, DoubleSum, sympy.Add),
    "Mul": partial(_paired, DoubleProduct, sympy.Mul),
    **dict.fromkeys(("CleanDiv", "IntTrueDiv", "FloatTrueDiv"), divided),
}  # fmt: skip
