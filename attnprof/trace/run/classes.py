"""Classes of sizes that have one rounded quotient: lengths of 129 to 192 have 3 blocks of 64.

Code that makes a Python number of such a quotient then has formulas for the class, not for all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch.utils._sympy import functions as symbolic

_DOWN, _UP = (sympy.floor, symbolic.FloorDiv), (sympy.ceiling, symbolic.CeilDiv)
_REMAINDERS = (symbolic.Mod, symbolic.PythonMod)


@dataclass
class SizeClasses:
    """Symbols that may be fixed to a class, and the ``ends`` (from, to) of each class so far.

    A condition that says what a rounded quotient of a size and a number is ends the size's class.
    From then on all quotients that are equal for the whole class are numbers.
    """

    sizes: frozenset[Any] = frozenset()
    ends: dict[Any, tuple[int, int]] = field(default_factory=dict)
    looked: int = 0

    def learn(self, guards: list[Any]) -> bool:
        """Narrow the classes by guards that are new; return whether one is narrower now."""
        if not self.sizes or len(guards) == self.looked:
            return False
        new, self.looked = guards[self.looked :], len(guards)
        before = dict(self.ends)
        for guard in new:
            self._learn_from(guard.expr)
        return self.ends != before

    def _learn_from(self, condition: Any) -> None:
        fixed = _fixed(self.rounded(condition), self.sizes)
        if fixed is None:
            return
        size, low, high = fixed
        before = self.ends.get(size, (low, high))
        low, high = max(low, before[0]), min(high, before[1])
        if low < high:
            self.ends[size] = low, high

    def named(self, name: Callable[[Any], Any]) -> "SizeClasses":
        """Return the classes with other names for the sizes."""
        return SizeClasses(ends={name(size): ends for size, ends in self.ends.items()})

    @property
    def conditions(self) -> Iterator[Any]:
        """The bounds of each class, as ``N >= 129`` and ``N <= 192``."""
        for size, (low, high) in self.ends.items():
            yield from (size >= low, size <= high)

    def rounded(self, value: Any) -> Any:
        """Return a value or condition without quotients that are equal for the whole class."""
        if not self.ends or not getattr(value, "free_symbols", set()) & self.ends.keys():
            return value
        known = {part: number for part in value.atoms(*_DOWN, *_UP, *_REMAINDERS)
                 if (number := self._number(part)) is not None}  # fmt: skip
        return self.rounded(value.xreplace(known)) if known else value

    def _number(self, part: Any) -> Any:
        """Return a quotient or remainder as it is in the whole class; None if it varies."""
        parts = _quotient(part)
        size = next(iter(part.free_symbols), None)
        if parts is None or size not in self.ends:
            return None
        number, divisor, up = parts
        sign = -1 if up else 1
        first, last = (
            sign * (sign * number.xreplace({size: sympy.Integer(end)}) // divisor)
            for end in self.ends[size]
        )
        if first != last:
            return None
        return number - divisor * first if isinstance(part, _REMAINDERS) else first


def _quotient(part: Any) -> tuple[Any, Any, bool] | None:
    """Return number and divisor of a rounded quotient or remainder, and whether it is rounded up.

    None unless the number is linear in one size and the divisor is a number.
    """
    number, divisor = part.args if len(part.args) == 2 else part.args[0].as_numer_denom()
    plain = divisor.is_Integer and len(number.free_symbols) == 1
    linear = plain and _is_linear(number, *number.free_symbols)
    return (number, divisor, isinstance(part, _UP)) if linear else None


def _is_linear(number: Any, size: Any) -> bool:
    return bool(number.is_polynomial(size)) and sympy.degree(number, size) == 1


def _unbounded(difference: Any) -> Any:
    """Return an expression with x for ``max(1, x)``, as of strides, where x is positive."""

    def size(bounded: Any) -> Any:
        (other,) = (x for x in bounded.args if x != 1)
        least = other.xreplace(dict.fromkeys(other.free_symbols, sympy.S.One))
        return other if least.is_positive else bounded

    of_one = (x for x in difference.atoms(sympy.Max, symbolic.Max) if 1 in x.args)
    return difference.xreplace({x: size(x) for x in of_one if len(x.args) == 2})


def _fixed(condition: Any, sizes: frozenset[Any]) -> tuple[Any, int, int] | None:
    """Return the size, its least and its largest value if an equation fixes a rounded quotient.

    ``d*ceil(N/128) = d`` gives N, 1 and 128. None for other conditions.
    """
    parts = condition.atoms(*_DOWN, *_UP) if isinstance(condition, sympy.Eq) else set()
    if len(parts) != 1:
        return None
    (part,) = parts
    found, quotient = _quotient(part), sympy.Dummy()
    if found is None or not part.free_symbols <= sizes:
        return None
    difference = _unbounded(condition.lhs - condition.rhs).xreplace({part: quotient})
    factors = sympy.Mul.make_args(sympy.factor(difference))
    unknown = [x for x in factors if not (x.is_positive or x.is_number)]
    if (
        len(unknown) != 1
        or unknown[0].free_symbols != {quotient}
        or not _is_linear(unknown[0], quotient)
    ):
        return None
    value = -unknown[0].coeff(quotient, 0) / unknown[0].coeff(quotient, 1)
    number, divisor, up = found
    (size,) = number.free_symbols
    if not value.is_Integer:
        return None
    least = (value - 1) * divisor + 1 if up else value * divisor
    factor, more = number.coeff(size, 1), number.coeff(size, 0)
    ends = sorted((end - more) / factor for end in (least, least + divisor - 1))
    return size, int(sympy.ceiling(ends[0])), int(sympy.floor(ends[1]))
