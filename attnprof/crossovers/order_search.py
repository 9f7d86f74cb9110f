"""Find where two costs change places along an axis: try a grid, then halve brackets.

A bracket is a pair of neighbouring places of different order. Rounded formulas, peaks of the
allocator and predicted times are searched this way (:class:`OrderSearch`). Each brings its own
grid, which may look at the costs seen so far and end, and the places to try inside a bracket.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnprof.errors import AttnprofError, RequestError

#: A function that returns the places to try between two, preferred ones first.
Between = Callable[[int, int], Iterable[int]]


def sign(value: Any) -> int:
    """Return -1, 0 or 1."""
    return int(value > 0) - int(value < 0)


@dataclass
class OrderSearch:
    """The costs of A and B at each place that was tried, and the sign of A - B there.

    ``costs_at`` returns both costs at a place; if it raises one of ``refusals``, the place is
    skipped. ``end`` says why no larger place was tried.
    """

    costs_at: Callable[[int], tuple[Any, Any]]
    refusals: tuple[type[AttnprofError], ...] = (RequestError,)
    costs: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    signs: dict[int, int] = field(default_factory=dict)
    refused: dict[int, AttnprofError] = field(default_factory=dict)
    end: str = ""

    def order(self, a: Any, b: Any) -> int:
        """Return the sign of A - B."""
        return sign(a - b)

    def try_place(self, place: int) -> bool:
        """Keep both costs at a place; return whether both sides run there."""
        if place not in self.costs and place not in self.refused:
            try:
                self.costs[place] = self.costs_at(place)
            except self.refusals as refusal:
                self.refused[place] = refusal
            else:
                self.signs[place] = self.order(*self.costs[place])
        return place in self.costs

    def try_all(self, grid: Iterable[int]) -> None:
        """Try every place of a grid."""
        for place in grid:
            self.try_place(place)

    @property
    def ends(self) -> tuple[int, int]:
        """Return the first and the last place at which both run."""
        return min(self.signs), max(self.signs)

    @property
    def first_refusal(self) -> AttnprofError | None:
        """Return the first refusal, or None."""
        return next(iter(self.refused.values()), None)

    def brackets(self, places: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Return neighbours of different sign, among all places or some."""
        ordered = sorted(self.signs if places is None else places)
        return [(a, b) for a, b in pairwise(ordered) if self.signs[a] != self.signs[b]]

    def halve(self, low: int, high: int, between: Between) -> tuple[int, int]:
        """Narrow a bracket by the first place that runs between its ends, until there is none."""
        below = self.signs[low]
        while (middle := next(filter(self.try_place, between(low, high)), None)) is not None:
            low, high = (middle, high) if self.signs[middle] == below else (low, middle)
        return low, high

    def narrow(self, between: Between) -> None:
        """Halve every bracket, and every bracket that a halving finds; then settle single ties.

        A tie at one place alone gets the sign of the next place, from which on one side is not
        dearer.
        """
        done = set[tuple[int, int]]()
        while left := [bracket for bracket in self.brackets() if bracket not in done]:
            done.update(left)
            done.update([self.halve(*bracket, between) for bracket in left])
        places = sorted(self.signs)
        for before, place, after in zip([0, *places], places, places[1:], strict=False):
            if self.signs.get(before, 1) and not self.signs[place]:
                self.signs[place] = self.signs[after]

    @property
    def crossings(self) -> list[int]:
        """Return the first places of each new sign, ascending."""
        return [high for _, high in self.brackets()]


def nearest_to_middle(low: int, high: int, tries: int | None = None) -> Iterator[int]:
    """Yield places between two, nearest to the middle first, ``tries`` to either side."""
    middle = (low + high) // 2
    for away in range(high - low if tries is None else tries):
        yield from (n for n in dict.fromkeys((middle + away, middle - away)) if low < n < high)
