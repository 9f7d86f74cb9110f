"""Where two measured peaks cross over another size than the length: looked at, then halved."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from attnprof.crossovers.peak_crossings import GROWTH, MOST_BYTES, MOST_S, sign
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.measure.point import available_bytes

#: Values tried on either side where one in the middle is refused, and from a place on.
TRIES, FROM_A_PLACE = 64, 16


@dataclass
class ValueCrossings:
    """Signs of A - B at the values looked at; ``both`` gives the two peaks at one.

    ``values`` are those that may be tried, ascending, and ``guesses`` where the peaks should cross.
    After the search ``end`` says why no larger value was looked at.
    """

    both: Callable[[int], tuple[int, int]]
    values: Sequence[int]
    guesses: Sequence[float] = ()
    signs: dict[int, int] = field(default_factory=dict)
    end: str = ""
    _refused: list[AttnprofError] = field(default_factory=list)
    _largest: int = 0

    def run(self) -> None:
        """Look at values of all magnitudes, then halve; CannotRunError where none runs."""
        most = min(MOST_BYTES, available_bytes("cpu") // 2)
        for place in self._places():
            start = time.monotonic()
            later = islice((value for value in self.values if value >= place), FROM_A_PLACE)
            if not any(map(self._look, later)):
                continue
            if GROWTH * self._largest > most or time.monotonic() - start > MOST_S:
                self.end = "a larger one would take too much memory or time"
                break
        if not self.signs:
            said = self._refused[0] if self._refused else "there is none"
            raise CannotRunError(f"both run at none of the values: {said}")
        for low, high in list(pairwise(sorted(self.signs))):
            if self.signs[low] != self.signs[high]:
                self._halve(low, high)
        places = sorted(self.signs)
        for before, value, after in zip([0, *places], places, places[1:], strict=False):
            if self.signs.get(before, 1) and not self.signs[value]:
                self.signs[value] = self.signs[after]  # a tie at one: what follows is not dearer

    @property
    def crossings(self) -> list[int]:
        """The first values of each new sign, ascending."""
        return [b for a, b in pairwise(sorted(self.signs)) if self.signs[a] != self.signs[b]]

    def _places(self) -> Iterator[int]:
        """Powers of two, and the neighbours of every guess."""
        wanted = [2**power for power in range(max(self.values).bit_length() + 1)]
        wanted += [near for guess in self.guesses for near in (int(guess), int(guess) + 1)]
        yield from sorted(set(wanted))

    def _look(self, value: int) -> bool:
        """Whether both run at a value; its sign is kept."""
        if value not in self.signs:
            try:
                above, below = self.both(value)
            except (RequestError, CannotRunError) as refusal:
                self._refused.append(refusal)
                return False
            self.signs[value] = sign(above - below)
            self._largest = max(above, below)
        return True

    def _halve(self, low: int, high: int) -> None:
        """Until no value that runs lies between two of different sign."""
        below = self.signs[low]
        while middle := self._between(low, high):
            low, high = (middle, high) if self.signs[middle] == below else (low, middle)

    def _between(self, low: int, high: int) -> int | None:
        """A value that runs, as near to the middle as may be."""
        middle = (low + high) // 2
        for step in range(TRIES):
            for value in (middle + step, middle - step):
                if low < value < high and self._look(value):
                    return value
        return None
