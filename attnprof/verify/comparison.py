"""Compare a printed formula with ours: equality, leading terms, or growth (O, Ω, Θ).

Algebra decides where it can. Otherwise both are evaluated at lengths up to 2**2048: values so far
apart show whether their ratio settles or grows without end. Entry points: :func:`compared` for
equality and leading terms, :func:`ordered` for growth.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isclose, nan
from typing import Any

import mpmath
import sympy

from attnprof.algebra.expressions import is_zero
from attnprof.algebra.orders import NOISE, Term, bounds, leading_terms, same_terms, settles, total
from attnprof.algebra.values import RULES, evaluate

SizeValues = Mapping[str, int]
Holds = Callable[[SizeValues], bool]  # whether our formula is for these sizes
#: Exponents of two of the lengths at which a ratio is evaluated. The logarithm of the length
#: grows fourfold each time: then steps of a bounded ratio shrink, those of log N do not.
BITS = (2**5, 2**7, 2**9, 2**11)
#: The same for formulas with sizes as exponents, whose values are far longer and differ sooner.
FEWER = (2**3, 2**5, 2**7, 2**9)
#: Bits of mpmath's numbers, besides the bits of the longest size cubed.
DIGITS = 64
#: The value of sizes that do not grow, if our formula holds there: small, so that growth shows.
FEW = 2
#: Distance from 1 at the longest length, below which a ratio is taken to tend to 1.
ONE = 1e-2


def value(expression: Any, shape: SizeValues) -> int | float:
    """Return the expression at sizes: an int where it is whole, nan where it has no value."""
    try:
        result = evaluate(expression, shape)
        return int(result) if result == int(result) else float(result)
    except (ArithmeticError, ValueError, TypeError):  # 1/(N - 128) at 128, an overflow
        return nan


def growth_bounds(
    ours: Any, printed: Any, kind: str, growing: Sequence[str], shape: SizeValues, holds: Holds
) -> tuple[bool | None, bool | None]:
    """Return whether ours stays below a multiple of ``printed``, and above one; None: undecided."""
    below, above = list[bool | None](), list[bool | None]()
    for ratios in _all_ratios(ours, printed, growing, shape, holds):
        below.append(_settles(ratios))
        above.append(_settles([None if r is None else 1 / r if r else mpmath.inf for r in ratios]))
        if (kind != "Ω" and below[-1] is False) or (kind != "O" and above[-1] is False):
            break  # the printed bound is broken
    return _every(below), _every(above)


def _every(verdicts: Sequence[bool | None]) -> bool | None:
    if False in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def _all_ratios(
    top: Any, bottom: Any, growing: Sequence[str], shape: SizeValues, holds: Holds, *,
    alone: bool = True,
) -> Iterator[list[Any]]:  # fmt: skip
    """Yield ratios at ever longer lengths: a list for each ray and each ending of a length."""
    exponents = [*_exponents(top), *_exponents(bottom)]
    if any(map(_exponents, exponents)):  # a tower of powers is too large for any number
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
    """Return a function that evaluates the expression in mpmath; ValueError without a rule."""
    rules = {
        **RULES, "Add": lambda *parts: mpmath.fsum(parts), "Pow": mpmath.power,
        "Mul": lambda *parts: mpmath.fprod(parts), "log": mpmath.log, "exp": mpmath.exp,
        "floor": partial(_rounded, mpmath.floor), "ceiling": partial(_rounded, mpmath.ceil),
    }  # fmt: skip
    nodes = list(dict.fromkeys(sympy.postorder_traversal(sympy.sympify(expression))))

    def evaluated(*sizes: Any) -> Any:
        values: dict[Any, Any] = {}
        by_name = dict(zip(names, sizes, strict=True))
        for node in nodes:
            kind = type(node).__name__
            if node.is_Symbol:
                values[node] = by_name[node.name]
            elif kind in rules:
                values[node] = rules[kind](*(values[part] for part in node.args))
            elif node.is_Rational:
                values[node] = mpmath.mpf(node.p) / node.q
            elif node.is_number:
                values[node] = mpmath.mpf(str(node.evalf(mpmath.mp.dps)))
            else:
                raise ValueError(f"{kind} has no rule")
        return values[nodes[-1]]

    return evaluated


def _rounded(to: Callable[[Any], Any], x: Any) -> Any:
    """Return a floor or a ceiling; a logarithm within rounding of a whole number is whole."""
    nearest = mpmath.nint(x)
    is_whole = abs(x - nearest) < mpmath.sqrt(mpmath.eps) * max(1, abs(x))
    return nearest if is_whole else to(x)


def _lengths(
    shape: SizeValues, ray: SizeValues, lengths: Sequence[int], holds: Holds
) -> Iterator[list[dict[str, int]]]:
    """Yield lists of sizes that grow along a ray, if our formula holds: one for each ending."""
    most = max(ray.values())
    shapes = [{name: bits * power // most for name, power in ray.items()} for bits in lengths]
    for ending in _ENDINGS:
        for fixed in (dict.fromkeys(shape, FEW), shape):
            grown = [{**fixed, **{n: 2**x + ending(x) for n, x in bits.items()}} for bits in shapes]
            if all(holds(sizes) for sizes in grown):
                yield grown
                break


def _rays(growing: Sequence[str], *, alone: bool) -> Iterator[SizeValues]:
    """Yield powers of growth by size: each size alone, all alike, one faster or slower than all."""
    if alone or len(growing) == 1:
        yield from ({name: 1} for name in growing)
    if len(growing) > 1:
        yield dict.fromkeys(growing, 1)
        for name in growing:
            yield {**dict.fromkeys(growing, 1), name: 2}
            yield {**dict.fromkeys(growing, 2), name: 1}


#: Endings of lengths, as formulas with floors depend on divisors: 2**bits, numbers near it, and
#: a length with many divisors.
_ENDINGS: tuple[Callable[[int], int], ...] = (
    lambda _: 0, lambda _: 1, lambda _: -1, lambda bits: 720720 * 2**bits // 2**20 - 2**bits,
)  # fmt: skip


def _ratio(over: Any, under: Any, names: Sequence[str], sizes: SizeValues) -> Any:
    """Return the ratio in mpmath, infinite for a divisor of 0; None without a value."""
    numbers = [mpmath.mpf(sizes[name]) for name in names]
    try:
        below = mpmath.mpf(under(*numbers))
        ratio = mpmath.mpf(over(*numbers)) / below if below else mpmath.inf
    except (ArithmeticError, ValueError, TypeError):
        return None
    return ratio if ratio >= 0 else None


def _exponents(expression: Any) -> list[Any]:
    """Return exponents with a size outside of logarithms: 2**ceiling(log2(N)) is a power of N."""
    exponents = []
    for part in expression.atoms(sympy.Pow, sympy.exp):
        exponent = part.as_base_exp()[1]
        logs = {log: sympy.Dummy() for log in exponent.atoms(sympy.log)}
        if exponent.free_symbols & exponent.xreplace(logs).free_symbols:
            exponents.append(exponent)
    return exponents


def _settles(ratios: Sequence[Any]) -> bool | None:
    """Return whether ratios stay bounded at lengths whose logarithms grow fourfold each."""
    if not ratios or None in ratios:
        return None
    return not any(map(mpmath.isinf, ratios)) and settles(ratios)


def _goes_to_one(ratios: Sequence[Any]) -> bool | None:
    if not ratios or any(ratio is None or mpmath.isinf(ratio) for ratio in ratios):
        return None
    before, last = (abs(ratio - 1) for ratio in ratios[-2:])
    if last * 2**NOISE <= 1 or (last < ONE and last <= before / 2):
        return True
    return False if last > ONE and last > before / 2 else None


EXACT, LEADING, ORDER = "exact", "leading", "order"
UP_TO = (EXACT, LEADING, ORDER)
#: The basis of a verdict on growth without terms to compare, for its text.
VALUES = "seen from values at lengths up to 2**2048"
_CLOSE = 1e-12
#: Operations of a formula with roundings and maxima beyond which algebra takes too long.
LONG = 150


@dataclass(frozen=True)
class Comparison:
    """A verdict on two formulas: whether they agree (None: undecided), the difference, and why."""

    agrees: bool | None
    difference: str | None
    why: str
    leading_printed: str | None = None
    leading_ours: str | None = None
    leading_agrees: bool | None = None


def compared(
    printed: Any, ours: Any, up_to: str, growing: Sequence[str], shapes: Sequence[SizeValues],
    holds: Holds = lambda _: True,
) -> Comparison:  # fmt: skip
    """Return whether two formulas are equal, or their leading terms in the ``growing`` sizes.

    If algebra does not decide, both are evaluated at the shapes, and at long lengths where our
    formula ``holds``.
    """
    missing = sympy.sympify(ours) - printed
    missing = sympy.expand(missing) if _is_short(missing) else missing
    equal, basis = _equal(missing, printed, ours, shapes)
    difference, sentence = (None, basis) if equal else _difference(missing, printed, ours, shapes)
    if up_to == EXACT and not growing:
        return Comparison(equal, difference, sentence)
    mine, theirs = (_leading(side, growing) for side in (ours, printed))
    if mine is None or theirs is None or _has_rounding(mine) or _has_rounding(theirs):
        if up_to == EXACT or equal:
            return Comparison(equal, difference, sentence)
        shape = _sizes(shapes, printed, ours)  # all sizes grow together
        rays = _all_ratios(ours, printed, growing, shape, holds, alone=False)
        same = _every([_goes_to_one(ratios) for ratios in rays])
        words = "undecided whether ours over printed goes to one"
        if same is not None:
            words = f"ours over printed {'goes' if same else 'does not go'} to one"
        return Comparison(same, difference, f"{words}, {VALUES}: {sentence}")
    same, agrees = same_terms(theirs, mine), equal
    leading = str(total(theirs)), str(total(mine))
    if up_to == LEADING:
        agrees = same
        if not same:
            sentence = f"the leading terms are {leading[1]}, not {leading[0]}"
        elif not equal:
            sentence = f"beyond the leading terms {sentence}"
    return Comparison(agrees, difference, sentence, *leading, same)


def _sizes(shapes: Sequence[SizeValues], printed: Any, ours: Any) -> SizeValues:
    """Return a shape with every size in both formulas: the first one, completed."""
    names = sympy.Tuple(sympy.sympify(printed), sympy.sympify(ours)).free_symbols
    return {**{symbol.name: FEW for symbol in names}, **next(iter(shapes), {})}


def ordered(
    printed: Any, ours: Any, kind: str, growing: Sequence[str], shapes: Sequence[SizeValues],
    holds: Holds = lambda _: True,
) -> Comparison:  # fmt: skip
    """Return whether the printed growth bounds ours: above (``O``), below (``Ω``), both (``Θ``).

    Leading terms decide; without any to compare, values at long lengths.
    """
    shape = _sizes(shapes, printed, ours)
    if not any(_lengths(shape, dict.fromkeys(growing, 1), BITS, holds)):
        return Comparison(None, None, "undecided: our formula does not hold for long lengths")
    mine, theirs = (_leading(side, growing) for side in (ours, printed))
    if mine is None or theirs is None or _has_rounding(theirs) or not mine or not theirs:
        return _bounded(kind, *growth_bounds(ours, printed, kind, growing, shape, holds), VALUES)
    below, above = bounds(theirs, mine), bounds(mine, theirs)
    printed_order, our_order = (str(total(terms, factors=False)) for terms in (theirs, mine))
    basis = f"ours grows like {our_order}"
    return _bounded(kind, below, above, basis, printed_order, our_order, below and above)


def _bounded(
    kind: str, below: bool | None, above: bool | None, basis: str, *leading: Any
) -> Comparison:
    """Return whether a bound of this kind holds; ``basis`` says why."""
    sides = {"O": [below], "Ω": [above], "Θ": [below, above]}[kind]
    if False in sides:
        words = "faster" if below is False and kind != "Ω" else "slower"
        why = f"ours grows {words} than the printed one: {basis}"
        return Comparison(False, None, why, *leading)
    if None in sides:
        why = "undecided: neither terms nor values tell how the two grow"
        return Comparison(None, None, why, *leading)
    why = f"the bound holds: {basis}" if basis == VALUES else ""
    if kind != "Θ" and (above if kind == "O" else below) is False:
        why = f"a bound that is not tight: {basis}"
    return Comparison(True, None, why, *leading)


def _leading(expression: Any, growing: Sequence[str]) -> list[Term] | None:
    return leading_terms(expression, growing) if _is_short(expression) else None


def _is_short(expression: Any) -> bool:
    """Return whether algebra on it is fast: it is short, or has no rounding and no branches."""
    plain = not expression.has(sympy.Max, sympy.Min, sympy.floor, sympy.ceiling, sympy.Piecewise)
    return plain or bool(sympy.count_ops(expression) < LONG)


def _has_rounding(terms: Sequence[Term]) -> bool:
    """Return whether a factor has a remainder of rounding."""
    return any(term.factor.has(sympy.Dummy) for term in terms)


def _equal(missing: Any, printed: Any, ours: Any, shapes: Sequence[SizeValues]) -> tuple[bool, str]:
    """Return whether both are equal, and the basis: "" for algebra, else the shapes tried."""
    if missing == 0:
        return True, ""
    symbols = sorted(missing.free_symbols, key=str)
    if missing.is_rational_function(*symbols):
        return is_zero(missing), ""
    if not all(alike(printed, ours, shape) for shape in shapes):
        return False, ""
    return True, f"equal at the {len(shapes)} shapes tried; algebra did not decide"


def alike(printed: Any, ours: Any, shape: SizeValues) -> bool:
    """Return whether both have the same value at a shape, to a float's last digits."""
    a, b = value(printed, shape), value(ours, shape)
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    with suppress(OverflowError):  # an int beyond the range of floats
        return isclose(a, b, rel_tol=_CLOSE)
    return False


