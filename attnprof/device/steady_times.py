"""Times freed of what slows a whole processor down, as a small operation beside each shows it.

Neighbours on a core, its cache or its power budget slow every operation down at once, though not
all equally: what waits for code or for the core's units more than what waits for memory. A
reference operation timed before and after each reading tells how slow the processor is at that
moment. Readings at the reference's usual time are told as they are; where there are few of them,
all are moved to it, by as much as readings of that kind follow the reference.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from statistics import fmean, median
from typing import TypeVar

Place = TypeVar("Place", bound=Hashable)

#: Readings of a place tell its own share, as far as they spread more than this sum of squares;
#: below, the share is that of places of its kind.
TRUSTED = 0.06
#: Up to this factor the reference is as usual; so many such readings of a place are enough.
SAME_SPEED, FEWEST = 1.12, 3
#: Share of all readings that an undisturbed processor must have.
UNDISTURBED = 0.1


@dataclass(frozen=True, slots=True)
class TimeReading:
    """Seconds of a call, and of the reference operation beside it, both as logarithms."""

    log_s: float
    reference: float


@dataclass(frozen=True)
class _Cloud:
    """Readings of one place around their means: the centre, and sums of squares and products."""

    log_s: float
    reference: float
    squares: float
    products: float

    @classmethod
    def of(cls, readings: Sequence[TimeReading]) -> "_Cloud":
        x, y = fmean(one.reference for one in readings), fmean(one.log_s for one in readings)
        squares = sum((one.reference - x) ** 2 for one in readings)
        products = sum((one.reference - x) * (one.log_s - y) for one in readings)
        return cls(y, x, squares, products)


def steady(
    passes: Sequence[Mapping[Place, Sequence[TimeReading]]], usual: float | None = None,
    kind: Callable[[Place], Hashable] = lambda _: None,
) -> dict[Place, list[float]]:  # fmt: skip
    """Return logarithms of seconds at the usual speed: by place, one value a pass that has it.

    A value is the median of its pass, where that counts; the usual time, a logarithm, that of
    :func:`usual_of` all readings unless it is given. Places of a ``kind`` follow the reference
    alike. Raises ValueError for no readings.
    """
    together: dict[Place, list[Sequence[TimeReading]]] = {}
    for one_pass in passes:
        for place, taken in one_pass.items():
            together.setdefault(place, []).append(taken)
    if usual is None:
        parts = chain(*together.values())
        usual = usual_of([one.reference for part in parts for one in part])
    clouds = {
        place: _Cloud.of(list(chain(*passes_there))) for place, passes_there in together.items()
    }
    shares = _shares(clouds, {place: kind(place) for place in together})
    return {
        place: _at_usual(passes_there, shares[place], usual)
        for place, passes_there in together.items()
    }


def same_speed(reference: float, usual: float) -> bool:
    """Return whether the processor was as fast as usual, by logarithms of reference times."""
    return abs(reference - usual) <= log(SAME_SPEED)


def enough(references: Iterable[float], usual: float) -> bool:
    """Return whether readings beside these references tell a time at the usual speed."""
    return sum(same_speed(one, usual) for one in references) >= FEWEST


def _at_usual(parts: Sequence[Sequence[TimeReading]], share: float, usual: float) -> list[float]:
    """Return medians of each pass: of readings at the usual speed, or of all, moved to it."""
    if enough((one.reference for part in parts for one in part), usual):
        same = [[x.log_s for x in part if same_speed(x.reference, usual)] for part in parts]
        return [median(logs) for logs in same if logs]
    return [median(x.log_s - share * (x.reference - usual) for x in part) for part in parts]


def usual_of(references: Sequence[float]) -> float:
    """Return the logarithm of the reference's time while nobody disturbs the processor.

    The fastest at which a share of all readings was made: where neighbours come and go, what they
    leave is the same at all times, and how slow they make it is not. Raises ValueError for none.
    """
    ordered = sorted(references)
    for place, fastest in enumerate(ordered):
        alike = ordered[place : bisect_right(ordered, fastest + log(SAME_SPEED))]
        if len(alike) >= UNDISTURBED * len(ordered):
            return median(alike)
    raise ValueError("no references")


def _shares(clouds: Mapping[Place, _Cloud], kinds: Mapping[Place, Hashable]) -> dict[Place, float]:
    """Return by how much of a change of the reference the readings of each place change."""
    squares, products = defaultdict[Hashable, float](float), defaultdict[Hashable, float](float)
    for place, cloud in clouds.items():
        squares[kinds[place]] += cloud.squares
        products[kinds[place]] += cloud.products
    alike = {kind: products[kind] / squares[kind] if squares[kind] else 0.0 for kind in squares}
    shares = {
        place: (one.products + TRUSTED * alike[kinds[place]]) / (one.squares + TRUSTED)
        for place, one in clouds.items()
    }
    return {place: min(1.5, max(0.0, share)) for place, share in shares.items()}
