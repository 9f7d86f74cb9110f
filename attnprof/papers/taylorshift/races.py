"""Lengths at which two calls take equally long, as 004's figures need them, and the law they obey.

Each is searched near a guess, with both settings of the C library's allocator: ``kept`` frees
nothing, as allocators of GPUs do; by ``default`` large blocks go back to the system with every
call, and page faults are part of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import sqrt
from typing import Any

from attnprof.crossovers.time_search import TimeSearch
from attnprof.measure.clocks import memory_kept
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median, student_quantile

KEPT, DEFAULT = ALLOCATORS = ("kept", "default")
#: What stands behind the names of what was found with one.
ENDINGS = {KEPT: "", DEFAULT: "_default"}
#: Seconds of calls of several sides in turns, at a length.
Times = Callable[[int, Budget], list[list[float]]]
#: Samples whose extremes hold the median with 95 %.
ENOUGH = 6
#: Multiples of it are timed from 64 tokens on.
STEP = 8


def allocator(name: str) -> AbstractContextManager[object]:
    """Inside, the allocator is set that way."""
    return memory_kept() if name == KEPT else nullcontext()


def crossings(
    column: str, times: Times, names: Sequence[str], guesses: Sequence[float], most_s: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Search where the first side's time falls below the second's, with both allocators.

    Returns the last crossing by ``column``, with its interval of 95 % by ``_low`` and ``_high``,
    and what the search took; behind the names of those by default stands ``_default``. An end is
    None where the lengths leave it open, the crossing where there is none. Beside them a row a
    length that was looked at and side.
    """

    def compare(length: int, budget: Budget) -> tuple[list[float], list[float]]:
        first, second = times(length, enough(budget))
        return first, second

    fields: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for setting in ALLOCATORS:
        search, ending = TimeSearch(compare, usual, guesses, most_s), ENDINGS[setting]
        with allocator(setting):
            search.run()
        last = search.crossings[-1] if search.crossings else None
        at, low, high = (last.at, last.low, last.high) if last else (None, None, None)
        guesses = [at] if at else guesses
        fields |= {f"{column}{ending}": at, f"{column}_low{ending}": low}
        fields |= {f"{column}_high{ending}": high, f"longest{ending}": max(search.seen)}
        fields |= {f"calls{ending}": search.timed_calls, f"end{ending}": search.end}
        for length, seen in sorted(search.seen.items()):
            for name, sample in zip(names, (seen.a_s, seen.b_s), strict=True):
                row = {"allocator": setting, "form": name, "seq_len": length, **clocked(sample)}
                rows.append(row)
    return fields, rows


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


def delay(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The factor c of N̂ = N0 + c·d, from ``d``, ``N0`` and ``at`` of each width, with its interval.

    By least squares of relative distances, as lengths are measured to so many percent; the
    interval of 95 % is Student's, by how far the widths scatter around the law. ``shares`` are the
    widths' weights.
    """
    weights = [row["d"] ** 2 / row["at"] ** 2 for row in rows]
    each = [(row["at"] - row["N0"]) / row["d"] for row in rows]
    factor = sum(w * c for w, c in zip(weights, each, strict=True)) / sum(weights)
    fields: dict[str, Any] = {
        "factor": factor, "low": None, "high": None,
        "shares": [weight / sum(weights) for weight in weights],
    }  # fmt: skip
    if freedom := len(rows) - 1:
        rest = sum(w * (c - factor) ** 2 for w, c in zip(weights, each, strict=True))
        reach = student_quantile(freedom) * sqrt(rest / freedom / sum(weights))
        fields |= {"low": factor - reach, "high": factor + reach}
    return fields
