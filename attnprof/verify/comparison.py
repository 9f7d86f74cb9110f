"""Two formulas side by side: equal, or by how much not, and how both grow."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isclose
from typing import Any

import sympy

from attnprof.algebra.expressions import is_zero
from attnprof.algebra.orders import Term, bounds, leading_terms, same_terms, total
from attnprof.verify.bounds import FEW, Holds, SizeValues, beside, reaches, same_limit, value

EXACT, LEADING, ORDER = "exact", "leading", "order"
UP_TO = (EXACT, LEADING, ORDER)
#: Where growth is told from when there are no terms to compare.
VALUES = "seen from values at lengths up to 2**2048"
_CLOSE = 1e-12
#: Operations of a formula with roundings and maxima beyond which algebra takes too long.
LONG = 150


@dataclass(frozen=True)
class Comparison:
    """Whether two formulas agree (None: undecided), and ours minus printed; ``why`` in words."""

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
    """The two, up to equality or up to leading terms in the ``growing`` sizes.

    Where algebra does not decide, both are evaluated at the shapes, and at long lengths for which
    ``holds`` says that our formula is for them.
    """
    missing = sympy.sympify(ours) - printed
    missing = sympy.expand(missing) if _is_short(missing) else missing
    equal, how = _equal(missing, printed, ours, shapes)
    difference, told = (None, how) if equal else _difference(missing, printed, ours, shapes)
    if up_to == EXACT and not growing:
        return Comparison(equal, difference, told)
    mine, theirs = (_leading(side, growing) for side in (ours, printed))
    if mine is None or theirs is None or _rounded(mine) or _rounded(theirs):
        if up_to == EXACT or equal:
            return Comparison(equal, difference, told)
        same = same_limit(ours, printed, growing, _sizes(shapes, printed, ours), holds)
        words = {
            True: "ours over printed goes to one",
            False: "ours over printed does not go to one",
            None: "undecided whether ours over printed goes to one",
        }
        return Comparison(same, difference, f"{words[same]}, {VALUES}: {told}")
    same = same_terms(theirs, mine)
    if up_to == LEADING and not same:
        told = f"the leading terms are {total(mine)}, not {total(theirs)}"
    elif up_to == LEADING and not equal:
        told = f"beyond the leading terms {told}"
    agrees = same if up_to == LEADING else equal
    return Comparison(agrees, difference, told, str(total(theirs)), str(total(mine)), same)


def _sizes(shapes: Sequence[SizeValues], printed: Any, ours: Any) -> SizeValues:
    """A shape to start from, which has every size of both."""
    names = sympy.Tuple(sympy.sympify(printed), sympy.sympify(ours)).free_symbols
    return {**{symbol.name: FEW for symbol in names}, **next(iter(shapes), {})}


def ordered(
    printed: Any, ours: Any, kind: str, growing: Sequence[str], shapes: Sequence[SizeValues],
    holds: Holds = lambda _: True,
) -> Comparison:  # fmt: skip
    """Whether the printed growth bounds ours: from above (``O``), below (``Ω``) or both (``Θ``).

    By leading terms; where there are none to compare, by values at lengths where they tell.
    """
    shape = _sizes(shapes, printed, ours)
    if not reaches(growing, shape, holds):
        return Comparison(None, None, "undecided: our formula does not hold for long lengths")
    mine, theirs = (_leading(side, growing) for side in (ours, printed))
    if mine is None or theirs is None or _rounded(theirs) or not mine or not theirs:
        return _bounded(kind, *beside(ours, printed, kind, growing, shape, holds), VALUES)
    below, above = bounds(theirs, mine), bounds(mine, theirs)
    printed_order, own_order = (str(total(terms, factors=False)) for terms in (theirs, mine))
    how = f"ours grows like {own_order}"
    return _bounded(kind, below, above, how, printed_order, own_order, below and above)


def _bounded(
    kind: str, below: bool | None, above: bool | None, how: str, *leading: Any
) -> Comparison:
    """Whether a bound of this kind holds; ``how`` says what it was told from."""
    asked = {"O": [below], "Ω": [above], "Θ": [below, above]}[kind]
    if False in asked:
        words = "faster" if below is False and kind != "Ω" else "slower"
        said = f"ours grows {words} than the printed one: {how}"
        return Comparison(False, None, said, *leading)
    if None in asked:
        said = "undecided: neither terms nor values tell how the two grow"
        return Comparison(None, None, said, *leading)
    loose = kind != "Θ" and (above if kind == "O" else below) is False
    tight = f"the bound holds: {how}" if how == VALUES else ""
    said = f"a bound that is not tight: {how}" if loose else tight
    return Comparison(True, None, said, *leading)


def _leading(expression: Any, growing: Sequence[str]) -> list[Term] | None:
    return leading_terms(expression, growing) if _is_short(expression) else None


def _is_short(expression: Any) -> bool:
    """Polynomials of any length; of what rounds, chooses or switches, what algebra can bear."""
    plain = not expression.has(sympy.Max, sympy.Min, sympy.floor, sympy.ceiling, sympy.Piecewise)
    return plain or bool(sympy.count_ops(expression) < LONG)


def _rounded(terms: Sequence[Term]) -> bool:
    """Whether a factor holds what rounding leaves."""
    return any(term.factor.has(sympy.Dummy) for term in terms)


def _equal(missing: Any, printed: Any, ours: Any, shapes: Sequence[SizeValues]) -> tuple[bool, str]:
    """Equal by algebra; else, where there is more than powers, at all of the shapes."""
    if missing == 0:
        return True, ""
    symbols = sorted(missing.free_symbols, key=str)
    if missing.is_rational_function(*symbols):
        return is_zero(missing), ""
    if not all(alike(printed, ours, shape) for shape in shapes):
        return False, ""
    return True, f"equal at the {len(shapes)} shapes tried; algebra did not decide"


def alike(printed: Any, ours: Any, shape: SizeValues) -> bool:
    """Whether both have the same value at a shape, to a float's last digits."""
    a, b = value(printed, shape), value(ours, shape)
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    with suppress(OverflowError):  # an int beyond what floats reach
        return isclose(a, b, rel_tol=_CLOSE)
    return False


def _difference(
    missing: Any, printed: Any, ours: Any, shapes: Sequence[SizeValues]
) -> tuple[str | None, str]:
    """Ours minus printed, and the same in words; an example where it is not a plain sum."""
    if missing.has(sympy.Max, sympy.Min, sympy.Piecewise) or not _is_short(missing):
        shape = next(shape for shape in shapes if not alike(printed, ours, shape))
        sizes = ", ".join(f"{name}={size}" for name, size in shape.items())
        a, b = value(printed, shape), value(ours, shape)
        return None, f"at {sizes} the printed formula gives {a:,}, ours {b:,}"
    terms = sorted(sympy.Add.make_args(missing), key=_rank)
    few = [term for term in terms if term.as_coeff_Mul()[0] > 0]
    much = [-term for term in terms if term.as_coeff_Mul()[0] < 0]
    verbs = (("omits", few), ("overcounts by", much))
    parts = [f"{verb} {_sum(part)}" for verb, part in verbs if part]
    return _sum(terms), f"the printed formula {' and '.join(parts)}"


def _rank(term: Any) -> tuple[Any, ...]:
    """Largest growth first: by degree, then by the name's powers."""
    powers = {base.name: power for base, power in term.as_powers_dict().items() if base.is_Symbol}
    return -sum(powers.values()), sorted((name, -power) for name, power in powers.items())


def _sum(terms: Sequence[Any]) -> str:
    return " + ".join(str(term) for term in terms).replace("+ -", "- ")
