"""Tables of a calibration: which calls to time over a grid of sizes, and seconds in between."""

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
    """A table to be measured: a function that makes the call at each place (sizes) of a grid.

    Places of more entries than a limit are left out; of products the limit is on multiplications,
    ``flops`` each. ``turns``: so many copies of a call take turns, each with memory of its own that
    keeps its results. ``scattered``: places that form no grid; every pass measures others of them.
    ``often``: measured more than once in each pass, as many predictions depend on it and it varies
    (memory, costs of a call). ``host``: the time of the processor counts, not of a GPU it starts.
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
        """Return the places that a pass measures; in a grid those with little work first."""
        if self.scattered:
            return iter(self.scattered[turn::passes])
        return (place for place in product(*self.axes) if prod(place) <= self.most)


@dataclass(frozen=True)
class TimeTable:
    """Measured seconds of an operation at the places of a grid: every combination of its sizes.

    A place without a time (too long to measure) has that of the nearest place with less work, times
    the ratio of work.
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
        """Return two places of which the one with more work takes less than 1/``most`` of the time.

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
