"""Formula text as sympy expressions: every name a positive symbol, every number exact.

:func:`expression_of` makes an expression of parsed text, :func:`expression_text` writes one,
:func:`is_zero` and :func:`constant_ratio` compare two.
"""

import operator
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import comb, prod
from typing import Any

from attnprof.algebra.maxima import maximum_of
from attnprof.algebra.parser import (
    BITS,
    DIGITS,
    FormulaError,
    FunctionCall,
    Rules,
    Tree,
    bits_of,
    check_power,
    evaluate,
)

#: The highest power in formula text: no cost has a higher one, and to expand it takes for ever.
HIGHEST = 16
#: The highest power of a size after products are taken: N**16*N**16 has 32.
STEEPEST = 64
#: The most terms of a formula written as a sum, and arguments of all its maxima and minima.
MOST_TERMS = 500
MOST_SIDES = 24


def symbol(name: str) -> Any:
    """Return the sympy symbol of a size: positive and real, as in a symbolic workload."""
    import sympy

    return sympy.Symbol(name, positive=True)


def expression_of(
    tree: Tree, *, rules: Rules | None = None, meanings: Mapping[str, Any] | None = None
) -> Any:
    """Return a formula in sympy, its names replaced by ``meanings`` or by symbols of sizes.

    Raises FormulaError where an operation has no value, or where it would take too long.
    """
    values = meanings or {}
    return evaluate(
        tree, lambda name: values[name] if name in values else symbol(name), rules or rules_of()
    )


def rules_of(highest: int = HIGHEST) -> Rules:
    """Return what operators and functions of formula text do in sympy, powers up to ``highest``."""
    import sympy

    def number(value: int | Fraction | bool) -> Any:
        if isinstance(value, bool):
            return sympy.sympify(value)
        return sympy.Rational(value.numerator, value.denominator)

    def exponential(x: Any) -> Any:
        if x.is_number:
            raise FormulaError("exp takes sizes, not numbers")
        if x.has(sympy.exp):
            raise FormulaError("exp of exp is no cost")
        return sympy.exp(x)

    return {
        "number": number,
        "+": sympy.Add,
        "neg": operator.neg,
        "*": lambda *parts: reduce(operator.mul, parts),
        "/": _divided,
        "//": lambda a, b: sympy.floor(_divided(a, b)),
        "**": lambda base, exponent: _power(base, exponent, highest),
        "sqrt": sympy.sqrt,
        "cbrt": sympy.cbrt,
        "log": lambda x, base=None: sympy.log(x) / (1 if base is None else sympy.log(base)),
        "log2": lambda x: sympy.log(x) / sympy.log(2),
        "exp": exponential,
        "ceil": sympy.ceiling,
        "floor": sympy.floor,
        "max": sympy.Max,
        "min": sympy.Min,
        "Abs": sympy.Abs,
        "Rational": _divided,
    }


def _divided(a: Any, b: Any) -> Any:
    if b == 0:
        raise FormulaError("it divides by 0")
    return a / b


def _power(base: Any, exponent: Any, highest: int) -> Any:
    """Return a power; refuse 9**9**9 or the hundredth power of a sum, which would never end."""
    if not exponent.is_Rational or abs(exponent) > highest:
        raise FormulaError(f"powers are numbers up to {highest}")
    if exponent < 0 and base == 0:
        raise FormulaError("it divides by 0")
    check_power(_longest(base), float(exponent))
    return base**exponent


def _longest(expression: Any) -> int:
    """Return the bits of the longest number in an expression, apart from 1 and -1."""
    import sympy

    numbers = expression.atoms(sympy.Rational)
    return max((bits_of(Fraction(x.p, x.q)) for x in numbers if abs(x) != 1), default=0)


def check_size(expression: Any) -> None:
    """Raise FormulaError for no real value, high powers, long numbers and long sums."""
    import sympy

    if expression.has(sympy.zoo, sympy.nan, sympy.oo, sympy.I):
        raise FormulaError("it has no real value")
    for power in expression.atoms(sympy.Pow):
        if not power.exp.is_Rational or abs(power.exp) > STEEPEST:
            raise FormulaError(f"powers of sizes are numbers up to {STEEPEST}")
    if _longest(expression) > BITS:
        raise FormulaError(f"a number has more than {DIGITS} digits")
    if _terms(expression) > MOST_TERMS:
        raise FormulaError(f"written as a sum it has more than {MOST_TERMS} terms")


