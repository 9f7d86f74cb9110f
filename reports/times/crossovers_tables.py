"""The rows of ``crossovers.py``, and the page they make."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from math import exp, inf, isnan, log
from statistics import fmean
from typing import Any

import torch
from rows import table

from attnprof.device.calibration import Calibration
from attnprof.units import plural


@dataclass(frozen=True)
class Crossing:
    """One case; tokens, ``nan`` where there is no crossing."""

    case: str
    phase: str
    formula: float
    predicted: float
    predicted_2: float
    predicted_3: float
    low: float
    high: float
    measured: float
    measured_low: float
    measured_high: float
    again: float
    verdicts: str
    calls: int
    lengths: int
    seconds: float

    @property
    def truth(self) -> float:
        """The measurements that are there, by their geometric mean."""
        known = [value for value in (self.measured, self.again) if not isnan(value)]
        return exp(fmean(map(log, known)))

    @property
    def is_sharp(self) -> bool:
        """Whether the measured interval lies within a quarter of the crossing."""
        return (
            0.75 * self.measured <= self.measured_low <= self.measured_high <= 1.25 * self.measured
        )

    @property
    def predictions(self) -> list[float]:
        """What each calibration predicts."""
        return [self.predicted, self.predicted_2, self.predicted_3]


@dataclass(frozen=True)
class OnGrid:
    """A pair by all lengths of a grid, beside the guided search."""

    case: str
    crossing: float
    calls: int
    lengths: int
    seconds: float


@dataclass(frozen=True)
class Recommended:
    """The first three of a ranking, and their measured seconds."""

    request: str
    first: str
    second: str
    third: str
    first_s: float
    second_s: float
    third_s: float

    @property
    def behind(self) -> float:
        """How much longer the predicted winner takes than the fastest of the three."""
        return self.first_s / min(self.first_s, self.second_s, self.third_s) - 1


def _made(command: str, known: Calibration) -> str:
    """How the page was made, and what its cases had been looked at for."""
    clock = "one thread, processor time" if known.threads == 1 else f"{known.threads} threads"
    return (
        f"Written by `{command}`; all numbers in the CSV files beside it. "
        f"{known.ceilings.name}, {clock}, torch {torch.__version__}, float32, torch's wait policy "
        "and the C library's allocator as they are; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. The calibration repeated itself to "
        f"±{known.repeatability or 0:.0%}; no constant was fitted to these cases. They are not "
        "quite unseen: what calibrations measure, and how it is priced, was chosen after earlier "
        "versions had been off on some of them. Both measurements of a case are made in one "
        "process, each begun while the machine is as fast as it was calibrated; the interval of a "
        "measured crossing is one of 95 %, by the scatter of five lengths or more. Where both "
        "sides take the same time over a range of lengths, as `he` and `standard` in training from "
        "50 to 150 tokens, a crossing is no number: see the intervals. Results of 32 MiB and more "
        "lie in new memory at each call, which costs page faults: where one side passes that size "
        "times may cross more than once, as those of `sdpa` and `taylor-efficient`. The table has "
        "the last crossing."
    )


def page(
    command: str, known: Calibration, taylor: Sequence[Crossing], pairs: Sequence[Crossing],
    grid: Sequence[OnGrid], recommend: Sequence[Recommended],
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of all parts that have rows."""
    yield from ("# Crossovers in time: predicted against measured", "", _made(command, known))
    for title, rows, law in (
        ("Direct against efficient TaylorShift, forward", taylor, True),
        ("Other pairs: layers of 4 heads of width 32", pairs, False),
    ):
        if rows:
            yield from ("", f"## {title}", "", *crossings_table(rows, 1), "")
            yield from errors_table(rows, law=law)
    if grid:
        guided = {row.case: row for row in pairs if row.phase == "forward"}
        heads = "pair | >guided | interval | >calls | >lengths | >grid | >calls | >lengths | >share"
        both = [(guided[row.case], row) for row in grid if row.case in guided]
        yield from ("", "## The guided search against a grid", "")
        yield from table(heads, starmap(_grid_line, both))
    if recommend:
        heads = "request | first | second | third | >first takes more than the fastest"
        near = sum(one.behind <= 0.10 for one in recommend)
        yield from ("", "## Recommendations, their first three measured", "")
        yield from table(heads, map(_recommended_line, recommend))
        yield from ("", f"In {near} of {len(recommend)} the predicted winner is within 10 %.")


def _grid_line(one: Crossing, row: OnGrid) -> tuple[Any, ...]:
    return (
        row.case, _tokens(one.measured), _interval(one.measured_low, one.measured_high), one.calls,
        one.lengths, _tokens(row.crossing), row.calls, row.lengths, f"{one.calls / row.calls:.0%}",
    )  # fmt: skip


def _recommended_line(one: Recommended) -> tuple[Any, ...]:
    timed = ((one.first, one.first_s), (one.second, one.second_s), (one.third, one.third_s))
    times = (f"{name} {1e3 * seconds:.3g} ms" for name, seconds in timed)
    return one.request, *times, f"{one.behind:.0%}"


def crossings_table(rows: Sequence[Crossing], calibrations: int = 3) -> Iterator[str]:
    """Yield all answers of each case."""
    predicted = f"predicted ({plural(calibrations, 'calibration')})"
    return table(
        f"case | phase | >FLOPs | {predicted} | interval | >measured | interval | >again | >calls "
        "| >lengths",
        ((row.case, row.phase, _tokens(row.formula),
          ", ".join(map(_tokens, row.predictions[:calibrations])), _interval(row.low, row.high),
          _tokens(row.measured), _interval(row.measured_low, row.measured_high),
          _tokens(row.again), row.calls, row.lengths) for row in rows),
    )  # fmt: skip


def _tokens(value: float) -> str:
    return "–" if isnan(value) else f"{value:,.0f}"


def _interval(low: float, high: float) -> str:
    return f"{_tokens(low)} to {_tokens(high)}"


def errors_table(rows: Sequence[Crossing], *, law: bool = False) -> Iterator[str]:
    """Yield mean and worst error of each answer against the truth, and how well that repeats."""
    known = [row for row in rows if not isnan(row.measured)]
    sharp = [row for row in known if row.is_sharp]
    yield from (f"{len(known)} of {len(rows)} have a measured crossing.", "")
    answers: dict[str, Any] = {
        f"predicted, calibration {n}": lambda row, n=n: row.predictions[n - 1] for n in (1, 2, 3)
    }
    answers["equal FLOPs"] = lambda row: row.formula
    if law:
        answers["N0 + 18 d"] = lambda row: (
            row.formula + 18 * int(row.case.split(",")[0].removeprefix("d="))
        )
    errors = {
        name: [abs(of(row) / row.truth - 1) for row in known if not isnan(of(row))]
        for name, of in answers.items()
    }
    errors["predicted, where the measured interval is within a quarter"] = [
        abs(row.predicted / row.truth - 1) for row in sharp if not isnan(row.predicted)
    ]
    errors["second measurement against the first"] = [
        abs(row.again / row.measured - 1) for row in known if not isnan(row.again)
    ]
    yield from table(
        "answer | >mean error | >worst | >cases",
        ((name, f"{fmean(some):.1%}", f"{max(some):.1%}", len(some))
         for name, some in errors.items() if some),
    )  # fmt: skip
    inside = sum(map(_inside, known))
    yield from ("", f"The predicted interval has the truth in {inside} of {len(known)}.")


def _inside(row: Crossing) -> bool:
    low = 0.0 if isnan(row.low) else row.low
    return low <= row.truth <= (inf if isnan(row.high) else row.high)
