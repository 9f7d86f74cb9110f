"""Tables of a calibration: the calls to time over a grid of sizes, and seconds between grid points.

A place is one combination of sizes of an operation. A :class:`Benchmark` says at which places to
time which call; a :class:`TimeTable` holds the seconds, and interpolates between places.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import exp, log, prod

Sizes = tuple[int, ...]
Call = Callable[[], object]

#: Copies of a call that take turns, each with memory of its own: 1 uses the memory of the last call
#: again, 2 that of the call before the last.
JUST_USED, ALTERNATING = 1, 2


@dataclass(frozen=True)
class Benchmark:
    """A table to be measured: its places, and a function that makes the call at a place.

    ``axes``: sizes of the grid, by dimension. ``max_work``: the largest product of a place's sizes:
    entries, or multiplications with ``flops`` FLOPs each. ``copies``: how many copies of a call
    take turns, each with its own operands and results. ``repeat_in_pass``: measure several times in
    each pass, for tables that many predictions depend on and that vary (memory, overhead of calls).
    ``scattered``: places instead of a grid, a part of them in each pass. ``host_time``: time the
    processor, not the GPU that it starts.
    """

    name: str
    axes: tuple[Sizes, ...]
    make: Callable[..., Call]
    max_work: int
    copies: int = 4
    repeat_in_pass: bool = False
    scattered: tuple[Sizes, ...] = ()
    flops: int = 0
    host_time: bool = False

    def places(self, pass_index: int = 0, passes: int = 1) -> Iterator[Sizes]:
        """Yield the places to measure in a pass; all of a grid, in the order of its axes."""
        if self.scattered:
            return iter(self.scattered[pass_index::passes])
        return (place for place in product(*self.axes) if prod(place) <= self.max_work)


@dataclass(frozen=True)
class TimeTable:
    """Measured seconds of an operation at the places of a grid.

    A place that took too long to measure gets the time of the nearest place with less work, times
    the ratio of work (the product of sizes).
    """

    seconds: Mapping[Sizes, float]

    @cached_property
    def axes(self) -> tuple[Sizes, ...]:
        """The sizes of each dimension in ascending order."""
        return tuple(tuple(sorted(set(axis))) for axis in zip(*self.seconds, strict=True))

    @cached_property
    def _logs(self) -> dict[Sizes, float]:
        """Logarithms of seconds at every place of the grid."""
        return {place: log(self._seconds_at(place)) for place in product(*self.axes)}

    def _seconds_at(self, place: Sizes) -> float:
        """Return the seconds at a place of the grid, measured or scaled up."""
        if place in self.seconds:
            return self.seconds[place]
        smaller = [p for p in self.seconds if all(a <= b for a, b in zip(p, place, strict=True))]
        if not smaller:
            return min(self.seconds.values())
        nearest = max(smaller, key=lambda p: (prod(p), self.seconds[p]))
        return self.seconds[nearest] * prod(place) / prod(nearest)

    def fall(self, max_ratio: float) -> tuple[Sizes, Sizes] | None:
        """Return two places, the smaller of which takes over ``max_ratio`` times as long, or None.

        The two differ in one size.
        """
        slowest: dict[tuple[int, Sizes], Sizes] = {}  # on each line of the grid, up to here
        for place in sorted(self.seconds):
            for axis in range(len(place)):
                line = axis, (*place[:axis], *place[axis + 1 :])
                before = slowest.setdefault(line, place)
                if self.seconds[before] > max_ratio * self.seconds[place]:
                    return before, place
                if self.seconds[place] > self.seconds[before]:
                    slowest[line] = place
        return None

    def at(self, sizes: Sequence[float]) -> float:
        """Return the seconds at any sizes, by linear interpolation of logarithms.

        Beyond the largest size of an axis the time grows in proportion; below the smallest size it
        is that at the smallest.
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
