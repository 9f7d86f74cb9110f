"""Formulas by their values: at a shape, and how two of them grow beside each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from typing import Any

import mpmath
import sympy

from attnprof.algebra.orders import NOISE, settles
from attnprof.trace.sizes import RULES, evaluate

SizeValues = Mapping[str, int]
Holds = Callable[[SizeValues], bool]  # whether our formula is for these sizes
#: Powers of two whose lengths a ratio is looked at: a logarithm is four times as long each time,
#: so that steps of a ratio that settles shrink, and those of one that grows do not.
BITS = (2**5, 2**7, 2**9, 2**11)
#: The same where sizes are exponents, which takes much longer and tells sooner.
FEWER = (2**3, 2**5, 2**7, 2**9)
#: Bits of a number beyond three times those of the longest size, whose cube is a whole number.
DIGITS = 64
#: What sizes are that do not grow, where our formula holds for that: a logarithm leads the sooner.
FEW = 2
#: A ratio that goes to one is this near to it at the longest length.
ONE = 1e-2


def value(expression: Any, shape: SizeValues) -> int | float:
    """The expression at sizes: an int where it is whole, nan where it has no value."""
    try:
        found = evaluate(expression, shape)
        return int(found) if found == int(found) else float(found)
    except (ArithmeticError, ValueError, TypeError):  # 1/(N - 128) at 128, an overflow
        return nan


def reaches(growing: Sequence[str], shape: SizeValues, holds: Holds) -> bool:
    """Whether our formula holds for long lengths at all."""
    return next(_lengths(shape, dict.fromkeys(growing, 1), BITS, holds), None) is not None


def beside(
    ours: Any, printed: Any, kind: str, growing: Sequence[str], shape: SizeValues, holds: Holds
) -> tuple[bool | None, bool | None]:
    """Whether ours stays below a multiple of ``printed``, and above one; None: undecided."""
    below: list[bool | None] = []
    above: list[bool | None] = []
    for ratios in _all_ratios(ours, printed, growing, shape, holds):
        below.append(_settles(ratios))
        inverse = (None if r is None else 1 / r if r else mpmath.inf for r in ratios)
        above.append(_settles(list(inverse)))
        if (kind != "Ω" and below[-1] is False) or (kind != "O" and above[-1] is False):
            break  # the bound that is asked for is broken
    return _every(below), _every(above)


def same_limit(
    a: Any, b: Any, growing: Sequence[str], shape: SizeValues, holds: Holds
) -> bool | None:
    """Whether a / b goes to one while all the sizes grow together; None if undecided."""
    rays = _all_ratios(a, b, growing, shape, holds, alone=False)
    return _every([_goes_to_one(ratios) for ratios in rays])


def _every(told: Sequence[bool | None]) -> bool | None:
    if False in told:
        return False
    return None if None in told or not told else True


def _all_ratios(
    top: Any, bottom: Any, growing: Sequence[str], shape: SizeValues, holds: Holds, *,
    alone: bool = True,
) -> Iterator[list[Any]]:  # fmt: skip
    """Ratios at ever longer lengths, a list a ray and a way to end a length."""
    exponents = [*_exponents(top), *_exponents(bottom)]
    if any(map(_exponents, exponents)):  # no number holds the value of such a tower
        yield []
        return
    lengths = FEWER if exponents else BITS
    names = sorted({*shape, *growing})
    over, under = (_evaluator(side, names) for side in (top, bottom))
    for ray in _rays(growing, alone=alone):
        with mpmath.workprec(3 * lengths[-1] + DIGITS):
            for grown in _lengths(shape, ray, lengths, holds):
                yield [_ratio(over, under, names, sizes) for sizes in grown]


def _evaluator(expression: Any, names: Sequence[str]) -> Callable[..., Any]:
    """The expression at mpmath's numbers, each part evaluated once; ValueError without a rule."""
    rules = {
        **RULES, "Add": lambda *parts: mpmath.fsum(parts), "Pow": mpmath.power,
        "Mul": lambda *parts: mpmath.fprod(parts), "log": mpmath.log, "exp": mpmath.exp,
        "floor": partial(_rounded, mpmath.floor), "ceiling": partial(_rounded, mpmath.ceil),
    }  # fmt: skip
    nodes = list(dict.fromkeys(sympy.postorder_traversal(sympy.sympify(expression))))

    def evaluated(*sizes: Any) -> Any:
        known: dict[Any, Any] = {}
        given = dict(zip(names, sizes, strict=True))
        for node in nodes:
            kind = type(node).__name__
            if node.is_Symbol:
                known[node] = given[node.name]
            elif kind in rules:
                known[node] = rules[kind](*(known[part] for part in node.args))
            elif node.is_Rational:
                known[node] = mpmath.mpf(node.p) / node.q
            elif node.is_number:
                known[node] = mpmath.mpf(str(node.evalf(mpmath.mp.dps)))
            else:
                raise ValueError(f"{kind} has no rule")
        return known[nodes[-1]]

    return evaluated


