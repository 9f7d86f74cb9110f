"""The axis of a crossover: the length, or another size or parameter at a fixed length.

:class:`CrossoverAxis` says which values a search may try. Formulas may hold only for multiples of a
block, or up to a length: :class:`Lengths` finds, from a predicate alone, the step between such
lengths (64) and the stretches that they lie in (from 128 on).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice, pairwise
from math import gcd
from typing import Any

from attnprof.algebra.polynomials import divisors
from attnprof.costs import Number
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.workload import Workload

#: The longest length that is searched.
LONGEST = 2**40
#: Every length up to 64 is tried, and from there on 8 a doubling.
DENSE, PER_DOUBLING = 64, 8
#: The first lengths are looked for one by one up to here, to find their step.
_SCANNED = 8192
#: A stretch has ended if ``holds`` is false at so many numbers a step apart.
_TRIES = 8


@dataclass(frozen=True)
class Lengths:
    """The lengths for which ``holds`` is true; a stretch of them may have gaps."""

    holds: Callable[[int], bool]

    @cached_property
    def _first_lengths(self) -> list[int]:
        """Return the first three lengths, which tell the step."""
        return list(islice(filter(self.holds, range(1, _SCANNED + 1)), 3))

    @cached_property
    def step(self) -> int:
        """Return the distance of lengths: 64 for multiples of 64."""
        return gcd(*(b - a for a, b in pairwise(self._first_lengths))) or 1

    @cached_property
    def stretches(self) -> list[tuple[int, int | None]]:
        """Return the first and last length of each stretch; None where no end was found."""
        stretches: list[tuple[int, int | None]] = []
        first, before, was_inside = 0, 0, False
        for length in self._candidates:
            is_inside = self._next_that_holds(length) is not None
            if is_inside and not was_inside:
                first = self._next_that_holds(self._last_inside(before - 1, length)) or 0
            elif was_inside and not is_inside:
                stretches.append((first, self._last_inside(length, before)))
            before, was_inside = length, is_inside
        return [*stretches, (first, None)] if was_inside else stretches

    @property
    def start(self) -> int:
        """Return the first length of a verdict for all lengths: 1 also if only 2 holds."""
        return 1 if self.holds(1) or self.holds(2) else self.stretches[0][0]

    def grid(self) -> list[int]:
        """Return lengths to try first, and every end of a stretch."""
        near = (self._next_that_holds(place) for place in self._candidates)
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
    def _candidates(self) -> list[int]:
        """Return multiples of the step of all magnitudes: all below 64, then 8 a doubling."""
        candidates = (*range(1, DENSE + 1), *_doublings(DENSE), *self._first_lengths)
        return sorted({self._next_step(place) for place in candidates})

    def _next_step(self, length: int) -> int:
        """Return the next number that is a multiple of steps away from the first length."""
        first = self._first_lengths[0] if self._first_lengths else 0
        return length + (first - length) % self.step

    def _next_that_holds(self, place: int) -> int | None:
        """Return the first length among eight numbers, steps apart from ``place`` on, or None."""
        candidates = range(place, place + _TRIES * self.step, self.step)
        return next(filter(self.holds, candidates), None)

    def _last_inside(self, outside: int, inside: int) -> int:
        """Return the last number from ``inside`` to ``outside`` at which a stretch goes on."""
        if self._next_that_holds(inside) is None or outside < 0:
            return inside
        away = 1 if outside > inside else -1
        low, high = 0, -(-abs(outside - inside) // self.step)
        while high - low > 1:
            middle = (low + high) // 2
            near = self._next_that_holds(inside + away * middle * self.step)
            low, high = (low, middle) if near is None else (middle, high)
        return inside + away * low * self.step


def _doublings(power_of_two: int) -> Iterator[int]:
    """Yield ``PER_DOUBLING`` numbers a doubling, from a power of two to ``LONGEST``."""
    start, stop = power_of_two.bit_length() - 1, LONGEST.bit_length() - 1
    for step in range(start * PER_DOUBLING, stop * PER_DOUBLING + 1):
        yield round(2 ** (step / PER_DOUBLING))


#: All lengths.
EVERY = Lengths(lambda length: length >= 1)

#: Sizes of a workload by the name of their flag.
SIZES = {
    "seq": "seq_len", "d": "head_dim", "heads": "num_heads", "batch": "batch_size",
    "kv_heads": "num_kv_heads",
}  # fmt: skip
#: The last value that is tried where costs round sizes and no range was typed, or the length, if
#: that is more; and how many values are tried one by one.
USUAL, ONE_BY_ONE = 4096, 256


def parameters(side: Any) -> list[str]:
    """Return a mechanism's parameters that are whole numbers; [] for a user's module."""
    if not isinstance(side, Mechanism):
        return []
    return [item.name for item in fields(side) if item.type in (int, int | None)]


@dataclass(frozen=True)
class CrossoverAxis:
    """The size that varies (the name of its flag), or a mechanism's parameter, and its range.

    ``last`` is the last value (None: no end). With ``d_model`` the number of heads varies in a
    model of that width. A length is a value times ``every``, for lengths in blocks.
    """

    name: str = "seq"
    first: int = 1
    last: int | None = None
    d_model: int | None = None
    every: int = 1

    @property
    def fixed_name(self) -> str:
        """Return which size is fixed in a row: the head width over lengths, else the length."""
        return "head_dim" if self.name == "seq" else "seq_len"

    @property
    def letter(self) -> str:
        """Return the letter of the fixed size in closed forms."""
        return "d" if self.name == "seq" else "N"

    @property
    def is_parameter(self) -> bool:
        """Return whether a parameter of a mechanism varies."""
        return self.name not in SIZES

    @property
    def domain(self) -> Lengths:
        """Return the values of the range, whether both sides take them or not."""
        if (self.first, self.last) == (1, None):
            return EVERY
        return Lengths(lambda value: self.first <= value <= (self.last or LONGEST))

    def check(self, sides: Sequence[Any]) -> None:
        """Raise :class:`RequestError` if the name is no size and no parameter of a side."""
        if self.d_model is not None and self.name != "heads":
            raise RequestError(f"d_model {self.d_model} is for numbers of heads alone: over heads")
        takes = [name for side in sides for name in parameters(side)]
        if self.is_parameter and self.name not in takes:
            possible = list(dict.fromkeys([*SIZES, *takes]))
            names = " and ".join(side.name for side in sides)
            near, every = closest(self.name, possible), f"possible: {', '.join(possible)}"
            raise RequestError(
                f"--over {self.name}: no size, and no whole number that {names} take; "
                f"{near if near == every else f'{near} {every}'}"
            )

    def placed(
        self, sides: Sequence[Any], workload: Workload, value: Number, fixed_size: Number
    ) -> tuple[list[Any], Workload]:
        """Return both sides and their workload at a value and at the fixed size."""
        if self.name == "seq":
            return list(sides), workload.with_(seq_len=value * self.every, head_dim=fixed_size)
        if self.is_parameter:
            changed = [
                replace(side, **{self.name: value}) if self.name in parameters(side) else side
                for side in sides
            ]
            return changed, workload.with_(seq_len=fixed_size)
        more: dict[str, Number] = {SIZES[self.name]: value}
        if self.d_model is not None:
            if isinstance(value, int) and self.d_model % value:
                raise RequestError(f"{value} heads do not divide d_model {self.d_model}")
            more["head_dim"] = self.d_model // value
        return list(sides), workload.with_(seq_len=fixed_size, **more)

    def values(self, workload: Workload, fixed_size: int) -> list[int]:
        """Return values to try where costs round sizes: first all, then 8 a doubling.

        Divisors of the length and the widths are among them, since some parameters must divide one.
        """
        last = self.last or max(USUAL, fixed_size)
        sizes = (fixed_size, self.d_model or 1, workload.num_heads, workload.head_dim)
        divide = (place for size in sizes if isinstance(size, int) for place in divisors(size))
        one_by_one = range(self.first, self.first + ONE_BY_ONE)
        candidates = {*one_by_one, *_doublings(ONE_BY_ONE), *divide, last}
        return sorted(value for value in candidates if self.first <= value <= last)

    def after(self, place: int, workload: Workload, fixed_size: int) -> Iterator[int]:
        """Yield values to try from ``place`` on, of head widths first a multiple of 4 or 8."""
        step = 8 if place >= 64 else 4 if place >= 16 else 1
        last = self.last or max(USUAL, fixed_size)
        usual = [-(-place // step) * step] if self.name == "d" else []
        later = [value for value in self.values(workload, fixed_size) if value >= place]
        yield from (v for v in dict.fromkeys([*usual, place, *later]) if v <= last)


#: The length, as in the papers.
SEQ = CrossoverAxis()
