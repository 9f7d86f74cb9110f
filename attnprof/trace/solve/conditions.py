"""Conditions on sizes: which size divides which, what a quotient is rounded to; and their text."""

import math
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

import sympy

from attnprof.algebra.values import evaluate
from attnprof.trace.doubles import Double, DoubleLog2, float_function

#: Most levels of a tree whose points torch can count.
_LEVELS = 60
#: Longest period over which conditions on remainders are compared.
_LONGEST_PERIOD = 4096
_MIRRORED = str.maketrans("<>", "><")
#: Stands for a size, or a product of sizes.
_SIZE = sympy.Symbol("size", positive=True)


@cache
def division_in(condition: Any) -> tuple[Any, Any, Any] | None:
    """Return number, divisor and rounded quotient of a condition that one divides the other.

    Also of its negation; None for other conditions. ``N = 64*floor(N/64)`` gives N, 64 and
    floor(N/64). Recognized as well: ``3*N*h*d = 12*N*floor(h*d/4)``, a multiple of a remainder;
    ``N/floor(N/8) = 8``; a quotient rounded up, ``d = 2*floor(d/2 + 1/2)``; and a quotient rounded
    up equal to that rounded down, as of ``x[..., ::2]`` and ``x[..., 1::2]``.
    """
    if not isinstance(condition, sympy.Eq | sympy.Ne):
        return None
    difference = sympy.expand(sympy.fraction(sympy.together(condition.lhs - condition.rhs))[0])
    for floor in difference.atoms(sympy.floor, sympy.ceiling):
        number, divisor = floor.args[0].as_numer_denom()
        quotient = sympy.Dummy()
        with_quotient = difference.xreplace({floor: quotient})
        factor = sympy.cancel(-with_quotient.coeff(quotient, 1) / divisor)
        if factor.is_nonzero and not factor.has(quotient):
            number_side = sympy.expand(with_quotient / factor + divisor * quotient)
            rest = sympy.expand(number - number_side)
            rest = rest if isinstance(floor, sympy.floor) else -rest
            if rest == 0 or _is_rest(rest, divisor):
                return number_side, divisor, floor
        up = sympy.floor((number + divisor - 1) / divisor)
        if difference.coeff(up, 1).is_nonzero and difference.xreplace({up: floor}).expand() == 0:
            return number, divisor, floor
    return None


def _sign(condition: Any) -> str:
    """Return the sign of a comparison, ``<=`` or ``!=``; an empty string for anything else."""
    return getattr(condition, "rel_op", "")


def dividing(relations: Iterable[Any], size: str) -> Any:
    """Return the largest number that conditions say divides a size; 1 if none does."""
    equations = (division_in(x) for x in relations if isinstance(x, sympy.Eq))
    divisors = [by for number, by, _ in filter(None, equations) if str(number) == size]
    return max((by for by in divisors if by.is_Integer), default=sympy.S.One)


def _is_rest(number: Any, divisor: Any) -> bool:
    """Return whether a number is from 0 to less than a divisor, whatever the sizes are.

    Rounded parts of the divisor are sizes, too: ``floor(sqrt(N))`` pieces are at least one.
    """
    parts = divisor.atoms(sympy.Symbol, sympy.Function)
    sizes = {part: 1 + sympy.Dummy(integer=True, nonnegative=True) for part in parts}
    return bool(
        number.xreplace(sizes).is_nonnegative and (divisor - number).xreplace(sizes).is_positive
    )


@cache
def as_whole(condition: Any) -> Any:
    """Return ``16*ceiling(N/16) > N`` as "16 does not divide N"; other conditions as they are.

    A rounded quotient is never on the other side of the quotient, and equal where that is whole.
    """
    sign = _sign(condition)
    if sign[:1] not in ("<", ">"):
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
    """Return the rounded quotient that a condition says is 0, ``floor(N/64)``; else None."""
    sign = _sign(condition)
    if sign not in ("==", "<=", "<"):
        return None
    less = 1 if sign == "<" else 0
    factor, quotient = sympy.expand(condition.lhs - condition.rhs + less).as_coeff_Mul()
    holds = factor.is_nonzero if sign == "==" else factor.is_positive
    return quotient if holds and isinstance(quotient, sympy.floor) else None


