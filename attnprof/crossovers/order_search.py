"""Find where two costs change places along an axis: try a grid, then halve brackets.

A bracket is a pair of neighbouring places of different order. Rounded formulas, peaks of the
allocator and predicted times are searched this way (:class:`OrderSearch`). Each brings its own
grid, which may look at the costs seen so far and end, and the places to try inside a bracket.

A search tries hundreds of lengths, and a mechanism's text is run for each. Run on an array of
lengths (:func:`try_as_array`) it gives all of them and costs as much as for a few alone, unless it
asks for one number or refuses a length; then nothing is kept.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnprof.crossovers.axis import Lengths
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


#: Lengths of one array: those of all stages together take some ten megabytes.
ARRAY = 1024
#: Of lengths that an array holds, every so many is tried alone as well.
ALONE = 16


def try_as_array(
    search: OrderSearch, differences: Callable[[Sequence[int]], Sequence[int]],
    grid: Sequence[int],
) -> None:  # fmt: skip
    """Try ascending lengths at once: one array costs as much as a few lengths one by one.

    Every so many of them is tried alone, too. Nothing else is kept if one of those is refused or
    has another value in the array.
    """
    lengths = [length for length in grid if length > 1 and length not in search.costs]
    alone = [*lengths[::ALONE], *lengths[-1:]]
    search.try_all(alone)
    values = None if search.refused else _by_arrays(differences, lengths)
    if values and all(search.costs[length][0] == values[length] for length in alone):
        search.costs |= {length: (value, 0) for length, value in values.items()}
        search.signs |= {length: sign(value) for length, value in values.items()}


def _by_arrays(
    differences: Callable[[Sequence[int]], Sequence[int]], lengths: Sequence[int]
) -> dict[int, int] | None:
    """Return the difference at each length, or None where it cannot be had of many at once."""
    values = list[int]()
    try:
        for start in range(0, len(lengths), ARRAY):
            values += differences(lengths[start : start + ARRAY])
    except Exception:  # noqa: BLE001 - a text that asks for one number, or a refusal at a length
        return None
    return dict(zip(lengths, values, strict=True))


def try_all_between(
    search: OrderSearch, differences: Callable[[Sequence[int]], Sequence[int]], domain: Lengths,
    last: int,
) -> int:  # fmt: skip
    """Set the signs on both sides of each change up to ``last``; return it, or 0 if that fails.

    At length 1 tensors broadcast instead of being summed: arrays start at 2.
    """
    lengths = list(domain.within(2, last))
    if (values := _by_arrays(differences, lengths)) is None:
        return 0
    signs = {length: sign(value) for length, value in values.items()}
    tried = {length: sign(a - b) for length, (a, b) in search.costs.items()}
    if search.refused or any(tried.get(length, known) != known for length, known in signs.items()):
        return 0
    for before, after in pairwise(lengths):
        if signs[before] != signs[after]:
            search.signs |= {before: signs[before], after: signs[after]}
    return last
