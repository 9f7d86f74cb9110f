"""The conditions a symbolic run relied on, and whether one of them pins a size."""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import sympy

from attnprof.trace.sizes import evaluate, translated

#: Shapes at which conditions are compared, to say each once.
_SHAPES = 400
_SIGNS = {
    "StrictGreaterThan": ">", "GreaterThan": ">=", "StrictLessThan": "<", "LessThan": "<=",
    "Equality": "=", "Unequality": "!=",
}  # fmt: skip


class Domain:
    """Guards of a symbolic run, over the user's symbols.

    Made inside :func:`attnprof.trace.sizes.spoken`. ``relations`` are the conditions but for those
    that hold for all sizes; one that leaves a size a single value is in ``pinned``: the formula
    would be a mixed, wrong one.
    """

    def __init__(self, environment: Any) -> None:
        pins = [
            f"{translated(old)} = {translated(new)}"
            for old, new in environment.replacements.items()
            if old.free_symbols - new.free_symbols
        ]
        given = [x for guard in environment.guards for x in _conditions(guard.expr)]
        quotients = [_divided(x) for x in given if isinstance(x, sympy.Eq)]
        #: Rounded quotients, and what they are by conditions that one size divides another.
        self._whole = {floor: number / by for number, by, floor in filter(None, quotients)}
        self.relations: list[Any] = []
        for condition in map(self._said_once, given):
            equal = isinstance(condition, sympy.Eq)
            if condition is sympy.true or condition in self.relations:
                continue
            names = sorted(symbol.name for symbol in condition.free_symbols)
            if equal and all(evaluate(condition, shape) for shape in _sample(names)):
                continue  # it asks for nothing
            self.relations.append(condition)
            # a remainder, like that of odd sizes, leaves many values
            if equal and not (condition.rhs.is_Integer and _remainder(condition)):
                pins.append(condition_text(condition))
        self.pinned = tuple(dict.fromkeys(pins))

    def simplified(self, value: Any) -> Any:
        """A size without roundings of quotients that are whole wherever the conditions hold."""
        if not self._whole or not hasattr(value, "xreplace"):
            return value
        found = value.xreplace(self._whole)
        return found if found.is_Boolean or found.is_Relational else found.expand()

    def _said_once(self, condition: Any) -> Any:
        """What says, or denies, that one size divides another, in one way; others simplified."""
        parts = _divided(condition)
        if parts is None:
            asks = isinstance(condition, sympy.Eq | sympy.Ne) and condition.rhs == 1
            odd = _remainder(condition) if asks else None
            if odd is None or odd[1] != 2:
                return self.simplified(condition)
            number = odd[0]  # what is left is 0 or 1
            even = sympy.Eq if isinstance(condition, sympy.Ne) else sympy.Ne
            return even(number - 2 * sympy.floor(number / 2), 0, evaluate=False)
        number, divisor, floor = parts
        return condition.func(number - divisor * floor, 0, evaluate=False)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a shape lies inside."""
        return all(bool(evaluate(condition, sizes)) for condition in self.relations)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """The guards in words, the shortest first; none that holds wherever the shorter ones do.

        That is seen in a large sample: torch asks the same in many ways.
        """
        names = sorted({s.name for c in self.relations for s in c.free_symbols})
        shapes = list(_sample(names))
        kept = []
        for condition in sorted(self.relations, key=lambda c: (len(str(c)), str(c))):
            inside = [shape for shape in shapes if evaluate(condition, shape)]
            if len(inside) < len(shapes):
                kept.append(condition_text(condition))
                shapes = inside
        return tuple(kept)


def _sample(names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Shapes of all magnitudes, half of them with sizes that powers of two divide; repeatable."""
    chance = random.Random(0)  # noqa: S311 - no secret
    for count in range(_SHAPES):
        most = 34 if count % 4 == 3 else 14
        sizes = [max(2, int(2 ** chance.uniform(1, most))) for _ in names]
        unit = 2 ** chance.randint(0, 8) if count % 2 else 1
        yield {name: -(-size // unit) * unit for name, size in zip(names, sizes, strict=True)}


def _conditions(guard: Any) -> list[Any]:
    """A guard as conditions over the user's symbols, none that always holds.

    Strides are made of max(1, size): one that equals the size itself asks for one or more.
    """
    if isinstance(guard, sympy.Eq):
        difference = sympy.sympify(translated(guard.lhs)) - translated(guard.rhs)
        bounded = [part for part in difference.atoms(sympy.Max) if 1 in part.args]
        sizes = {part: sympy.Max(*(arg for arg in part.args if arg != 1)) for part in bounded}
        if difference.xreplace(sizes).expand() == 0:
            return [sympy.Ge(size, 1) for size in sizes.values()]
    condition = translated(guard)
    return [] if condition is sympy.true else [condition]  # symbols are positive


@cache
def _divided(condition: Any) -> tuple[Any, Any, Any] | None:
    """Number, divisor and rounded quotient of a condition that one (or not) divides the other.

    Also of ``3*N*h*d = 12*N*floor(h*d/4)``, a multiple of what is left of the division.
    """
    if _SIGNS.get(type(condition).__name__) not in ("=", "!="):
        return None
    difference = sympy.expand(condition.lhs - condition.rhs)
    for floor in difference.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        quotient = sympy.Dummy()
        given = difference.xreplace({floor: quotient})
        factor = -given.coeff(quotient, 1) / divisor
        rest = given - factor * (number - divisor * quotient)
        if factor.is_nonzero and not factor.has(quotient) and rest.expand() == 0:
            return number, divisor, floor
    return None


@cache
def _remainder(condition: Any) -> tuple[Any, Any] | None:
    """Number and divisor of a condition on what is left of a division."""
    for floor in condition.lhs.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        if (condition.lhs - number + divisor * floor).expand() == 0:
            return number, divisor
    return None


def condition_text(condition: Any) -> str:
    """``N > 307``, ``64 divides N``."""
    sign = _SIGNS.get(type(condition).__name__)
    if sign is None:
        return _spelled(condition)
    if parts := _divided(condition):
        number, divisor, _ = parts
        return f"{divisor} {'divides' if sign == '=' else 'does not divide'} {number}"
    left, right = _sides(condition)
    return f"{_spelled(left)} {sign} {_spelled(right)}"


def _sides(condition: Any) -> tuple[Any, Any]:
    """Both sides; of polynomials without what they share, nothing subtracted on either."""
    left, right = condition.args
    if not (left - right).is_polynomial(*condition.free_symbols):
        return left, right
    shared, *rest = sympy.Mul.make_args(sympy.factor_terms(sympy.expand(left - right)))[::-1]
    terms = sympy.Add.make_args(shared)
    if any(factor.is_negative for factor in rest) or len(terms) < 2:
        return left, right
    minus = [term for term in terms if term.could_extract_minus_sign()]
    return shared - sympy.Add(*minus), -sympy.Add(*minus)


def _spelled(expression: Any) -> str:
    """Its text; a remainder as ``(N mod 64)``."""
    printed = str(expression)
    for floor in expression.atoms(sympy.floor):
        number, divisor = floor.args[0].as_numer_denom()
        printed = printed.replace(str(number - divisor * floor), f"{number} mod {divisor}")
    return printed
