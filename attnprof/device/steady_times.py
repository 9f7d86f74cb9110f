"""Times at the usual speed of a processor, from readings that other programs disturbed.

Other programs on a core, its cache or its power budget slow all operations at once, though those
that wait for memory less than those that wait for code or for the core's units. So a small
reference operation is timed before and after each reading. Readings during which the reference took
its usual time count as they are. A place with few of them uses all its readings, corrected to the
usual speed: in logarithms, by the share with which times of that place follow the reference's.
Entry point: :func:`steady`.

Example: the reference usually takes 5 µs and now 7.5 µs, a product reads 490 µs. With a share of
0.5 it counts as 490 / (7.5/5)**0.5 = 400 µs.
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

#: Squared deviations of the reference at which the slope of a place weighs as much as that of its
#: kind: readings at one speed do not show how a place follows the reference.
TRUSTED_SQUARES = 0.06
#: Largest factor between reference times of one speed; readings at the usual speed that suffice.
SAME_SPEED, ENOUGH_READINGS = 1.12, 3
#: Least share of all readings that an undisturbed processor must have made.
UNDISTURBED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class TimeReading:
    """Logarithms of the seconds of a call, and of the reference operation around it."""

    log_s: float
    reference: float


@dataclass(frozen=True)
class _Deviations:
    """Sums over the readings of a place, for a regression on the reference's logarithms.

    ``squares``: squared deviations of the reference from its mean. ``products``: its deviations
    times those of the readings.
    """

    squares: float
    products: float

    @classmethod
    def of(cls, readings: Sequence[TimeReading]) -> "_Deviations":
        """Return the sums of readings."""
        reference = fmean(reading.reference for reading in readings)
        log_s = fmean(reading.log_s for reading in readings)
        return cls(
            squares=sum((one.reference - reference) ** 2 for one in readings),
            products=sum((one.reference - reference) * (one.log_s - log_s) for one in readings),
        )


def steady(
    passes: Sequence[Mapping[Place, Sequence[TimeReading]]], usual: float | None = None,
    kind: Callable[[Place], Hashable] = lambda _: None,
) -> dict[Place, list[float]]:  # fmt: skip
    """Return logarithms of seconds at the usual speed: by place, the median of each pass.

    A pass without readings at the usual speed is left out if the other passes have enough of them.
    ``usual``: logarithm of the reference's usual time, by default :func:`usual_reference` of all
    readings. ``kind``: a function that groups places which follow the reference alike. Raises
    ValueError without readings.
    """
    by_place: dict[Place, list[Sequence[TimeReading]]] = {}
    for one_pass in passes:
        for place, readings in one_pass.items():
            by_place.setdefault(place, []).append(readings)
    if usual is None:
        all_passes = chain(*by_place.values())
        usual = usual_reference([one.reference for readings in all_passes for one in readings])
    deviations = {
        place: _Deviations.of(list(chain(*place_passes)))
        for place, place_passes in by_place.items()
    }
    shares = _shares(deviations, {place: kind(place) for place in by_place})
    return {
        place: _at_usual(place_passes, shares[place], usual)
        for place, place_passes in by_place.items()
    }


def same_speed(reference: float, usual: float) -> bool:
    """Return whether the processor had its usual speed, by logarithms of reference times."""
    return abs(reference - usual) <= log(SAME_SPEED)


def has_enough(references: Iterable[float], usual: float) -> bool:
    """Return whether enough readings were made at the usual speed, by their reference times."""
    return sum(same_speed(one, usual) for one in references) >= ENOUGH_READINGS


def _at_usual(passes: Sequence[Sequence[TimeReading]], share: float, usual: float) -> list[float]:
    """Return each pass's median of readings at the usual speed, or of all, corrected to it."""
    if has_enough((one.reference for readings in passes for one in readings), usual):
        steady_logs = [
            [reading.log_s for reading in readings if same_speed(reading.reference, usual)]
            for readings in passes
        ]
        return [median(logs) for logs in steady_logs if logs]
    return [
        median(reading.log_s - share * (reading.reference - usual) for reading in readings)
        for readings in passes
    ]


def usual_reference(references: Sequence[float]) -> float:
    """Return the logarithm of the reference's time on an undisturbed processor.

    It is the median of the fastest cluster of times that holds ``UNDISTURBED_SHARE`` of all:
    disturbed times vary, undisturbed ones are alike. Raises ValueError without readings.
    """
    ordered = sorted(references)
    for first, fastest in enumerate(ordered):
        cluster = ordered[first : bisect_right(ordered, fastest + log(SAME_SPEED))]
        if len(cluster) >= UNDISTURBED_SHARE * len(ordered):
            return median(cluster)
    raise ValueError("no references")


def _shares(
    deviations: Mapping[Place, _Deviations], kinds: Mapping[Place, Hashable]
) -> dict[Place, float]:
    """Return the slope of each place's logarithms over the reference's, between 0 and 1.5."""
    squares, products = defaultdict[Hashable, float](float), defaultdict[Hashable, float](float)
    for place, deviation in deviations.items():
        squares[kinds[place]] += deviation.squares
        products[kinds[place]] += deviation.products
    kind_shares = {
        kind: products[kind] / squares[kind] if squares[kind] else 0.0 for kind in squares
    }
    shares = {
        place: (deviation.products + TRUSTED_SQUARES * kind_shares[kinds[place]])
        / (deviation.squares + TRUSTED_SQUARES)
        for place, deviation in deviations.items()
    }
    return {place: min(1.5, max(0.0, share)) for place, share in shares.items()}
