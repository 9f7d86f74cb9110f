"""Conditions on sizes: what divides what, what a quotient is rounded to, and how they are said."""

from functools import cache
from typing import Any

import sympy

from attnprof.trace.doubles import Double, DoubleLog2, called

#: Levels of a tree that torch can count the points of.
_LEVELS = 60
_SIGNS = {
    "StrictGreaterThan": ">", "GreaterThan": ">=", "StrictLessThan": "<", "LessThan": "<=",
    "Equality": "=", "Unequality": "!=",
}  # fmt: skip


@cache
def divided(condition: Any) -> tuple[Any, Any, Any] | None:
    """Number, divisor and rounded quotient of a condition that one (or not) divides the other.

    Also of ``3*N*h*d = 12*N*floor(h*d/4)``, a multiple of what is left of the division, of
    ``N/floor(N/8) = 8``, of quotients rounded up, as ``d = 2*floor(d/2 + 1/2)``, and of two,
    rounded up and down, as those of ``x[..., ::2]`` and ``x[..., 1::2]``.
    """
    if _SIGNS.get(type(condition).__name__) not in ("=", "!="):
        return None
    difference = sympy.expand(sympy.fraction(sympy.together(condition.lhs - condition.rhs))[0])
    for floor in difference.atoms(sympy.floor, sympy.ceiling):
        number, divisor = floor.args[0].as_numer_denom()
        quotient = sympy.Dummy()
        given = difference.xreplace({floor: quotient})
        factor = -given.coeff(quotient, 1) / divisor
        if factor.is_nonzero and not factor.has(quotient):
            whole = sympy.expand(given / factor + divisor * quotient)
            more = sympy.expand(number - whole)
            more = more if isinstance(floor, sympy.floor) else -more
            if more == 0 or _is_rest(more, divisor):
                return whole, divisor, floor
        up = sympy.floor((number + divisor - 1) / divisor)
        if difference.coeff(up, 1).is_nonzero and difference.xreplace({up: floor}).expand() == 0:
            return number, divisor, floor
    return None


def _is_rest(number: Any, divisor: Any) -> bool:
    """Whether it is from 0 to less than a divisor, whatever the sizes are."""
    sizes = {s: 1 + sympy.Dummy(integer=True, nonnegative=True) for s in divisor.free_symbols}
    return bool(
        number.xreplace(sizes).is_nonnegative and (divisor - number).xreplace(sizes).is_positive
    )


def one_by_one(condition: Any) -> list[Any]:
    """``H*W = 64*floor(H/8)*floor(W/8)`` says that each quotient is whole: none is less."""
    floors = condition.atoms(sympy.floor) if isinstance(condition, sympy.Eq) else set()
    if len(floors) < 2:
        return [condition]
    difference = sympy.expand(condition.lhs - condition.rhs)
    products = [x for x in sympy.Add.make_args(difference) if x.has(sympy.floor)]
    whole = difference.xreplace({floor: floor.args[0] for floor in floors}).expand()
    if whole != 0 or len({x.could_extract_minus_sign() for x in products}) > 1:
        return [condition]
    parts = [(floor, *floor.args[0].as_numer_denom()) for floor in sorted(floors, key=str)]
    return [sympy.Eq(number - by * floor, 0, evaluate=False) for floor, number, by in parts]


def of_a_factor(condition: Any) -> Any:
    """That a product is nothing, as a condition on its one factor that may be."""
    if not isinstance(condition, sympy.Eq) or condition.rhs != 0:
        return condition
    factors = sympy.Mul.make_args(condition.lhs)
    others = [x for x in factors if not (x.is_positive or x.is_number)]
    return sympy.Eq(others[0], 0, evaluate=False) if len(others) == 1 else condition


@cache
def as_whole(condition: Any) -> Any:
    """``16*ceiling(N/16) > N`` as a condition that one divides the other, or not; else as it is.

    A quotient that is rounded is on one side of itself, and equal to it where it is whole.
    """
    sign = _SIGNS.get(type(condition).__name__)
    if sign not in ("<", ">", "<=", ">="):
        return condition
    difference = sympy.expand(condition.lhs - condition.rhs)
    for part in difference.atoms(sympy.floor, sympy.ceiling):
        number, divisor = part.args[0].as_numer_denom()
        times = difference.coeff(part, 1) / divisor
        if not times.is_nonzero or (difference - times * (divisor * part - number)).expand() != 0:
            continue
        above = times.is_positive is isinstance(part, sympy.ceiling)
        if sign == (">" if above else "<"):
            return sympy.Ne(number - divisor * sympy.floor(number / divisor), 0, evaluate=False)
        if sign == ("<=" if above else ">="):
            return sympy.Eq(number - divisor * sympy.floor(number / divisor), 0, evaluate=False)
    return condition