def _difference(
    missing: Any, printed: Any, ours: Any, shapes: Sequence[SizeValues]
) -> tuple[str | None, str]:
    """Return ours minus printed, and the sentence on it; an example if it is not a plain sum."""
    if missing.has(sympy.Max, sympy.Min, sympy.Piecewise) or not _is_short(missing):
        shape = next(shape for shape in shapes if not alike(printed, ours, shape))
        sizes = ", ".join(f"{name}={size}" for name, size in shape.items())
        a, b = value(printed, shape), value(ours, shape)
        return None, f"at {sizes} the printed formula gives {a:,}, ours {b:,}"
    terms = sorted(sympy.Add.make_args(missing), key=_rank)
    omitted = [term for term in terms if term.as_coeff_Mul()[0] > 0]
    overcounted = [-term for term in terms if term.as_coeff_Mul()[0] < 0]
    verbs = (("omits", omitted), ("overcounts by", overcounted))
    parts = [f"{verb} {_sum(part)}" for verb, part in verbs if part]
    return _sum(terms), f"the printed formula {' and '.join(parts)}"


def _rank(term: Any) -> tuple[Any, ...]:
    """Return a sort key that puts the largest growth first: degree, then powers by name."""
    powers = {base.name: power for base, power in term.as_powers_dict().items() if base.is_Symbol}
    return -sum(powers.values()), sorted((name, -power) for name, power in powers.items())


def _sum(terms: Sequence[Any]) -> str:
    return " + ".join(str(term) for term in terms).replace("+ -", "- ")
