"""Lengths at which two calls take equally long, as 004's figures need them, and the law they obey.

Each is searched near a guess, with both settings of the C library's allocator: ``kept`` frees
nothing, as allocators of GPUs do; by ``default`` large blocks go back to the system with every
call, and page faults are part of the time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import sqrt
from typing import Any

from attnprof.crossovers.time_search import TimeSearch
from attnprof.measure.kept_memory import memory_kept
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median, student_quantile

KEPT, DEFAULT = ALLOCATORS = ("kept", "default")
#: Seconds of calls of several sides in turns, at a length.
Times = Callable[[int, Budget], list[list[float]]]
#: Samples whose extremes hold the median with 95 %.
ENOUGH = 6
#: Multiples of it are timed from 64 tokens on.
STEP = 8


def allocator(name: str) -> AbstractContextManager[object]:
    """Inside, the allocator is set that way."""
    return memory_kept() if name == KEPT else nullcontext()


def race(times: Times, guesses: Sequence[float], most_s: float, name: str) -> TimeSearch:
    """Where the first side's time falls below the second's, by few lengths around the guesses."""

    def compare(length: int, budget: Budget) -> tuple[list[float], list[float]]:
        first, second = times(length, enough(budget))
        return first, second

    search = TimeSearch(compare, usual, guesses, most_s)
    with allocator(name):
        search.run()
    return search


def usual(length: int) -> int:
    """The next length that kernels fill up."""
    step = STEP if length >= 64 else 4
    return -(-length // step) * step


def enough(budget: Budget) -> Budget:
    """The budget with samples for an interval of 95 % at least."""
    return replace(budget, least=max(budget.least, ENOUGH), samples=max(budget.samples, ENOUGH))


def clocked(times: Sequence[float]) -> dict[str, float]:
    """What a curve has of the times at a point: their median and its interval's coverage."""
    known = estimate_median(times)
    ends = {"time_low_s": known.low_s, "time_high_s": known.high_s}
    return {"time_s": known.median_s, **ends, "coverage": known.coverage, "samples": known.count}


def told(search: TimeSearch) -> dict[str, Any]:
    """The last crossing with its interval of 95 %, and what it took; None where there is none.

    An end of the interval is None where the lengths leave it open.
    """
    last = search.crossings[-1] if search.crossings else None
    return {
        "at": last and last.at, "low": last and last.low, "high": last and last.high,
        "crossings": len(search.crossings), "longest": max(search.seen), "end": search.end,
        "calls": search.timed_calls,
    }  # fmt: skip


def timed(search: TimeSearch, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The times at every length that was looked at, a row a side."""
    for length, seen in sorted(search.seen.items()):
        for name, times in zip(names, (seen.a_s, seen.b_s), strict=True):
            yield {"form": name, "seq_len": length, **clocked(times)}


def delay(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The factor c of N̂ = N0 + c·d, from ``d``, ``N0`` and ``at`` of each width, with its interval.

    By least squares of relative distances, as lengths are measured to so many percent; the
    interval of 95 % is Student's, by how far the widths scatter around the law. ``shares`` are the
    widths' weights.
    """
    weights = [row["d"] ** 2 / row["at"] ** 2 for row in rows]
    each = [(row["at"] - row["N0"]) / row["d"] for row in rows]
    factor = sum(w * c for w, c in zip(weights, each, strict=True)) / sum(weights)
    found: dict[str, Any] = {
        "factor": factor, "low": None, "high": None,
        "shares": [weight / sum(weights) for weight in weights],
    }  # fmt: skip
    if freedom := len(rows) - 1:
        rest = sum(w * (c - factor) ** 2 for w, c in zip(weights, each, strict=True))
        reach = student_quantile(freedom) * sqrt(rest / freedom / sum(weights))
        found |= {"low": factor - reach, "high": factor + reach}
    return found
