"""The rows of ``crossovers.py``, and the page they make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isnan, log
from statistics import fmean
from typing import Any

import torch

from attnprof.device.calibration import Calibration
from attnprof.measure.environment import device_name
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


def _made(known: Calibration) -> str:
    """How the page was made, and what its cases had been looked at for."""
    clock = "one thread, processor time" if known.threads == 1 else f"{known.threads} threads"
    return (
        "Written by `python reports/run.py times/crossovers`; all numbers in the CSV files beside "
        "it. "
        f"{device_name('cpu')}, {clock}, torch {torch.__version__}, float32, torch's wait policy "
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
    known: Calibration, taylor: Sequence[Crossing], pairs: Sequence[Crossing],
    grid: Sequence[OnGrid], recommend: Sequence[Recommended],
) -> str:  # fmt: skip
    """All parts that have rows."""
    lines = ["# Crossovers in time: predicted against measured", "", _made(known)]
    if taylor:
        lines += [
            "",
            "## Direct against efficient TaylorShift, forward",
            "",
            *crossings_table(taylor, 1),
        ]
        lines += ["", *errors_table(taylor, law=True)]
    if pairs:
        lines += [
            "",
            "## Other pairs: layers of 4 heads of width 32",
            "",
            *crossings_table(pairs, 1),
        ]
        lines += ["", *errors_table(pairs)]
    if grid:
        lines += [
            "", "## The guided search against a grid", "",
            "| pair | guided | interval | calls | lengths | grid | calls | lengths | share |",
            "|---|--:|---|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        guided = {row.case: row for row in pairs if row.phase == "forward"}
        for row in grid:
            one = guided.get(row.case)
            if one:
                ends = f"{one.measured_low:,.0f} to {one.measured_high:,.0f}"
                lines.append(
                    f"| {row.case} | {one.measured:,.0f} | {ends} | {one.calls} | {one.lengths} | "
                    f"{row.crossing:,.0f} | {row.calls} | {row.lengths} | "
                    f"{one.calls / row.calls:.0%} |"
                )
    if recommend:
        lines += [
            "", "## Recommendations, their first three measured", "",
            "| request | first | second | third | first takes more than the fastest |",
            "|---|---|---|---|--:|",
        ]  # fmt: skip
        for one in recommend:
            timed = [(one.first, one.first_s), (one.second, one.second_s), (one.third, one.third_s)]
            cells = " | ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in timed)
            lines.append(f"| {one.request} | {cells} | {one.behind:.0%} |")
        near = sum(one.behind <= 0.10 for one in recommend)
        lines += ["", f"In {near} of {len(recommend)} the predicted winner is within 10 %."]
    return "\n".join(lines) + "\n"


def crossings_table(rows: Sequence[Crossing], calibrations: int = 3) -> list[str]:
    """All answers of each case."""
    made = f"predicted ({plural(calibrations, 'calibration')})"
    head = [
        (
            f"| case | phase | FLOPs | {made} | interval | measured | "
            "interval | again | calls | lengths |"
        ),
        "|---|---|--:|---|---|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        told = ", ".join(map(_tokens, row.predictions[:calibrations]))
        head.append(
            f"| {row.case} | {row.phase} | {_tokens(row.formula)} | {told} | "
            f"{_tokens(row.low)} to {_tokens(row.high)} | {_tokens(row.measured)} | "
            f"{_tokens(row.measured_low)} to {_tokens(row.measured_high)} | {_tokens(row.again)} | "
            f"{row.calls} | {row.lengths} |"
        )
    return head


def _tokens(value: float) -> str:
    return "–" if isnan(value) else f"{value:,.0f}"


def errors_table(rows: Sequence[Crossing], *, law: bool = False) -> list[str]:
    """Mean and worst error of each answer against the truth, and how well that repeats itself."""
    known = [row for row in rows if not isnan(row.measured)]
    found = [f"{len(known)} of {len(rows)} have a measured crossing."]
    ways: dict[str, Any] = {
        f"predicted, calibration {n}": lambda row, n=n: row.predictions[n - 1] for n in (1, 2, 3)
    }
    ways["equal FLOPs"] = lambda row: row.formula
    if law:
        ways["N0 + 18 d"] = lambda row: (
            row.formula + 18 * int(row.case.split(",")[0].removeprefix("d="))
        )
    ways["second measurement against the first"] = lambda row: row.again
    table = ["", "| answer | mean error | worst | cases |", "|---|--:|--:|--:|"]
    for name, of in ways.items():
        base = (lambda row: row.measured) if name.startswith("second") else (lambda row: row.truth)
        errors = [abs(of(row) / base(row) - 1) for row in known if not isnan(of(row))]
        if errors:
            table.append(f"| {name} | {fmean(errors):.1%} | {max(errors):.1%} | {len(errors)} |")
    inside = [row for row in known if _inside(row)]
    return [
        *found,
        *table,
        "",
        f"The predicted interval has the truth in {len(inside)} of {len(known)}.",
    ]


def _inside(row: Crossing) -> bool:
    low = 0.0 if isnan(row.low) else row.low
    return low <= row.truth <= (inf if isnan(row.high) else row.high)