def _terms(expression: Any) -> int:
    """Return the most terms that an expression may have as a sum: 9 for (N + d + 1)*(N + d + 2)."""
    counts = [_terms(part) for part in expression.args]
    if expression.is_Mul:
        return prod(counts)
    if expression.is_Pow and expression.exp.is_Integer:
        power = int(abs(expression.exp))
        return comb(counts[0] + power - 1, power)
    return sum(counts) if counts else 1


def check_sides(tree: Tree) -> None:
    """Raise FormulaError if maxima and minima have too many arguments to be compared in time."""

    def sides(tree: Tree) -> int:
        if not isinstance(tree, FunctionCall):
            return 0
        most = len(tree.args) if tree.function in ("max", "min") else 0
        return most + sum(map(sides, tree.args))

    if sides(tree) > MOST_SIDES:
        raise FormulaError(f"its maxima have more than {MOST_SIDES} sides")


# -- as text ---------------------------------------------------------------------------
def expanded(expression: Any) -> Any:
    """Return the expression as a sum of monomials; of a Piecewise each branch by itself.

    Sums with a maximum stay as they are: sympy would compare its arguments in pairs, for seconds.
    """
    import sympy

    def monomials(switch: Any, value: Any) -> Any:
        if isinstance(expression, sympy.Max):
            return maximum_of([branch.xreplace({switch: value}) for branch in expression.args])
        return sympy.expand(expression.xreplace({switch: value}))

    def condition(holds: Any) -> Any:
        if not isinstance(holds, sympy.LessThan):
            return holds
        return sympy.LessThan(sympy.expand(holds.lhs), sympy.expand(holds.rhs), evaluate=False)

    expression = sympy.sympify(expression)
    switches = expression.atoms(sympy.Piecewise)
    if len(switches) == 1:
        switch = switches.pop()
        forms = [monomials(switch, value) for value, _ in switch.args]
        if len(set(forms)) == 1:
            return forms[0]
        where = [condition(holds) for _, holds in switch.args]
        return sympy.Piecewise(*zip(forms, where, strict=True), evaluate=False)
    return expression if expression.has(sympy.Max) else sympy.expand(expression)


@lru_cache(maxsize=4096, typed=True)
def expression_text(expression: Any) -> str:
    """Return text like ``4*B*N**2*d*h + 2*B*N*d*h``, which ``sympy.sympify`` reads."""
    return str(expanded(expression))


def expression_latex(expression: Any) -> str:
    """Return the expression, as a sum of monomials, in LaTeX."""
    import sympy

    return str(sympy.latex(expanded(expression)))


# -- whether it is 0 -------------------------------------------------------------------
_DRAWS = 3  # random shapes at which values are compared
_LONG = 150  # operations of a formula from which on sympy takes too long to simplify it
_NONZERO = 1e-9  # larger values are not 0 with rounding errors


def is_zero(expression: Any) -> bool:
    """Return whether an expression is 0 for all positive values of its symbols.

    A quotient of polynomials is 0 if it is 0 at random sizes. Others are for sympy to simplify.
    """
    import sympy

    expression = sympy.sympify(expression)
    if expression.is_Rational:
        return bool(expression == 0)
    values = list(_values(expression))
    if any(value is not None and abs(value) > _NONZERO for value in values):
        return False
    rational = expression.is_rational_function(*expression.free_symbols)
    if rational and all(value is not None and value.is_Rational for value in values):
        return not any(values)
    if sympy.count_ops(expression) >= _LONG:
        return bool(sympy.expand(expression) == 0)
    return bool(sympy.simplify(expression) == 0)


def constant_ratio(a: Any, b: Any) -> Any:
    """Return the number a / b if it is the same at all sizes, else None."""
    import sympy

    if b == 0 or a.has(sympy.Max):
        return None
    ratio = a / b
    if ratio.is_rational_function(*ratio.free_symbols):
        ratios = set(_values(ratio))
        value = ratios.pop()
        return value if not ratios and value is not None and value.is_Rational else None
    if sympy.count_ops(ratio) >= _LONG:
        return None
    ratio = sympy.cancel(ratio)
    return ratio if ratio.is_number else None


def _values(expression: Any) -> Iterator[Any]:
    """Yield the expression's values at a few random shapes, None where it has no finite one."""
    import sympy

    chance = random.Random(0)  # noqa: S311 - no secret
    for _ in range(_DRAWS):
        sizes = {}
        for size in sorted(expression.free_symbols, key=str):
            if size.is_Dummy:  # a remainder of rounding, below 1
                sizes[size] = sympy.Rational(chance.randrange(1, 997), 997)
            else:
                sizes[size] = sympy.Integer(chance.randrange(2, 10**6))
        value = expression.xreplace(sizes)
        value = value if value.is_Rational else sympy.N(value, maxn=60)
        yield value if value.is_Number and value.is_finite else None
