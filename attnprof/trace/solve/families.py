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
#: Runs beside those that fix a polynomial, how many are tried for one kind of operation, and longer
#: runs in which a family has to have a member.
_FURTHER, _MANY, _LONGER = 2, 4_000, 400
#: Moments of one kind: the factors of what is held, and where, of how many, each of them is.
_Rows = set[tuple[tuple[Any, ...], tuple[int, ...]]]


def families(
    runs: Sequence[Mapping[Any, Terms]],
    worst: Callable[[Mapping[Any, Terms]], Mapping[Any, Terms]],
) -> Iterator[list[Terms]]:
    """What moments of one kind hold, in runs in equal steps, where a polynomial joins them.

    So it does their places, which are inside of longer runs, too. The last ones are among the
    worst.
    """
    monomials = list(dict.fromkeys(chain(*(x for held in runs for x in held.values()))))
    kinds = [_by_kind(held, held, monomials) for held in runs]
    ends = [_by_kind(worst(held), held, monomials) for held in runs[-3:]]
    for degree, factors in _NEXT.items():
        if len(runs) < degree + 1 + _FURTHER:
            return
        for kind in ends[-1]:
            own = [run[kind] for run in kinds]
            for start in islice(product(*(x[kind] for x in ends[-degree - 1 :])), _MANY):
                if found := _joined(own, start, factors):
                    rows = [row for row, _ in found]
                    yield [{x: n for x, n in zip(monomials, row, strict=True) if n} for row in rows]


def _by_kind(
    held: Mapping[Any, Terms], every: Mapping[Any, Terms], monomials: Sequence[Any]
) -> Mapping[Any, _Rows]:
    """Moments by kind, with their place in their turn and its number, if they are in one."""
    many: dict[Any, int] = defaultdict(int)
    for kind, (place, _), *turn in every:
        many[kind, *turn] = max(many[kind, *turn], place + 1)
        if turn:
            many[kind, turn[0]] = max(many[kind, turn[0]], turn[1] + 1)
    turned = {kind for kind, _, *turn in every if turn}
    found: dict[Any, _Rows] = defaultdict(set)
    for (kind, (place, _), *turn), value in held.items():
        if place >= 0 and (turn[1] >= 0 if turn else kind not in turned):
            where = [place, many[kind, *turn]]
            where += [turn[1], many[kind, turn[0]]] if turn else []
            found[kind].add((tuple([value.get(x, 0) for x in monomials]), tuple(where)))
    return found


def _joined(own: Sequence[_Rows], start: Any, factors: Sequence[int]) -> list[Any] | None:
    """A family from its last members on to the first run.

    None where a run, or a longer one than all, has no such moment.
    """
    found = [*start]
    for run in reversed(own[: -len(start)]):
        value = _next([row for row, _ in found], factors), _next([x for _, x in found], factors)
        if value not in run:
            return None
        found = [value, *found]
    places = [place for _, place in reversed(found[-len(factors) :])]
    for _ in range(_LONGER):
        places = [_next(places, factors), *places[:-1]]
        if not all(0 <= x < many for x, many in zip(places[0][::2], places[0][1::2], strict=True)):
            return None
    return found


def _next(before: Sequence[Sequence[Any]], factors: Sequence[int]) -> tuple[Any, ...]:
    """What follows from so many rows, the nearest first."""
    return tuple([sum(map(mul, factors, row)) for row in zip(*before[: len(factors)], strict=True)])
