"""Do two measurements of the same thing agree? 100 pairs of runs, taken in turns.

A run is what ``attnprof sweep --processes 5`` does for one point: five fresh processes, a median
each, one interval over them. The processes of the two runs of a pair take turns in random order.
The interval is honest if the two overlap nearly always, useful if it is narrow or says ``noisy``::

    python reports/run.py gate/repeats
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from rows import table

from attnprof.measure.batch import measure_apart
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_over_processes

PAIRS, PROCESSES = 100, 5
BUDGET = Budget(samples=20, min_time_s=0.1, max_time_s=0.4, warmup_s=0.1)
POINTS = [
    PointRequest("standard", 256, 4, 32, threads=1, budget=BUDGET, counts=False),
    PointRequest("linear", 1024, 4, 32, threads=1, budget=BUDGET, counts=False),
]


@dataclass(frozen=True)
class Row:
    """A pair of runs, a and b: median and interval of each in seconds; whether they overlap."""

    pair: int
    mechanism: str
    a_low: float
    a_median: float
    a_high: float
    b_low: float
    b_median: float
    b_high: float
    overlap: bool
    half_width_a: float
    half_width_b: float
    noisy_a: bool
    noisy_b: bool


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return str(row.pair)


def cases() -> dict[str, PointRequest]:
    """Return the point of each pair, by its number."""
    return {str(pair): POINTS[pair % len(POINTS)] for pair in range(PAIRS)}


def rows(pair: str, point: PointRequest) -> Iterator[Row]:
    """Yield two runs of a point, their processes in turns."""
    chance = random.Random()  # noqa: S311 - any order will do
    times: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(PROCESSES):
        for run in chance.sample((0, 1), 2):
            times[run].append(measure_apart(point).times_s)
    a, b = (estimate_over_processes(seconds) for seconds in times)
    yield Row(
        int(pair), point.mechanism, a.low_s, a.median_s, a.high_s, b.low_s, b.median_s, b.high_s,
        a.low_s <= b.high_s and b.low_s <= a.high_s, a.half_width, b.half_width, bool(a.noisy),
        bool(b.noisy),
    )  # fmt: skip


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    runs = [
        run for row in rows
        for run in ((row.half_width_a, row.noisy_a), (row.half_width_b, row.noisy_b))
    ]  # fmt: skip
    narrow = sum(width <= 0.1 for width, _ in runs)
    said = sum(width > 0.1 and noisy for width, noisy in runs)
    yield "# The same against the same"
    yield (
        f"{len(rows)} pairs of runs of one point, {PROCESSES} fresh processes a run, in turns and "
        "in random order; the interval is the 95 % one over the processes' medians, as "
        f"`sweep --processes {PROCESSES}` prints it. Points: standard with 256 tokens and linear "
        "with 1024, 4 heads of 32, one thread."
    )
    yield ""
    yield from table(
        " | >of | >",
        (
            ("pairs whose intervals overlap", len(rows), sum(row.overlap for row in rows)),
            ("runs with a half-width of 10 % or less", len(runs), narrow),
            ("wider runs that say `noisy`", len(runs) - narrow, said),
        ),
    )
    yield from ("", f"Median half-width: {median(width for width, _ in runs):.1%}.")
