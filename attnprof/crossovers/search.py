"""Where two costs change places, found by looking: over a grid first, then between two orders.

Rounded formulas, peaks of the allocator and predicted times are all searched this way. A kind of
cost brings its grid, a generator that may look at what was seen and ends where it likes, and the
places that may be tried between two.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnprof.errors import AttnprofError, RequestError

#: Places to try between two, the one to prefer first.
Between = Callable[[int, int], Iterable[int]]


def sign(value: Any) -> int:
    """-1, 0 or 1."""
    return int(value > 0) - int(value < 0)


@dataclass
class OrderSearch:
    """Both costs at each place that was looked at, and the sign of A - B there.

    ``both`` gives the two costs at a place; where it raises one of ``refusals``, the place is
    passed over. ``end`` says why no larger place was looked at.
    """

    both: Callable[[int], tuple[Any, Any]]
    refusals: tuple[type[AttnprofError], ...] = (RequestError,)
    seen: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    signs: dict[int, int] = field(default_factory=dict)
    refused: dict[int, AttnprofError] = field(default_factory=dict)
    end: str = ""

    def order(self, a: Any, b: Any) -> int:
        """The sign of A - B."""
        return sign(a - b)

    def look(self, place: int) -> bool:
        """Whether both run at a place; what they cost there is kept."""
        if place not in self.seen and place not in self.refused:
            try:
                self.seen[place] = self.both(place)
            except self.refusals as refusal:
                self.refused[place] = refusal
            else:
                self.signs[place] = self.order(*self.seen[place])
        return place in self.seen

    def outwards(self, grid: Iterable[int]) -> None:
        """Look at every place of a grid."""
        for place in grid:
            self.look(place)

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last place that was seen."""
        return min(self.signs), max(self.signs)

    @property
    def first_refusal(self) -> AttnprofError | None:
        """The refusal that came first."""
        return next(iter(self.refused.values()), None)

    def brackets(self, places: Iterable[int] | None = None) -> list[tuple[int, int]]:
        """Neighbours of different sign, among all places or some."""
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

        A tie at one place alone has the sign of what follows: the one cheaper above is not dearer.
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
    """Places between two, those nearest to the middle first, at most ``tries`` to either side."""
    middle = (low + high) // 2
    for away in range(high - low if tries is None else tries):
        yield from (n for n in dict.fromkeys((middle + away, middle - away)) if low < n < high)
