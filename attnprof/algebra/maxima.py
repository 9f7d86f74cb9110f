"""The maximum of many size polynomials, pruned.

A peak is a maximum over many moments. Sympy takes seconds to compare expressions, so polynomials
are dictionaries of monomials here, and each that another one is never below is dropped. Entry
points: :func:`maximum_of`, and :func:`running_maximum` for a sum that rises and falls.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Any

#: Factors by the number of the term.
Monomials = dict[int, Any]
#: Number of candidates from which on dominated ones are dropped first.
_MANY = 48
#: The most pairs of values whose means are compared with another value.
_PAIRS = 4


def maximum_of(candidates: Iterable[Any]) -> Any:
    """Return the largest of several expressions in sizes (each at least 1), as one sympy Max."""
    return running_maximum(0, [(candidate, 0, candidate) for candidate in candidates])


def running_maximum(start: Any, steps: Iterable[tuple[Any, Any, Any]]) -> Any:
    """Return the most that is held at any time, as one sympy Max of the possible maxima.

    ``start`` is held before; each step is (allocates, workspace, frees). A candidate is dropped if
    another has every coefficient at least as large: sizes are at least 1.
    """
    import sympy

    tables: dict[Any, Monomials] = {}  # most tensors' sizes repeat
    numbers: dict[Any, int] = {}  # terms by number, which compares faster

    def monomials(expression: Any) -> Monomials:
        if expression not in tables:
            terms = terms_of(sympy.sympify(expression)).items()
            tables[expression] = {
                numbers.setdefault(x, len(numbers)): factor for x, factor in terms
            }
        return tables[expression]

    live, peaks, most = monomials(start), list[Monomials](), _MANY
    for allocates, workspace, frees in steps:
        live = plus(live, monomials(allocates), 1)
        peak = plus(live, monomials(workspace), 1)
        if not any(dominates(other, peak) for other in peaks):
            peaks = [*(other for other in peaks if not dominates(peak, other)), peak]
            if len(peaks) > most:
                peaks = _outermost(peaks, list(numbers))
                most = max(_MANY, 2 * len(peaks))
        live = plus(live, monomials(frees), -1)
    terms = list(numbers)
    outermost = _outermost(peaks, terms) or [live]
    sides = [sympy.Add(*(n * terms[i] for i, n in table.items())) for table in outermost]
    if any(isinstance(side, sympy.Max) for side in sides):  # its sides are candidates, too
        return maximum_of(x for s in sides for x in (s.args if isinstance(s, sympy.Max) else [s]))
    return sides[0] if len(sides) == 1 else sympy.Max(*sides, evaluate=False)


@lru_cache(maxsize=4096)
def terms_of(expression: Any) -> dict[Any, Any]:
    """Return terms of a sum and their factors, ints where they are whole."""
    import sympy

    # expanding would walk through a switch's condition: a name stands in for it
    names = {x: sympy.Dummy(nonnegative=True) for x in expression.atoms(sympy.Piecewise)}
    back = {name: switch for switch, name in names.items()}
    named = expression.xreplace(names)
    parts = named.atoms(sympy.Pow, sympy.log)
    whole = all(part.is_Pow and part.exp.is_Integer for part in parts)
    # sympy walks through the expression once a hint, and of whole powers most change nothing
    hints = dict.fromkeys(("power_base", "power_exp", "log", "basic"), not whole)
    factors = sympy.expand(named, **hints).as_coefficients_dict()
    counted: Monomials = {}
    for term, factor in factors.items():
        sign = -1 if term.is_nonpositive else 1  # floor(-N/64) dominates nothing: its opposite may
        if factor:
            number = int(factor) if factor.is_Integer else factor
            counted[sign * term.xreplace(back)] = sign * number
    return counted


def plus(one: Mapping[Any, Any], more: Mapping[Any, Any], sign: int) -> dict[Any, Any]:
    """Return one sum of terms plus ``sign`` times another."""
    total = dict(one)
    for term, factor in more.items():
        total[term] = total.get(term, 0) + sign * factor
    return {term: factor for term, factor in total.items() if factor}


def dominates(large: Mapping[Any, Any], small: Mapping[Any, Any]) -> bool:
    """Return whether every factor of ``large`` is at least the factor in ``small``."""
    more = all(large.get(term, 0) >= factor for term, factor in small.items())
    return more and all(factor >= 0 or term in small for term, factor in large.items())


def covering(others: Sequence[Mapping[Any, Any]]) -> Callable[[Mapping[Any, Any]], bool]:
    """Return a predicate: whether one of ``others``, or a mean of two, is never below a value.

    Values are sums of terms: mappings of a term to its factor.
    """
    import numpy as np

    terms, table = _table(others)
    kept = _without_smaller(table) if len(others) > _MANY else range(len(others))
    table, all_terms = table[list(kept)], set(terms)
    others = [others[place] for place in kept]

    def covered(value: Mapping[Any, Any]) -> bool:
        if any(factor > 0 for term, factor in value.items() if term not in all_terms):
            return False
        away = table - np.array([float(value.get(t, 0)) for t in terms])
        return _covers(others, away, value)

    return covered


def _table(values: Sequence[Mapping[Any, Any]]) -> tuple[list[Any], Any]:
    """Return the terms of all values, and their factors in an array (values, terms)."""
    import numpy as np

    terms = list(dict.fromkeys(term for value in values for term in value))
    table = np.array([[float(x.get(t, 0)) for t in terms] for x in values])
    return terms, table.reshape(len(values), len(terms))


def _covers(others: Sequence[Mapping[Any, Any]], away: Any, value: Mapping[Any, Any]) -> bool:
    """Return whether one of the others, or a mean of two, is never smaller than the value.

    ``away`` has a row for each of them: its factors minus those of the value.
    """
    import numpy as np

    if any(dominates(others[x], value) for x in np.flatnonzero((away >= 0).all(1)).tolist()):
        return True
    short = away < 0
    columns = short.any(0)  # a mean of two that are large enough is so, too
    away = away[:, columns]
    pairs = np.argwhere(np.triu(~_overlaps(short[:, columns]), 1))  # nowhere are both smaller
    a, b = away[pairs[:, 0]], away[pairs[:, 1]]
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = b / (b - a)  # of the one, at which its mean with the other has as much
    high = np.where(b > a, weight, 1).min(-1, initial=1)
    pairs = pairs[np.where(a > b, weight, 0).max(-1, initial=0) <= np.minimum(high, 1) + 1e-9]
    return any(_between(value, others[i], others[j]) for i, j in pairs[:_PAIRS])


def _overlaps(rows: Any) -> Any:
    """Return which two of the rows of booleans are True in the same place, as a square of them.

    By bits: a product of matrices would wake all threads of numpy's library for a few rows.
    """
    import numpy as np

    count, columns = rows.shape
    packed = np.zeros((count, -(-columns // 64) * 8), dtype=np.uint8)
    packed[:, : -(-columns // 8)] = np.packbits(rows, axis=1)
    both = np.zeros((count, count), dtype=bool)
    for word in packed.view(np.uint64).T:
        both |= (word[:, None] & word) != 0
    return both


def _without_smaller(table: Any) -> list[int]:
    """Return the rows for which no other row is at least as large everywhere; of equal ones one."""
    import numpy as np

    kept = []
    for place, row in enumerate(table):
        larger = (table > row).any(1) | (np.arange(len(table)) < place)
        if not (larger & (table >= row).all(1)).any():
            kept.append(place)
    return kept


def _between(value: Mapping[Any, Any], one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Return whether a mean of the two, with some weight, is never smaller than the value."""
    low: Any = 0
    high: Any = 1
    for term in {*value, *one, *other}:
        a, b, c = one.get(term, 0), other.get(term, 0), value.get(term, 0)
        if a == b:
            if b < c:
                return False
        elif a > b:
            low = max(low, _quotient(c - b, a - b))
        else:
            high = min(high, _quotient(b - c, b - a))
    return bool(low <= high)