@cache
def remainder(condition: Any) -> tuple[Any, Any] | None:
    """Return number and divisor of a condition on a remainder: N, 64 of ``N - 64*floor(N/64)``."""
    for floor in condition.lhs.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        if (condition.lhs - number + divisor * floor).expand() == 0:
            return number, divisor
    return None


def fewest_of_remainders(conditions: Iterable[Any]) -> list[Any]:
    """Return the conditions, the shortest first, those on remainders of a size as few as possible.

    ``N mod 64 != 2`` says nothing that "2 does not divide N" does not; "5 does not divide N" and
    ``N mod 5 <= 1`` are ``N mod 5 = 1``, "2 does not divide N - 1" is "2 divides N".
    """
    fewest, by_size = list[Any](), dict[Any, dict[Any, int]]()
    for condition in conditions:
        if period := _period(condition):
            (size,) = condition.free_symbols
            by_size.setdefault(size, {})[condition] = period
        else:
            fewest.append(condition)
    for size, periods in by_size.items():
        period = math.lcm(*periods.values())
        fewest += _fewest(size, list(periods), period) if period <= _LONGEST_PERIOD else periods
    return sorted(fewest, key=lambda condition: (len(str(condition)), str(condition)))


def _period(condition: Any) -> int:
    """Return after how many numbers a condition on remainders of one size repeats; 0 for others."""
    difference = condition.lhs - condition.rhs
    rounded = difference.atoms(sympy.floor, sympy.ceiling)
    slopes = [part.args[0].diff(size) for part in rounded for size in condition.free_symbols]
    if len(condition.free_symbols) != 1 or not all(slope.is_Rational for slope in slopes):
        return 0
    # a rounded quotient is the quotient but for a rest, which repeats
    rests = {part: part.args[0] - sympy.Dummy() for part in rounded}
    grows = difference.xreplace(rests).expand().free_symbols & condition.free_symbols
    return 0 if grows else math.lcm(*(int(slope.q) for slope in slopes))


def _fewest(size: Any, conditions: list[Any], period: int) -> list[Any]:
    """Return the fewest of the conditions on a size's remainders, or one that names the only one.

    Of one condition it is named only if it is 0: "2 does not divide N" stays.
    """
    every, needed = frozenset(range(period)), list(conditions)
    passed = {
        condition: {x for x in every if evaluate(condition, {size.name: period + x})}
        for condition in conditions
    }
    allowed = every.intersection(*passed.values())
    for condition in conditions:
        others = [passed[other] for other in needed if other is not condition]
        if others and every.intersection(*others) == allowed:
            needed.remove(condition)
    divisor, first = period // max(len(allowed), 1), min(allowed, default=0)
    alone = first < divisor and allowed == set(range(first, period, divisor))
    if not alone or (first > 0 and len(needed) < 2):
        return needed
    return [sympy.Eq(size - divisor * sympy.floor(size / divisor), first, evaluate=False)]


def as_division(condition: Any) -> Any:
    """Return "remainder < 1" as "remainder = 0"; other conditions as they are."""
    ends = {"<": 1, "<=": 0}
    none = condition.args[1:] == (ends.get(_sign(condition)),)
    if not none or remainder(condition) is None:
        return condition
    return sympy.Eq(condition.lhs, 0, evaluate=False)


def condition_text(condition: Any) -> str:
    """Return a condition in words: ``N > 307``, ``64 divides N``."""
    condition = _unrounded_bound(as_whole(condition))
    sign = _sign(condition).replace("==", "=")
    if not sign:
        return _spelled(condition)
    if division := division_in(condition):
        number, divisor, _ = division
        parts = [x for x in sympy.Add.make_args(number) if not is_whole(x / divisor)]
        number = sympy.Add(*parts)
        number = -number if number.could_extract_minus_sign() else number
        return f"{divisor} {'divides' if sign == '=' else 'does not divide'} {number}"
    left, right = _sides(condition)
    if left.is_number:
        left, right, sign = right, left, sign.translate(_MIRRORED)
    return f"{_spelled(left)} {sign} {_spelled(right)}"


