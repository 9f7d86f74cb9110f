"""Orders of growth: the leading terms of formulas, the exponents of counts, and upper bounds."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from statistics import linear_regression
from typing import Any

from attnprof.algebra.expressions import is_zero
from attnprof.errors import RequestError

#: By size: its power, and the power of its logarithm.
Growth = Mapping[str, tuple[Any, Any]]
_NO_GROWTH = (0, 0)
#: Directions in which sizes grow: each is t to a whole power up to this.
STEPS = 6
#: Exponents of two of the lengths at which growth is seen; each has four times as many bits.
FAR = (2**5, 2**7, 2**9)
#: Bits by which a change of a ratio must be smaller than the ratio to count as rounding.
NOISE = 60
_ORDER = re.compile(r"N(?:\^(?P<power>[0-9.]+))?(?P<log> log N)?")


@dataclass(frozen=True)
class Term:
    """A term: its growth, and its factor (a number, or a product of sizes that stay fixed)."""

    growth: Growth
    factor: Any

    def stays_below(self, other: Growth) -> bool:
        """Return whether it grows no faster than ``other``, in every size."""
        names = {*self.growth, *other}
        return all(self.growth.get(n, _NO_GROWTH) <= other.get(n, _NO_GROWTH) for n in names)

    def along(self, weights: Mapping[str, int]) -> tuple[Any, Any]:
        """Return the powers of t and log(t) in the term if every size is t to its weight."""
        growing = [(weights[name], power) for name, power in self.growth.items()]
        powers = sum(weight * power for weight, (power, _) in growing)
        return powers, sum(logs for weight, (_, logs) in growing if weight)

    @property
    def key(self) -> frozenset[tuple[str, tuple[Any, Any]]]:
        """The growth as a hashable value."""
        return frozenset(self.growth.items())

    def expression(self, *, factor: bool = True) -> Any:
        """Return the growth as a sympy expression."""
        import sympy

        product = self.factor if factor else sympy.Integer(1)
        for name, (power, logs) in self.growth.items():
            size = sympy.Symbol(name, positive=True)
            product *= size**power * sympy.log(size) ** logs
        return product


def leading_terms(expression: Any, growing: Sequence[str]) -> list[Term] | None:
    """Return the terms that no other one outgrows, while these sizes grow and the others stay.

    None if it is unknown, as for a maximum without a largest side, or a power of a sum.
    """
    import sympy

    smooth = _smooth(sympy.sympify(expression), growing)
    if smooth is None:
        return None
    leading: dict[Any, Term] = {}
    for part in sympy.Add.make_args(sympy.expand(smooth)):
        term = _term(part, growing)
        if term is None:
            return None
        before = leading.get(term.key)
        factor = term.factor if before is None else before.factor + term.factor
        leading[term.key] = Term(term.growth, factor)
    terms = [term for term in leading.values() if not is_zero(term.factor)]
    below = [any(x.stays_below(y.growth) for y in terms if y is not x) for x in terms]
    return [term for term, hidden in zip(terms, below, strict=True) if not hidden]


def total(terms: Sequence[Term], *, factors: bool = True) -> Any:
    """Return the terms as one expression."""
    import sympy

    return sympy.Add(*(term.expression(factor=factors) for term in terms))


def same_terms(a: Sequence[Term], b: Sequence[Term]) -> bool:
    """Return whether both have the same terms, with the same factors."""
    ours, others = ({term.key: term.factor for term in terms} for terms in (a, b))
    return set(ours) == set(others) and all(is_zero(ours[key] - others[key]) for key in ours)


def bounds(upper: Sequence[Term], lower: Sequence[Term]) -> bool:
    """Return whether ``lower`` stays below a multiple of ``upper``, in whatever way the sizes grow.

    Sizes grow like powers of one t, and no term of ``lower`` may outgrow all terms of ``upper``:
    N*d stays below N^2 + d^2, although neither below N^2 nor below d^2 alone.
    """
    names = sorted({name for term in (*upper, *lower) for name in term.growth})
    for direction in product(range(STEPS + 1), repeat=len(names)):
        weights = dict(zip(names, direction, strict=True))
        most = max((term.along(weights) for term in upper), default=None)
        if most is None or any(term.along(weights) > most for term in lower):
            return not lower
    return True


def _term(part: Any, growing: Sequence[str]) -> Term | None:
    import sympy

    growth: dict[str, tuple[Any, Any]] = {}
    factor = sympy.Integer(1)
    for item in sympy.Mul.make_args(part):
        base, power = item.as_base_exp()
        inside = base.args[0] if isinstance(base, sympy.log) else base
        if not _grows(item, growing):
            factor *= item
        elif inside.is_Symbol and power.is_Rational:
            plain, logs = growth.get(inside.name, _NO_GROWTH)
            is_log = inside is not base
            growth[inside.name] = (plain, logs + power) if is_log else (plain + power, logs)
        else:
            return None
    return Term({name: powers for name, powers in growth.items() if powers != _NO_GROWTH}, factor)


def _smooth(expression: Any, growing: Sequence[str]) -> Any:
    """Return the expression without rounding (a rest below 1) and maxima (the largest side)."""
    import sympy

    rest: dict[Any, Any] = {}

    def rounded(x: Any, sign: int) -> Any:
        return x + sign * rest.setdefault((x, sign), sympy.Dummy("u", nonnegative=True))

    smooth = expression.replace(sympy.ceiling, lambda x: rounded(x, 1))
    smooth = smooth.replace(sympy.floor, lambda x: rounded(x, -1))
    while choices := [c for c in smooth.atoms(sympy.Max, sympy.Min) if _grows(c, growing)]:
        innermost = min(choices, key=sympy.count_ops)
        winner = _winner(innermost, growing)
        if winner is None:
            return None
        smooth = smooth.xreplace({innermost: winner})
    return None if smooth.has(sympy.Piecewise, sympy.Mod) else smooth


def _grows(expression: Any, growing: Sequence[str]) -> bool:
    return not {symbol.name for symbol in expression.free_symbols}.isdisjoint(growing)


def _winner(choice: Any, growing: Sequence[str]) -> Any:
    """Return the side of a maximum (minimum) that is largest (smallest) at large sizes, if any."""
    import sympy

    sign = 1 if isinstance(choice, sympy.Max) else -1

    def outgrows(side: Any, other: Any) -> bool:
        rest = leading_terms(sign * side - sign * other, growing)
        return rest is not None and all(term.factor.is_positive for term in rest)

    sides = choice.args
    return next((x for x in sides if all(outgrows(x, y) for y in sides if y is not x)), None)


# -- orders as text, and counts at lengths ----------------------------------------------
def order_value(order: str, n: int) -> float:
    """Return the value of an order like ``N^1.5`` or ``N log N``; RequestError for other texts."""
    match = _read(order)
    value = math.pow(n, float(match["power"] or 1))
    return value * math.log2(n) if match["log"] else value


def _read(order: str) -> re.Match[str]:
    match = _ORDER.fullmatch(order)
    if match is None:
        raise RequestError(
            f"order of growth '{order}': write it like N, N^2, N^1.5 or N log N, in tokens N"
        )
    return match


def settles(ratios: Sequence[Any]) -> bool | None:
    """Return whether ratios at the lengths of :data:`FAR` stay bounded; None if undecided."""
    before, last = [after - ratio for ratio, after in pairwise(ratios)][-2:]
    if last * 2**NOISE <= ratios[-1]:
        return True
    if before <= 0:  # it fell and rises again
        return False if last > ratios[-2] else None
    if 5 * last <= 3 * before:
        return True
    return False if 5 * last >= 7 * before else None


def stays_within(order: str, value: Callable[[int], int]) -> bool | None:
    """Return whether a count stays below a multiple of an order, up to 2**512; None: undecided."""
    match = _read(order)
    power, log = Fraction(match["power"] or 1), bool(match["log"])
    growth = {bits: 2 ** int(power * bits) * (bits if log else 1) for bits in FAR}
    return settles([Fraction(value(2**bits), grown) for bits, grown in growth.items()])


def fitted(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent over the longer half of the lengths (at least two of them)."""
    first = min(len(lengths) // 2, len(lengths) - 2)
    return exponent(lengths[first:], values[first:])


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Return the power of the length with which values grow: the slope of their logarithms."""
    return linear_regression(list(map(math.log, lengths)), list(map(math.log, values))).slope
