"""Find where two costs change places: try a grid, then halve brackets of different order.

Rounded formulas, peaks of the allocator and predicted times are searched this way. Each brings its
own grid, a generator that may look at the costs seen so far and end, and the places that may be
tried inside of a bracket.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnprof.errors import AttnprofError, RequestError

#: Places to try between two, preferred ones first.
Between = Callable[[int, int], Iterable[int]]


def sign(value: Any) -> int:
    """Return -1, 0 or 1."""
    return int(value > 0) - int(value < 0)


@dataclass
class OrderSearch:
    """Both costs at each place that was tried, and the sign of A - B there.

    ``both`` returns the two costs at a place; if it raises one of ``refusals``, the place is
    skipped. ``end`` says why no larger place was tried.
    """

    both: Callable[[int], tuple[Any, Any]]
    refusals: tuple[type[AttnprofError], ...] = (RequestError,)
    seen: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    signs: dict[int, int] = field(default_factory=dict)
    refused: dict[int, AttnprofError] = field(default_factory=dict)
    end: str = ""

    def order(self, a: Any, b: Any) -> int:
        """Return the sign of A - B."""
        return sign(a - b)

    def look(self, place: int) -> bool:
        """Return whether both run at a place, and keep what they cost there."""
        if place not in self.seen and place not in self.refused:
            try:
                self.seen[place] = self.both(place)
            except self.refusals as refusal:
                self.refused[place] = refusal
            else:
                self.signs[place] = self.order(*self.seen[place])
        return place in self.seen

    def outwards(self, grid: Iterable[int]) -> None:
        """Try every place of a grid."""
        for place in grid:
            self.look(place)

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last place at which both run."""
        return min(self.signs), max(self.signs)

    @property
    def first_refusal(self) -> AttnprofError | None:
        """The first refusal, or None."""
        return next(iter(self.refused.values()), None)

    def brackets(self, places: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Return neighbours of different sign, among all places or some."""
        ordered = sorted(self.signs if places is None else places)
        return [(a, b) for a, b in pairwise(ordered) if self.signs[a] != self.signs[b]]

    def halve(self, low: int, high: int, between: Between) -> tuple[int, int]:
        """Narrow a bracket by the first place that runs between its ends, until there is none."""
        below = self.signs[low]
        while (middle := next(filter(self.look, between(low, high)), None)) is not None:
            low, high = (middle, high) if self.signs[middle] == below else (low, middle)
        return low, high

    def narrow(self, between: Between) -> None:
        """Halve every bracket, also those that a halving finds; then settle single ties.

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
        """The first places of each new sign, ascending."""
        return [high for _, high in self.brackets()]


def nearest_to_middle(low: int, high: int, tries: int | None = None) -> Iterator[int]:
    """Yield places between two, nearest to the middle first, ``tries`` to either side."""
    middle = (low + high) // 2
    for away in range(high - low if tries is None else tries):
        yield from (n for n in dict.fromkeys((middle + away, middle - away)) if low < n < high)
