"""Where two measured peaks cross, for code of which no cost is known beforehand.

Powers of two are tried until memory or patience ends; what does not run at a length is passed
over, and a crossing is then bisected among the lengths that do run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.headroom import available_bytes

#: The longest length tried; bytes and seconds of one length beyond which no longer one is tried,
#: and how much more twice the tokens may take.
LONGEST, MOST_BYTES, MOST_S, GROWTH = 2**20, 2**31, 3.0, 4

Peaks = Callable[[int], int]


@dataclass
class PeakCrossings:
    """Signs of A - B at the lengths that were looked at, ``step`` apart where that is dense."""

    signs: dict[int, int] = field(default_factory=dict)
    values: dict[int, tuple[int, int]] = field(default_factory=dict)
    step: int = 1

    @property
    def crossings(self) -> list[int]:
        """The first lengths of each new sign, ascending; a single tie is the next sign's first."""
        kept = [n for n in sorted(self.signs) if self.signs[n] or not self._single(n)]
        changes = [b for a, b in pairwise(kept) if self.signs[a] != self.signs[b]]
        return [n - self.step if self.signs.get(n - self.step) == 0 else n for n in changes]

    def _single(self, tie: int) -> bool:
        beside = self.signs.get(tie - self.step), self.signs.get(tie + self.step)
        return tie in self.ends or 0 not in beside

    @property
    def ends(self) -> tuple[int, int]:
        """The shortest and the longest length looked at."""
        return min(self.signs), max(self.signs)


def peak_crossings(a: Peaks, b: Peaks) -> PeakCrossings:
    """Measured; :class:`CannotRunError` where both run at no length, with what one raised."""
    found = PeakCrossings()
    refusals: list[RequestError] = []

    def look(length: int) -> bool:
        try:
            found.values[length] = a(length), b(length)
        except RequestError as refusal:
            refusals.append(refusal)
            return False
        above, below = found.values[length]
        found.signs[length] = (above > below) - (above < below)
        return True

    _outwards(look, found)
    if not found.signs:
        raise CannotRunError(f"both run at none of 2, 4, 8, … tokens: {refusals[0]}")
    found.step = _step(look, found)
    while brackets := [
        (low, high)
        for low, high in pairwise(sorted(found.signs))
        if found.signs[low] != found.signs[high] and high - low > found.step
    ]:
        if not all(_bisected(look, found, *bracket) for bracket in brackets):
            break
    return found


def _outwards(look: Callable[[int], bool], found: PeakCrossings) -> None:
    """Powers of two, until the next one would take too much memory or time, or is refused."""
    most = min(MOST_BYTES, available_bytes("cpu") // 2)
    length = 2
    while length <= LONGEST:
        start = time.monotonic()
        if look(length):
            spent = time.monotonic() - start
            if GROWTH * max(found.values[length]) > most or spent > MOST_S:
                return
        elif found.signs and not _longer(look, found, length):
            return
        length *= 2


def _longer(look: Callable[[int], bool], found: PeakCrossings, refused: int) -> bool:
    """Whether a length refused is a gap; where it is an end, lengths up to that are looked at."""
    low, high = max(found.signs), refused
    while high - low > max(1, low // 8):
        middle = (low + high) // 2 // max(1, low // 8) * max(1, low // 8)
        if not low < middle < high:
            break
        low, high = (middle, high) if look(middle) else (low, middle)
    return look(2 * refused)


def _step(look: Callable[[int], bool], found: PeakCrossings) -> int:
    """How far lengths that run lie apart: the first power of two beside one that runs."""
    first = min(found.signs)
    powers = [2**power for power in range(first.bit_length()) if 2**power < first] or [1]
    return next((step for step in powers if look(first + step)), first)


def _bisected(look: Callable[[int], bool], found: PeakCrossings, low: int, high: int) -> bool:
    """Halve until the lengths of two signs are neighbours; False where the code does not run."""
    below = found.signs[low]
    while high - low > found.step:
        middle = low + max(1, (high - low) // (2 * found.step)) * found.step
        if middle >= high or not look(middle):
            return False
        low, high = (middle, high) if found.signs[middle] == below else (low, middle)
    return True
