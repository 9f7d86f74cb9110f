"""Where two measured peaks cross, for code of which no cost is known beforehand.

Powers of two are tried until memory or patience ends; crossings are bisected where code runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.point import available_bytes

#: The longest length tried; bytes and seconds of one length beyond which no longer one is tried,
#: and how much more twice the tokens may take.
LONGEST, MOST_BYTES, MOST_S, GROWTH = 2**20, 2**31, 3.0, 4

Peaks = Callable[[int], int]


def sign(value: int) -> int:
    """-1, 0 or 1."""
    return (value > 0) - (value < 0)


@dataclass
class PeakCrossings:
    """Signs of A - B at the lengths that were looked at, ``step`` apart where that is dense."""

    a: Peaks
    b: Peaks
    signs: dict[int, int] = field(default_factory=dict)
    step: int = 1
    #: why lengths do not run, and the larger peak at the last one that does
    refusals: list[RequestError] = field(default_factory=list)
    largest: int = 0

    @property
    def crossings(self) -> list[int]:
        """The first lengths of each new sign, ascending; a single tie is the next sign's first."""
        signs, step = self.signs, self.step
        kept = [
            n for n in sorted(signs)
            if signs[n] or (n not in self.ends and 0 in (signs.get(n - step), signs.get(n + step)))
        ]  # fmt: skip
        changes = [b for a, b in pairwise(kept) if signs[a] != signs[b]]
        return [n - step if signs.get(n - step) == 0 else n for n in changes]

    @property
    def ends(self) -> tuple[int, int]:
        """The shortest and the longest length looked at."""
        return min(self.signs), max(self.signs)

    def look(self, length: int) -> bool:
        """Whether both run at a length, and which sign they have there."""
        try:
            above, below = self.a(length), self.b(length)
        except RequestError as refusal:
            self.refusals.append(refusal)
            return False
        self.signs[length] = sign(above - below)
        self.largest = max(above, below)
        return True

    def outwards(self) -> None:
        """Powers of two, until the next one would take too much memory or time, or is refused."""
        most = min(MOST_BYTES, available_bytes("cpu") // 2)
        length = 2
        while length <= LONGEST:
            start = time.monotonic()
            if self.look(length):
                if GROWTH * self.largest > most or time.monotonic() - start > MOST_S:
                    return
            elif self.signs and not self._longer(length):
                return
            length *= 2

    def _longer(self, refused: int) -> bool:
        """Whether a length refused is a gap; where it is an end, lengths up to it are looked at."""
        low, high = max(self.signs), refused
        while high - low > max(1, low // 8):
            middle = (low + high) // 2 // max(1, low // 8) * max(1, low // 8)
            if not low < middle < high:
                break
            low, high = (middle, high) if self.look(middle) else (low, middle)
        return self.look(2 * refused)

    def bisected(self, low: int, high: int) -> bool:
        """Halve until lengths of two signs are neighbours; False where the code does not run."""
        below = self.signs[low]
        while high - low > self.step:
            middle = low + max(1, (high - low) // (2 * self.step)) * self.step
            if middle >= high or not self.look(middle):
                return False
            low, high = (middle, high) if self.signs[middle] == below else (low, middle)
        return True


def peak_crossings(a: Peaks, b: Peaks) -> PeakCrossings:
    """Measured; :class:`CannotRunError` where both run at no length, with what one raised."""
    found = PeakCrossings(a, b)
    found.outwards()
    if not found.signs:
        raise CannotRunError(f"both run at none of 2, 4, 8, … tokens: {found.refusals[0]}")
    first = min(found.signs)  # lengths that run lie as far apart as the next one that does
    powers = [2**power for power in range(first.bit_length()) if 2**power < first] or [1]
    found.step = next((step for step in powers if found.look(first + step)), first)
    while brackets := [
        (low, high)
        for low, high in pairwise(sorted(found.signs))
        if found.signs[low] != found.signs[high] and high - low > found.step
    ]:
        if not all(found.bisected(*bracket) for bracket in brackets):
            break
    return found