def _unrounded_bound(condition: Any) -> Any:
    """Return a bound of one rounded quotient as a bound of its number, else the same condition.

    ``ceiling(d*h/16) - 2 >= 0`` is ``d*h > 16``: quotients above 1 are rounded up to at least 2.
    """
    sign = _sign(condition)
    difference = sympy.expand((condition.lhs - condition.rhs).replace(sympy.floor, rounded))
    parts = difference.atoms(sympy.floor, sympy.ceiling)
    if sign[:1] not in (">", "<") or len(parts) != 1:
        return condition
    part = parts.pop()
    factor, rest = difference.coeff(part), difference - difference.coeff(part) * part
    number, divisor = part.args[0].as_numer_denom()
    if abs(factor) != 1 or not (rest.is_Integer and divisor.is_Integer):
        return condition
    is_lower, strict = (sign[0] == ">") == (factor == 1), len(sign) == 1
    end = -rest * factor + (strict if is_lower else -strict)  # the quotient may be this, too
    if isinstance(part, sympy.floor):
        return number >= end * divisor if is_lower else number < (end + 1) * divisor
    return number > (end - 1) * divisor if is_lower else number <= end * divisor


def _sides(condition: Any) -> tuple[Any, Any]:
    """Return both sides of a condition; of polynomials without common factors or subtractions."""
    left, right = condition.args
    if not (left - right).is_polynomial(*condition.free_symbols):
        equal = _sign(condition) in ("==", "!=")
        quotient, number = _quotient_in(left - right)
        return (quotient, number) if equal and number.is_Integer else (left, right)
    whole = sympy.expand(left - right).primitive()[1]
    shared, *rest = sympy.Mul.make_args(sympy.factor_terms(whole))[::-1]
    terms = sympy.Add.make_args(shared)
    if any(factor.is_negative for factor in rest) or len(terms) < 2:
        return left, right
    minus = [term for term in terms if term.could_extract_minus_sign()]
    return shared - sympy.Add(*minus), -sympy.Add(*minus)


def _quotient_in(difference: Any) -> tuple[Any, Any]:
    """Return the only rounded quotient in a difference, and its number where that is 0.

    ``2*floor(N/4) - 2`` gives floor(N/4) and 1; the number is NaN if there is no such quotient.
    """
    difference = sympy.expand(difference.replace(sympy.floor, rounded))
    quotients = difference.atoms(sympy.floor, sympy.ceiling)
    quotient = quotients.pop() if len(quotients) == 1 else sympy.S.Zero
    factor = difference.coeff(quotient) if quotient else 0
    return quotient, sympy.expand(quotient - difference / factor) if factor else sympy.nan


def _spelled(expression: Any) -> str:
    """Return the text of an expression, with ceilings; a remainder as ``(N mod 64)``."""
    expression = expression.replace(sympy.floor, rounded)
    printed = str(expression)
    for floor in expression.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        printed = printed.replace(str(number - divisor * floor), f"{number} mod {divisor}")
    return printed


def is_whole(ratio: Any) -> bool:
    """Return whether a ratio is a polynomial in sizes with whole factors."""
    factors = ratio.expand().as_coefficients_dict().values()
    return ratio.is_polynomial(*ratio.free_symbols) and all(x.is_Integer for x in factors)


def rounded(number: Any) -> Any:
    """Return the floor of a number, of -x as ``-ceiling(x)``: torch writes no ceilings."""
    negative = number.could_extract_minus_sign()
    return -sympy.ceiling(-number) if negative else sympy.floor(number)


def is_wider(bound: Any, other: Any) -> bool:
    """Return whether a bound is wider than another on its side: ``N > 5`` than ``N > 9``."""
    (*alike, far), (*others, near) = _bound(bound), _bound(other)
    return bool(alike[0] is not None and alike == others and alike[1] * (near - far) > 0)


@lru_cache(maxsize=4096)  # compared with every other condition of a domain
def _bound(condition: Any) -> tuple[Any, int, Any]:
    """Return size, side and number of a bound: N, 1, 5 of ``N > 5`` and N, -1, 5 of ``N < 5``."""
    condition = _unrounded_bound(as_whole(condition))
    sign = _sign(condition)
    side = {">": 1, "<": -1}.get(sign[:1], 0)
    if not side:
        return None, 0, 0
    left, right = _sides(condition)
    if left.is_Integer:
        left, right, side = right, left, -side
    if not (left.is_Symbol and right.is_Integer):
        return None, 0, 0
    return left, side, right - side * (len(sign) > 1)