def _quotient(number: Any, divisor: Any) -> Any:
    """Return a / b exactly: a rounded bound of a mean's weight could pass the other bound."""
    whole = isinstance(number, int) and isinstance(divisor, int)
    return Fraction(number, divisor) if whole else number / divisor


def _outermost(peaks: Sequence[Monomials], terms: Sequence[Any]) -> list[Monomials]:
    """Return the values that no mean of two others covers, for sizes of at least 1.

    Of the peaks of layers alike, the first and the last remain.
    """
    if len(peaks) < 2:
        return list(peaks)
    import numpy as np

    values = [_above_one(peak, terms) for peak in peaks]
    _, table = _table(values)
    kept = np.ones(len(values), dtype=bool)
    for place, value in enumerate(values):
        kept[place] = False
        rows = np.flatnonzero(kept).tolist()
        others = [values[row] for row in rows]
        kept[place] = not _covers(others, table[rows] - table[place], value)
    return [peaks[place] for place in np.flatnonzero(kept).tolist()]


def _above_one(value: Monomials, terms: Sequence[Any]) -> dict[Any, Any]:
    """Return the value in sizes minus 1, which are at least 0: then larger factors decide."""
    shifted: dict[Any, Any] = {}
    for number, factor in value.items():
        for term, times in above(terms[number], 1).items():
            shifted[term] = shifted.get(term, 0) + factor * times
    return shifted


@lru_cache(maxsize=4096)
def above(term: Any, least: int) -> dict[Any, int]:
    """Return a product expanded in y = x - least: x² above 2 is 1·y² + 4·y + 4."""
    import sympy

    expanded: dict[Any, int] = {frozenset(): 1}
    for base, power in sympy.sympify(term).as_powers_dict().items():
        whole = base.is_Symbol and power.is_Integer and power > 0
        steps = [(power, 1)]
        if whole:
            steps = [
                (int(k), comb(int(power), k) * least ** (int(power) - k)) for k in range(power + 1)
            ]
        expanded = {
            name | {(base, k)} if k and base != 1 else name: times * more
            for name, times in expanded.items()
            for k, more in steps
        }
    return expanded