@cache
def rounds_to_none(condition: Any) -> Any:
    """The rounded quotient that is 0 by a condition, if it is one on that alone."""
    sign = _SIGNS.get(type(condition).__name__)
    if sign not in ("=", "<=", "<"):
        return None
    less = 1 if sign == "<" else 0
    factor, quotient = sympy.expand(condition.lhs - condition.rhs + less).as_coeff_Mul()
    told = factor.is_nonzero if sign == "=" else factor.is_positive
    return quotient if told and isinstance(quotient, sympy.floor) else None


@cache
def remainder(condition: Any) -> tuple[Any, Any] | None:
    """Number and divisor of a condition on what is left of a division."""
    for floor in condition.lhs.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        if (condition.lhs - number + divisor * floor).expand() == 0:
            return number, divisor
    return None


def as_division(condition: Any) -> Any:
    """The condition; that less than 1 is left of a division, as one that nothing is."""
    ends = {"<": 1, "<=": 0}
    none = condition.args[1:] == (ends.get(_SIGNS.get(type(condition).__name__, "")),)
    if not none or remainder(condition) is None:
        return condition
    return sympy.Eq(condition.lhs, 0, evaluate=False)


def condition_text(condition: Any) -> str:
    """``N > 307``, ``64 divides N``."""
    condition = as_whole(condition)
    sign = _SIGNS.get(type(condition).__name__)
    if sign is None:
        return _spelled(condition)
    if parts := divided(condition):
        number, divisor, _ = parts
        number = -number if number.could_extract_minus_sign() else number
        return f"{divisor} {'divides' if sign == '=' else 'does not divide'} {number}"
    left, right = _sides(condition)
    return f"{_spelled(left)} {sign} {_spelled(right)}"


def _sides(condition: Any) -> tuple[Any, Any]:
    """Both sides; of polynomials without what they share, nothing subtracted on either."""
    left, right = condition.args
    if not (left - right).is_polynomial(*condition.free_symbols):
        return left, right
    whole = sympy.expand(left - right).primitive()[1]
    shared, *rest = sympy.Mul.make_args(sympy.factor_terms(whole))[::-1]
    terms = sympy.Add.make_args(shared)
    if any(factor.is_negative for factor in rest) or len(terms) < 2:
        return left, right
    minus = [term for term in terms if term.could_extract_minus_sign()]
    return shared - sympy.Add(*minus), -sympy.Add(*minus)


def _spelled(expression: Any) -> str:
    """Its text, with ceilings; a remainder as ``(N mod 64)``."""
    expression = expression.replace(rounds_down, rounded_up)
    printed = str(expression)
    for floor in expression.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        printed = printed.replace(str(number - divisor * floor), f"{number} mod {divisor}")
    return printed


def rounds_down(part: Any) -> bool:
    """Whether it is a quotient rounded down below 0, as torch writes what it rounds up."""
    return isinstance(part, sympy.floor) and bool(part.args[0].could_extract_minus_sign())


def rounded_up(part: Any) -> Any:
    """The same as one rounded up."""
    return -sympy.ceiling(-part.args[0])


def is_wider(bound: Any, other: Any) -> bool:
    """Whether one bound of a size is farther out than another on its side."""
    (size, side, far), (own, its, near) = _bound(bound), _bound(other)
    return bool(size is not None and size == own and side == its and side * (near - far) > 0)


def _bound(condition: Any) -> tuple[Any, int, Any]:
    """A size, 1 where a condition keeps it above a whole number and -1 below, and that number."""
    condition = as_whole(condition)
    sign = _SIGNS.get(type(condition).__name__, "")
    side = {">": 1, "<": -1}.get(sign[:1], 0)
    if not side:
        return None, 0, 0
    left, right = _sides(condition)
    if left.is_Integer:
        left, right, side = right, left, -side
    if not (left.is_Symbol and right.is_Integer):
        return None, 0, 0
    return left, side, right - side * (len(sign) > 1)


def octave(equation: Any) -> list[Any]:
    """The sizes whose logarithm to base 2 rounds to a number; none where it is of something else.

    Loops over levels of a tree have as many turns at all of them.
    """
    levels = [x for x in equation.lhs.atoms(Double) if x.args[0].func is DoubleLog2]
    if len(levels) != 1 or not (number := equation.rhs - equation.lhs + levels[0]).is_Integer:
        return []
    size = levels[0].args[0].args[0]
    if not size.is_Symbol or abs(number) > _LEVELS:
        return []
    if levels[0].func is called("DoubleCeiling", "ceiling", whole=True):
        return [size > 2 ** (number - 1), size <= 2**number]
    if levels[0].func is called("DoubleFloor", "floor", whole=True):
        return [size >= 2**number, size < 2 ** (number + 1)]
    return []