def as_ranges(conditions: Iterable[Any]) -> list[Any]:
    """Return conditions, those on one size that cut off an end of its range as a bound of it.

    ``floor(H/4) != 1`` beside ``H >= 4`` is ``H >= 8``; ``N != 2`` is ``N >= 3``, as sizes are at
    least 2.
    """
    kept, by_size = list[Any](), dict[Any, dict[Any, list[Any]]]()
    for condition in conditions:
        size, excluded = _excluded(condition)
        if excluded:
            by_size.setdefault(size, {})[condition] = excluded
        else:
            kept.append(condition)
    for size, cut in by_size.items():
        stretches = sorted(stretch for each in cut.values() for stretch in each)
        bounds = [x for x in cut if _bound(x)[0] == size]
        least, most = sympy.Integer(2), sympy.oo
        for first, last in stretches:
            least = max(least, last + 1) if first <= least else least
        for first, last in reversed(stretches):
            most = min(most, first - 1) if last >= most else most
        if least > 2:
            same = [x for x in bounds if cut[x] == [(1, least - 1)]]
            kept += same[:1] or [size >= least]
        if most < sympy.oo:
            same = [x for x in bounds if cut[x] == [(most + 1, sympy.oo)]]
            kept += same[:1] or [size <= most]
        for condition, each in cut.items():
            if any(least < first and last < most for first, last in each):
                kept.append(condition)
    return kept


def _excluded(condition: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the size of a condition on one size alone, and the stretches of it that it excludes.

    ``floor(N/4) != 1`` gives N, and 4 to 7; a product of sizes is one, too. There are no stretches
    for other conditions, such as those on remainders, and where sizes above
    :data:`_LONGEST_PERIOD` would have to be tried.
    """
    size, side, number = _bound(condition)
    if side:
        return size, [(1, number)] if side > 0 else [(number, sympy.oo)]
    left, right = _sides(condition)
    difference = sympy.expand(left - right)
    quotients = {part: part.args[0] for part in difference.atoms(sympy.floor, sympy.ceiling)}
    start, rest = sympy.expand(difference.xreplace(quotients)).as_coeff_Add()
    slope, size = rest.as_coeff_Mul()
    difference = difference.subs(size, _SIZE)
    factors = [*map(difference.coeff, difference.atoms(sympy.floor, sympy.ceiling))]
    of_sizes = all(factor.is_Symbol for factor in sympy.Mul.make_args(size))
    numbers = all(number.is_Rational for number in (start, *factors))
    if not (of_sizes and numbers and difference.free_symbols == {_SIZE}):
        return None, []
    settled = math.ceil((abs(start) + sum(map(abs, factors))) / abs(slope)) + 1
    if settled > _LONGEST_PERIOD:  # from there on the condition holds, or never does
        return None, []
    alone, stretches = condition.func(difference, 0, evaluate=False), list[tuple[Any, Any]]()
    for number in map(sympy.Integer, range(1, settled + 1)):
        if evaluate(alone, {_SIZE.name: int(number)}):
            continue
        joined = stretches and stretches[-1][1] == number - 1
        first = stretches.pop()[0] if joined else number
        stretches.append((first, sympy.oo if number == settled else number))
    return size, stretches


def octave(equation: Any) -> list[Any]:
    """Return bounds of a size whose rounded logarithm is fixed; none for other equations.

    ``ceiling(log2(N)) = 3`` gives N > 4 and N <= 8. A loop over levels of a tree has as many turns
    at all sizes between.
    """
    levels = [x for x in equation.lhs.atoms(Double) if x.args[0].func is DoubleLog2]
    if len(levels) != 1 or not (number := equation.rhs - equation.lhs + levels[0]).is_Integer:
        return []
    size = levels[0].args[0].args[0]
    if not size.is_Symbol or abs(number) > _LEVELS:
        return []
    if levels[0].func is float_function("DoubleCeiling", "ceiling", whole=True):
        return [size > 2 ** (number - 1), size <= 2**number]
    if levels[0].func is float_function("DoubleFloor", "floor", whole=True):
        return [size >= 2**number, size < 2 ** (number + 1)]
    return []
