"""The lengths at which two costs are known, found by asking a predicate and running nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from math import gcd

#: Lengths are searched up to here.
LONGEST = 2**40
#: Every length up to here, and from there on 8 a doubling.
DENSE = 64
PER_DOUBLING = 8
#: Looked through one by one for the class that lengths lie in.
_SCANNED = 8192
#: Members of a class that are asked before a stretch counts as left.
_TRIES = 8


@dataclass(frozen=True)
class Lengths:
    """Lengths where ``holds`` is true; inside a stretch, those it refuses are passed over."""

    holds: Callable[[int], bool]

    @cached_property
    def _scanned(self) -> list[int]:
        """The first few lengths: they tell the class."""
        return list(islice(filter(self.holds, range(1, _SCANNED + 1)), 3))

    @cached_property
    def step(self) -> int:
        """How far lengths lie apart: 64 for multiples of 64."""
        return gcd(*(b - a for a, b in pairwise(self._scanned))) or 1

    @cached_property
    def stretches(self) -> list[tuple[int, int | None]]:
        """First and last length of each run of lengths; None where no end was found."""
        found: list[tuple[int, int | None]] = []
        first, before, was_inside = 0, 0, False
        for place in self._places:
            inside = self._near(place) is not None
            if inside and not was_inside:
                first = self._near(self._border(before - 1, place)) or 0
            elif was_inside and not inside:
                found.append((first, self._border(place, before)))
            before, was_inside = place, inside
        return [*found, (first, None)] if was_inside else found

    @property
    def start(self) -> int:
        """From where on an answer is for all lengths: 1, where only a single token is left out."""
        return 1 if self.holds(1) or self.holds(2) else self.stretches[0][0]

    def grid(self) -> list[int]:
        """Lengths to look at first, and every end."""
        near = (self._near(place) for place in self._places)
        ends = (end for stretch in self.stretches for end in stretch)
        return sorted({length for length in (*near, *ends) if length is not None})

    def after(self, length: int) -> int | None:
        """The first length from here on; None where there is none."""
        found = self._near(self._aligned(length))
        later = (first for first, _ in self.stretches if first >= length)
        return next(later, None) if found is None else found

    def within(self, low: int, high: int) -> Iterator[int]:
        """All lengths from low to high."""
        return filter(self.holds, range(self._aligned(max(low, 1)), high + 1, self.step))

    @cached_property
    def _places(self) -> list[int]:
        """Members of the class, of all magnitudes: dense below, geometric above."""
        start, stop = DENSE.bit_length() - 1, LONGEST.bit_length() - 1
        steps = range(start * PER_DOUBLING, stop * PER_DOUBLING + 1)
        geometric = (round(2 ** (step / PER_DOUBLING)) for step in steps)
        places = (*range(1, DENSE + 1), *geometric, *self._scanned)
        return sorted({self._aligned(place) for place in places})

    def _aligned(self, length: int) -> int:
        """The next member of the class."""
        rest = self._scanned[0] if self._scanned else 0
        return length + (rest - length) % self.step

    def _near(self, place: int) -> int | None:
        """The first of a few members of the class that holds."""
        members = range(place, place + _TRIES * self.step, self.step)
        return next(filter(self.holds, members), None)

    def _border(self, outside: int, inside: int) -> int:
        """The last member on the way from a length inside to one outside that is near one."""
        if self._near(inside) is None or outside < 0:
            return inside
        away = 1 if outside > inside else -1
        low, high = 0, -(-abs(outside - inside) // self.step)
        while high - low > 1:
            middle = (low + high) // 2
            near = self._near(inside + away * middle * self.step)
            low, high = (low, middle) if near is None else (middle, high)
        return inside + away * low * self.step


#: All lengths.
EVERY = Lengths(lambda length: length >= 1)
