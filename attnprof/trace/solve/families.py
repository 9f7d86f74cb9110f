"""Moments of several runs that belong together by what is held, wherever in a run they are.

Of loops in loops the last turn of an inner one has no place that is counted from either end.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from operator import mul
from typing import Any

from attnprof.trace.solve.accounts import Terms

#: How the next value follows from those before it, the latest first, by the polynomial's degree.
_NEXT = {1: (2, -1), 2: (3, -3, 1)}
#: Runs beside those that fix a polynomial, and how many are tried for one kind of operation.
_FURTHER, _MANY = 2, 4_000
#: What is held at moments of one kind, each a row of factors.
_Rows = set[tuple[Any, ...]]


def families(
    runs: Sequence[Mapping[Any, Terms]],
    worst: Callable[[Mapping[Any, Terms]], Mapping[Any, Terms]],
) -> Iterator[list[Terms]]:
    """What moments of one kind hold, in runs in equal steps, where a polynomial joins them.

    The last ones are among the worst.
    """
    monomials = list(dict.fromkeys(chain(*(x for held in runs for x in held.values()))))
    kinds = [_by_kind(held, monomials) for held in runs]
    ends = [_by_kind(worst(held), monomials) for held in runs[-3:]]
    for degree, factors in _NEXT.items():
        if len(runs) < degree + 1 + _FURTHER:
            return
        for kind in ends[-1]:
            own = [run[kind] for run in kinds]
            for start in islice(product(*(x[kind] for x in ends[-degree - 1 :])), _MANY):
                for rows in filter(None, [_joined(own, start, factors)]):
                    yield [{x: n for x, n in zip(monomials, row, strict=True) if n} for row in rows]


def _by_kind(held: Mapping[Any, Terms], monomials: Sequence[Any]) -> Mapping[Any, _Rows]:
    found: dict[Any, _Rows] = defaultdict(set)
    for (kind, *place), value in held.items():
        if len(place) == 1:  # in all, and not of a turn
            found[kind].add(tuple([value.get(x, 0) for x in monomials]))
    return found


def _joined(own: Sequence[_Rows], start: Any, factors: Sequence[int]) -> list[Any] | None:
    """A family from its last members on to the first run; None where a run has no such moment."""
    found = [*start]
    for run in reversed(own[: -len(start)]):
        later = zip(*found[: len(factors)], strict=True)
        value = tuple([sum(map(mul, factors, row)) for row in later])
        if value not in run:
            return None
        found = [value, *found]
    return found
