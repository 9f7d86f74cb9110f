"""Lengths at which two costs are known, found with a predicate, without running anything.

Formulas may hold only for multiples of a block, or up to a length: :class:`Lengths` finds the step
between lengths and the stretches that they lie in.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from math import gcd

#: The longest length that is searched.
LONGEST = 2**40
#: Every length up to here is tried, and from there on 8 a doubling.
DENSE = 64
PER_DOUBLING = 8
#: The first lengths are looked for one by one up to here, to find their step.
_SCANNED = 8192
#: Numbers a step apart at which ``holds`` is false before a stretch has ended.
_TRIES = 8


@dataclass(frozen=True)
class Lengths:
    """Lengths where ``holds`` is true; a stretch of them may have gaps."""

    holds: Callable[[int], bool]

    @cached_property
    def _first_lengths(self) -> list[int]:
        """The first three lengths, which tell the step."""
        return list(islice(filter(self.holds, range(1, _SCANNED + 1)), 3))

    @cached_property
    def step(self) -> int:
        """How far lengths lie apart: 64 for multiples of 64."""
        return gcd(*(b - a for a, b in pairwise(self._first_lengths))) or 1

    @cached_property
    def stretches(self) -> list[tuple[int, int | None]]:
        """First and last length of each stretch; None where no end was found."""
        ended: list[tuple[int, int | None]] = []
        first, before, was_inside = 0, 0, False
        for place in self._places:
            inside = self._next_that_holds(place) is not None
            if inside and not was_inside:
                first = self._next_that_holds(self._last_inside(before - 1, place)) or 0
            elif was_inside and not inside:
                ended.append((first, self._last_inside(place, before)))
            before, was_inside = place, inside
        return [*ended, (first, None)] if was_inside else ended

    @property
    def start(self) -> int:
        """The length from which on an answer is for all: 1, if only one token is left out."""
        return 1 if self.holds(1) or self.holds(2) else self.stretches[0][0]

    def grid(self) -> list[int]:
        """Return lengths to try first, and every end of a stretch."""
        near = (self._next_that_holds(place) for place in self._places)
        ends = (end for stretch in self.stretches for end in stretch)
        return sorted({length for length in (*near, *ends) if length is not None})

    def after(self, length: int) -> int | None:
        """Return the first length from ``length`` on; None where there is none."""
        near = self._next_that_holds(self._next_step(length))
        later = (first for first, _ in self.stretches if first >= length)
        return next(later, None) if near is None else near

    def within(self, low: int, high: int) -> Iterator[int]:
        """Yield all lengths from low to high."""
        return filter(self.holds, range(self._next_step(max(low, 1)), high + 1, self.step))

    @cached_property
    def _places(self) -> list[int]:
        """Multiples of the step of all magnitudes: all below 64, then 8 a doubling."""
        start, stop = DENSE.bit_length() - 1, LONGEST.bit_length() - 1
        steps = range(start * PER_DOUBLING, stop * PER_DOUBLING + 1)
        geometric = (round(2 ** (step / PER_DOUBLING)) for step in steps)
        places = (*range(1, DENSE + 1), *geometric, *self._first_lengths)
        return sorted({self._next_step(place) for place in places})

    def _next_step(self, length: int) -> int:
        """Return the next number that is a multiple of the step from the first length."""
        rest = self._first_lengths[0] if self._first_lengths else 0
        return length + (rest - length) % self.step

    def _next_that_holds(self, place: int) -> int | None:
        """Return the first of the next eight such numbers that holds, or None."""
        members = range(place, place + _TRIES * self.step, self.step)
        return next(filter(self.holds, members), None)

    def _last_inside(self, outside: int, inside: int) -> int:
        """Return the last such number, from inside to outside, that is near one that holds."""
        if self._next_that_holds(inside) is None or outside < 0:
            return inside
        away = 1 if outside > inside else -1
        low, high = 0, -(-abs(outside - inside) // self.step)
        while high - low > 1:
            middle = (low + high) // 2
            near = self._next_that_holds(inside + away * middle * self.step)
            low, high = (low, middle) if near is None else (middle, high)
        return inside + away * low * self.step


#: All lengths.
EVERY = Lengths(lambda length: length >= 1)
