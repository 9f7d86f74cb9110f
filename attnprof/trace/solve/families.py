"""Find families: moments of several runs whose held bytes follow a polynomial from run to run.

Moments are matched between runs by their place from either end. In nested loops the last turn of an
inner loop has no such fixed place; it is matched here by what it holds, and where.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from operator import mul
from typing import Any

from attnprof.trace.solve.accounts import Terms

#: By degree of a polynomial, the factors of the latest values whose sum is the next value.
_NEXT = {1: (2, -1), 2: (3, -3, 1)}
#: Runs that confirm a polynomial; last members that are tried for a kind of operation; longer runs
#: in which a family has to have a member.
_FURTHER, _MANY, _LONGER = 2, 4_000, 400
#: Moments of one kind: the factors of the bytes held, and their place among how many.
_Rows = set[tuple[tuple[Any, ...], tuple[int, ...]]]


def families(
    runs: Sequence[Mapping[Any, Terms]],
    worst: Callable[[Mapping[Any, Terms]], Mapping[Any, Terms]],
) -> Iterator[list[Terms]]:
    """Yield the bytes held by each family's moments, one value a run; runs are in equal steps.

    A polynomial of degree 1 or 2 joins these values. Another joins the moments' places, and stays
    within longer runs. The last moments of a family are candidates for the peak.
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
                if found := _members(own, start, factors):
                    rows = [row for row, _ in found]
                    yield [{x: n for x, n in zip(monomials, row, strict=True) if n} for row in rows]


def _by_kind(
    held: Mapping[Any, Terms], every: Mapping[Any, Terms], monomials: Sequence[Any]
) -> Mapping[Any, _Rows]:
    """Return the moments of each kind: held bytes, and place in the run or in a loop's turn."""
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


def _members(own: Sequence[_Rows], start: Any, factors: Sequence[int]) -> list[Any] | None:
    """Return a family, followed from its last members back to the first run.

    None if a run, or a longer one than all, has no such moment.
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
    """Return the row that follows ``before``, whose nearest row comes first."""
    return tuple([sum(map(mul, factors, row)) for row in zip(*before[: len(factors)], strict=True)])
