"""Seconds of an operation over a grid of sizes: what to call there, and times in between."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import exp, log, prod

Sizes = tuple[int, ...]
Call = Callable[[], object]


@dataclass(frozen=True)
class Benchmark:
    """A table to be: what to call at each place of a grid, where its entries are at most so many.

    What has the limit are entries, or multiplications of a product with so many ``flops`` each.
    Calls of a place take ``turns``, each on memory of its own, whose results are kept as long.
    ``scattered`` are places of no grid, of which every pass measures others. What is measured
    ``often`` decides many predictions and depends on the moment: memory, and the costs of a call.
    Of what is the ``host``'s, its own time counts, not that of a GPU which it gives work to.
    """

    name: str
    axes: tuple[Sizes, ...]
    make: Callable[..., Call]
    most: int
    turns: int = 4
    often: bool = False
    scattered: tuple[Sizes, ...] = ()
    flops: int = 0
    host: bool = False

    def places(self, turn: int = 0, passes: int = 1) -> Iterator[Sizes]:
        """Return the sizes that are measured in a pass, little work first in a grid."""
        if self.scattered:
            return iter(self.scattered[turn::passes])
        return (place for place in product(*self.axes) if prod(place) <= self.most)


@dataclass(frozen=True)
class TimeTable:
    """What was measured: seconds by sizes, whose every combination is a place of the grid.

    Places may be empty (too long to measure); there the time of the nearest one with less work
    grows with the work.
    """

    seconds: Mapping[Sizes, float]

    @cached_property
    def axes(self) -> tuple[Sizes, ...]:
        """Sizes in order, for each of them."""
        return tuple(tuple(sorted(set(axis))) for axis in zip(*self.seconds, strict=True))

    @cached_property
    def _logs(self) -> dict[Sizes, float]:
        """Logarithms of seconds at every place."""
        return {place: log(self._filled(place)) for place in product(*self.axes)}

    def _filled(self, place: Sizes) -> float:
        if place in self.seconds:
            return self.seconds[place]
        smaller = [p for p in self.seconds if all(a <= b for a, b in zip(p, place, strict=True))]
        if not smaller:
            return min(self.seconds.values())
        nearest = max(smaller, key=lambda p: (prod(p), self.seconds[p]))
        return self.seconds[nearest] * prod(place) / prod(nearest)

    def fall(self, most: float) -> tuple[Sizes, Sizes] | None:
        """Return places of which the one with more work takes less than a ``most``-th of the time.

        They differ in one size. None if there are no such places.
        """
        slowest: dict[tuple[int, Sizes], Sizes] = {}  # so far along each line of the grid
        for place in sorted(self.seconds):
            for axis in range(len(place)):
                line = axis, (*place[:axis], *place[axis + 1 :])
                before = slowest.setdefault(line, place)
                if self.seconds[before] > most * self.seconds[place]:
                    return before, place
                if self.seconds[place] > self.seconds[before]:
                    slowest[line] = place
        return None

    def at(self, sizes: Sequence[float]) -> float:
        """Return the seconds at other sizes, by straight lines between logarithms.

        Beyond the largest size of an axis the time grows with the work, below the smallest it is
        that of the smallest.
        """
        beyond = 1.0
        corners: list[tuple[Sizes, float]] = [((), 1.0)]
        for size, axis in zip(sizes, self.axes, strict=True):
            if size >= axis[-1]:
                beyond *= size / axis[-1]
                ends = [(axis[-1], 1.0)]
            elif size <= axis[0]:
                ends = [(axis[0], 1.0)]
            else:
                above = bisect_right(axis, size)
                low, high = axis[above - 1], axis[above]
                share = log(size / low) / log(high / low)
                ends = [(low, 1 - share), (high, share)]
            corners = [
                ((*place, end), weight * part) for place, weight in corners for end, part in ends
            ]
        return beyond * exp(sum(weight * self._logs[place] for place, weight in corners))