def _rounded(to: Callable[[Any], Any], x: Any) -> Any:
    """A floor or a ceiling; a logarithm that is whole but for its last digits is whole."""
    nearest = mpmath.nint(x)
    is_whole = abs(x - nearest) < mpmath.sqrt(mpmath.eps) * max(1, abs(x))
    return nearest if is_whole else to(x)


def _lengths(
    shape: SizeValues, ray: SizeValues, lengths: Sequence[int], holds: Holds
) -> Iterator[list[dict[str, int]]]:
    """SizeValues that grow along a ray, a list a way to end a length, where our formula holds."""
    most = max(ray.values())
    own = [{name: bits * power // most for name, power in ray.items()} for bits in lengths]
    for ending in _ENDINGS:
        for fixed in (dict.fromkeys(shape, FEW), shape):
            grown = [{**fixed, **{n: 2**x + ending(x) for n, x in bits.items()}} for bits in own]
            if all(holds(sizes) for sizes in grown):
                yield grown
                break


def _rays(growing: Sequence[str], *, alone: bool) -> Iterator[SizeValues]:
    """The powers with which sizes grow: each by itself, all alike, one faster than the others."""
    if alone or len(growing) == 1:
        yield from ({name: 1} for name in growing)
    if len(growing) > 1:
        yield dict.fromkeys(growing, 1)
        for name in growing:
            yield {**dict.fromkeys(growing, 1), name: 2}
            yield {**dict.fromkeys(growing, 2), name: 1}


#: How lengths end, for what rounding does to them: 2**bits, what is near it, and a length with
#: many divisors.
_ENDINGS: tuple[Callable[[int], int], ...] = (
    lambda _: 0, lambda _: 1, lambda _: -1, lambda bits: 720720 * 2**bits // 2**20 - 2**bits,
)  # fmt: skip


def _ratio(over: Any, under: Any, names: Sequence[str], sizes: SizeValues) -> Any:
    """As a number of any size; None where it has no value."""
    given = [mpmath.mpf(sizes[name]) for name in names]
    try:
        below = mpmath.mpf(under(*given))
        found = mpmath.mpf(over(*given)) / below if below else mpmath.inf
    except (ArithmeticError, ValueError, TypeError):
        return None
    return found if found >= 0 else None


def _exponents(expression: Any) -> list[Any]:
    """Exponents with a size outside of logarithms: 2**ceiling(log2(N)) is a power of N."""
    found = []
    for part in expression.atoms(sympy.Pow, sympy.exp):
        exponent = part.as_base_exp()[1]
        logs = {log: sympy.Dummy() for log in exponent.atoms(sympy.log)}
        if exponent.free_symbols & exponent.xreplace(logs).free_symbols:
            found.append(exponent)
    return found


def _settles(ratios: Sequence[Any]) -> bool | None:
    """Whether ratios at lengths whose logarithms are four times as long each stay bounded."""
    if not ratios or any(ratio is None for ratio in ratios):
        return None
    if any(mpmath.isinf(ratio) for ratio in ratios):
        return False
    return settles(ratios)


def _goes_to_one(ratios: Sequence[Any]) -> bool | None:
    if not ratios or any(ratio is None or mpmath.isinf(ratio) for ratio in ratios):
        return None
    before, last = (abs(ratio - 1) for ratio in ratios[-2:])
    if last * 2**NOISE <= 1 or (last < ONE and last <= before / 2):
        return True
    return False if last > ONE and last > before / 2 else None
