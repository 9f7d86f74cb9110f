"""How far an erratum is off, so that a reader sees first what changes a conclusion.

Numbers are compared by their ratio, formulas by that of their values at one point, statements
count as a factor of 2: :func:`distance`. :func:`severity` puts it into a word,
:func:`surprises` picks the furthest of a document.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.papers.checks import ERRATUM, formula
from attnprof.record import ReproduceRecord

#: The distance of a statement that does not hold, of another word, and of another sign.
STATEMENT = math.log(2)
#: Each severity with the least ratio of both values.
SEVERITIES = {"major": 1.1, "moderate": 1.01, "minor": 0.0}
#: Claims of a document that are shown before all others.
MOST = 5


def distance(printed: Any, ours: Any) -> float:
    """Return ``|ln(ours / printed)|`` of the two entries that are furthest apart; 0 for equal ones.

    >>> round(distance({"a": 100, "b": 5}, {"a": 110, "b": 5}), 4)
    0.0953
    >>> distance("2*N*d", "4*N*d") == distance(True, False)
    True
    """
    if isinstance(printed, Mapping) and isinstance(ours, Mapping):
        names = {*printed, *ours}
        return max((distance(printed.get(name), ours.get(name)) for name in names), default=0.0)
    if isinstance(printed, list | tuple) and isinstance(ours, list | tuple):
        if len(printed) == len(ours):
            return max(map(distance, printed, ours), default=0.0)
        return STATEMENT
    if printed == ours:
        return 0.0
    a, b = _number(printed, ours), _number(ours, printed)
    return abs(math.log(b / a)) if a and b and a * b > 0 else STATEMENT


def _number(value: Any, other: Any) -> float | None:
    """Return a number, or a formula's value where its n-th name is 2**(5 + n); else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        both = formula(value).free_symbols | formula(other).free_symbols
        point = {name: 2 ** (5 + n) for n, name in enumerate(sorted(both, key=str), start=1)}
        return float(formula(value).subs(point))
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # words
        return None


def severity(record: ReproduceRecord) -> str:
    """Return how far an erratum is off: a key of ``SEVERITIES``; "" for another verdict."""
    if record.verdict != ERRATUM:
        return ""
    apart = math.exp(distance(record.published, record.ours))
    return next(name for name, least in SEVERITIES.items() if apart >= least)


def surprises(records: Sequence[ReproduceRecord]) -> list[ReproduceRecord]:
    """Return the errata that are furthest off, ``MOST`` at most; equal ones in their order."""
    errata = [record for record in records if record.verdict == ERRATUM]
    return sorted(errata, key=lambda r: -distance(r.published, r.ours))[:MOST]
