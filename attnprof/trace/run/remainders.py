"""Simplify symbolic sizes in blocks, which torch does not: quotients, padded sizes, square roots.

With N = 64*q + r and r below 64, ``N // 64`` is q whatever r is; ``N + (-N) % 64`` is whole blocks.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.fx.experimental import sym_node
from torch.utils._sympy import functions as symbolic

#: Functions of a number and a divisor.
_QUOTIENTS = (symbolic.FloorDiv, symbolic.Mod, symbolic.PythonMod, symbolic.CeilDiv)
#: Roundings of a quotient.
_ROUNDED = (symbolic.CeilToInt, symbolic.FloorToInt, symbolic.TruncToInt)
_REMAINDERS = (symbolic.Mod, symbolic.PythonMod)


def in_whole_blocks(total: Any) -> Any:
    """Return a sum with one term for a size padded or cut to blocks: -64*(-N//64) for N + (-N)%64.

    Torch does not see that 64 divides ``N + (-N) % 64``, and compares such sizes for long.
    """
    terms = total.as_coefficients_dict() if total.is_Add else {}
    for rest, sign in terms.items():
        if not isinstance(rest, _REMAINDERS) or abs(sign) != 1:
            continue
        block = rest.args[1]
        size = _congruent(rest.args[0], block)
        terms_of_size = size.as_coefficients_dict()
        if size and all(
            terms.get(term, 0) == -sign * factor for term, factor in terms_of_size.items()
        ):
            blocks = -sign * block * symbolic.FloorDiv(size, block)
            return in_whole_blocks(total - sign * rest + sign * size + blocks)
    return total


def _congruent(number: Any, block: Any) -> Any:
    """Return a shorter number with the same remainder, without whole blocks and remainders."""
    inside = {part: part.args[0] for part in number.atoms(*_REMAINDERS) if part.args[1] == block}
    terms = sympy.Add.make_args(sympy.expand(number.xreplace(inside)))
    return sympy.Add(*(term for term in terms if sympy.fraction(term / block)[1] != 1))


def _root_of(value: Any) -> Any | None:
    """Return the size that a float is, if it is the root of its square: N of ``sqrt(N**2)``."""
    power = isinstance(value, symbolic.FloatPow) and value.args[1] == 0.5
    if not (power or isinstance(value, symbolic.OpaqueUnaryFn_sqrt)):
        return None
    root = sympy.sqrt(value.args[0].replace(symbolic.ToFloat, lambda inside: inside))
    return root if root.is_integer else None


def keeping_roots(rounding: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rounding that gives the root of a square exactly, as floats do."""

    def rounded(node: Any, *digits: Any) -> Any:
        root = None if digits else _root_of(node.expr)
        if root is None:
            return rounding(node, *digits)
        return sym_node.SymNode(root, node.shape_env, int, int(node.hint))

    return rounded


@dataclass
class Rests:
    """Symbols of remainders, each from 2 to one less than its block, and ``hints`` of all."""

    blocks: Mapping[Any, Any]
    hints: Mapping[Any, int]
    _cache: dict[Any, Any] = field(default_factory=dict)

    def rounded(self, expression: Any) -> Any:
        """Return an expression without quotients and remainders that no rest of a block changes."""
        if not self.blocks or expression.free_symbols.isdisjoint(self.blocks):
            return expression
        if expression not in self._cache:
            self._cache[expression] = self._without(expression)
        return self._cache[expression]

    def _without(self, expression: Any) -> Any:
        parts = expression.atoms(*_QUOTIENTS, *_ROUNDED)
        for part in sorted(parts, key=sympy.count_ops):
            value = self._value(part)
            if value is not None:
                replaced = expression.xreplace({part: value})
                return self.rounded(
                    sympy.expand(replaced) if isinstance(replaced, sympy.Expr) else replaced
                )
        return expression

    def _value(self, part: Any) -> Any | None:
        """Return a rounded quotient or remainder without rounding; None if a rest changes it."""
        number, *divisor = part.args
        if isinstance(part, _ROUNDED):
            if not isinstance(number, symbolic.IntTrueDiv):
                return None
            number, *divisor = number.args
        up = isinstance(part, symbolic.CeilDiv | symbolic.CeilToInt)
        whole = self._floor(-number if up else number, divisor[0])
        if whole is None:
            return None
        if isinstance(part, _REMAINDERS):
            return number - whole * divisor[0]
        return -whole if up else whole

    def _floor(self, number: Any, divisor: Any) -> Any | None:
        whole, rest = sympy.S.Zero, sympy.S.Zero
        for term in sympy.Add.make_args(sympy.expand(number)):
            quotient = sympy.cancel(term / divisor)
            if quotient.is_integer and quotient.is_polynomial():
                whole += quotient
            else:
                rest += term
        at = rest.xreplace(self.hints), divisor.xreplace(self.hints)
        if not all(x.is_Integer for x in at) or at[1] <= 0:
            return None
        few = at[0] // at[1]
        inside = self._natural(rest - few * divisor) and self._natural(
            few * divisor + divisor - 1 - rest
        )
        return whole + few if inside else None

    def _natural(self, number: Any) -> bool:
        """Return whether a number is 0 or more: linear in the rests, so at both ends of each."""
        ends = [sympy.expand(number)]
        for rest, block in self.blocks.items():
            if any(not end.is_polynomial(rest) or sympy.degree(end, rest) > 1 for end in ends):
                return False
            ends = [end.xreplace({rest: x}) for end in ends for x in (sympy.Integer(2), block - 1)]
        # a block that is a size is 3 at least, as there is a rest of 2
        sized = {block for block in self.blocks.values() if block.is_Symbol}
        symbols = set().union(*(x.free_symbols for x in ends))
        low = {s: s + (3 if s in sized else 2) for s in symbols}
        return all(
            factor >= 0
            for end in ends
            for factor in sympy.expand(end.xreplace(low)).as_coefficients_dict().values()
        )


# -- classes of sizes that have one rounded quotient: N from 129 to 192 has 3 blocks of 64 --
# Code that makes a Python number of such a quotient has formulas for the class, not for all.
_DOWN, _UP = (sympy.floor, symbolic.FloorDiv), (sympy.ceiling, symbolic.CeilDiv)


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
            if (fixed := _fixed(self.rounded(guard.expr), self.sizes)) is None:
                continue
            size, low, high = fixed
            first, last = self.ends.get(size, (low, high))
            low, high = max(low, first), min(high, last)
            if low < high:
                self.ends[size] = low, high
        return self.ends != before

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
        numbers = {part: number for part in value.atoms(*_DOWN, *_UP, *_REMAINDERS)
                   if (number := self._number(part)) is not None}  # fmt: skip
        return self.rounded(value.xreplace(numbers)) if numbers else value

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
    fraction, quotient = _quotient(part), sympy.Dummy()
    if fraction is None or not part.free_symbols <= sizes:
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
    number, divisor, up = fraction
    (size,) = number.free_symbols
    if not value.is_Integer:
        return None
    least = (value - 1) * divisor + 1 if up else value * divisor
    factor, more = number.coeff(size, 1), number.coeff(size, 0)
    ends = sorted((end - more) / factor for end in (least, least + divisor - 1))
    return size, int(sympy.ceiling(ends[0])), int(sympy.floor(ends[1]))


# -- kept results of symbolic arithmetic -------------------------------------------------
def once_each(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an operation on two symbolic sizes that keeps its results for a run."""

    def remembered(one: Any, other: Any) -> Any:
        results = getattr(one.shape_env, "arithmetic_results", None)
        if results is None:
            return operation(one, other)
        key = operation, one._expr, other._expr, one.pytype, other.pytype
        if key not in results:
            node = operation(one, other)
            whole = in_whole_blocks(node.expr)
            if whole is not node.expr:
                node = sym_node.SymNode(whole, node.shape_env, node.pytype, node.hint)
            results[key] = node
        return results[key]

    return remembered


def at_once(question: Callable[..., bool]) -> Callable[..., bool]:
    """Return a question to a comparison, answered without torch if plainly true or false."""

    def answered(node: Any, *place: Any) -> bool:
        condition = node._expr
        return condition is sympy.true or (condition is not sympy.false and question(node, *place))

    return answered


# -- quotients by torch.div keep their sizes ---------------------------------------------
_div: Any = torch.div
_ON_TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": operator.add,
    "__radd__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__rmul__": operator.mul,
}


def patches() -> Iterator[Any]:
    """Yield patches for the time of a symbolic run."""
    yield patch.object(torch, "div", _divided)
    for name, rule in _ON_TENSORS.items():
        yield patch.object(torch.Tensor, name, _following_sizes(getattr(torch.Tensor, name), rule))


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _divided(one: Any, other: Any, *, rounding_mode: Any = None, **how: Any) -> Any:
    """Return ``torch.div``'s result; of two sizes, with their quotient remembered as its size."""
    result = _div(one, other, rounding_mode=rounding_mode, **how)
    if rounding_mode and _is_size(one) and _is_size(other):
        result.item_memo = one // other
    return result


def _following_sizes(plain: Any, rule: Callable[[Any, Any], Any]) -> Any:
    """Return an operation on tensors that gives a result with a size if the operand has one."""

    def method(tensor: Any, other: Any) -> Any:
        result = plain(tensor, other)
        size = getattr(tensor, "item_memo", None) if _is_size(other) else None
        if size is not None and isinstance(result, torch.Tensor):
            result.item_memo = rule(size, other)  # type: ignore[attr-defined]
        return result

    return method
