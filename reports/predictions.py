"""Predicted times of single points against measured ones, over mechanisms, phases and lengths.

One thread, in processor time, freed memory kept by the process. The calibration is made first, or
read from ``--calibration``; it never runs a mechanism. Every point is measured in several passes
over all of them, and in more until some calls were made at the speed that the processor had for the
calibration, as the operation shows that is timed before and after each. Prediction and measurement
of a point stand in one row of the CSV; ``--predict`` predicts rows that are there again::

    python reports/predictions.py            # writes predictions.md and .csv beside it
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise, product
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import torch
from row_files import earlier, save

from attnprof import registry
from attnprof.device import calibration
from attnprof.device.calibration_run import (
    REFERRED,
    UNTIMED,
    calibrate,
    reference_operation,
    repeated,
)
from attnprof.device.prediction import Predictor
from attnprof.device.steady_times import TimeReading, enough, steady
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.environment import device_name
from attnprof.measure.kept_memory import memory_kept
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject

LENGTHS, PHASES = (128, 512, 1024, 2048, 4096), ("forward", "train", "decode")
HEADS, HEAD_DIM = 4, 32
#: In each pass at least three calls, at most ten; about half a second. There are more passes
#: than the least over points with fewer calls at the calibration's speed than tell a time.
PASSES, MOST_PASSES = 2, 8
BUDGET = Budget(samples=10, min_time_s=0.1, max_time_s=0.5, warmup_s=0.05, least=3)
#: Predicted seconds beyond which a point is left out.
LONGEST_S = 3.0


@dataclass(frozen=True)
class Point:
    """One row; seconds."""

    mechanism: str
    phase: str
    seq_len: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    steady_s: float  #: at the speed that the processor had for the calibration
    calls: int

    @property
    def error(self) -> float:
        """Factor between prediction and measurement as it was, above or below, minus one."""
        return _off(self.predicted_s, self.measured_s)

    @property
    def steady_error(self) -> float:
        """The same, of measurement at the calibration's speed."""
        return _off(self.predicted_s, self.steady_s)

    @property
    def covered(self) -> bool:
        """Whether the interval has the measured median."""
        return self.low_s <= self.measured_s <= self.high_s


def _off(one: float, other: float) -> float:
    return exp(abs(log(one / other))) - 1


def main() -> None:
    """Calibrate, measure, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibration", type=Path, help="made before, with one thread")
    parser.add_argument("--predict", action="store_true", help="predict rows that are there again")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    path = asked.calibration or asked.output.with_name("devices") / "cpu_1.json"
    if calibration.load(device_name("cpu"), 1, path) is None:
        calibration.save(calibrate("cpu", ["float32"]), path)
    known = calibration.load(device_name("cpu"), 1, path)
    if known is None:
        raise SystemExit(f"{path} has no calibration of {device_name('cpu')} with one thread")
    table, predictor = asked.output.with_suffix(".csv"), Predictor(known, kept=True)
    if asked.predict:
        rows = [predicted_again(row, predictor) for row in earlier(table, Point)]
    else:
        with memory_kept():
            rows = measured(predictor)
    save(table, Point, rows)
    asked.output.write_text(page(rows, known, path.name), encoding="utf-8")


def predicted_again(row: Point, predictor: Predictor) -> Point:
    """A row with what the calibration predicts now; what was measured stays."""
    request = PointRequest(
        row.mechanism, row.seq_len, HEADS, HEAD_DIM, phase=row.phase, threads=1
    )  # fmt: skip
    found = predictor.point(request)
    ends = found.ci_low_s or 0.0, found.ci_high_s or 0.0
    return replace(row, predicted_s=found.time_s or 0.0, low_s=ends[0], high_s=ends[1])


def measured(predictor: Predictor) -> list[Point]:
    """A row a point that runs."""
    requests = [
        PointRequest(name, length, HEADS, HEAD_DIM, phase=phase, threads=1)
        for name, phase, length in product(registry.names(), PHASES, LENGTHS)
    ]  # fmt: skip
    points = []
    for request in requests:
        with suppress(AttnprofError):  # what a mechanism cannot do
            point = predictor.point(request)
            if point.time_s is not None and point.time_s <= LONGEST_S:
                points.append((request, point))
    known = predictor.calibration.reference_s
    usual = log(known) if known else None
    found: dict[int, list[TimeReading]] = {place: [] for place in range(len(points))}
    for turn in range(MOST_PASSES):
        for place, (request, _) in enumerate(points):
            if turn < PASSES or not told(found[place], usual):
                found[place] += readings(request)
    times = steady([{place: taken for place, taken in found.items() if taken}], usual)
    rows = []
    for place, (seconds,) in times.items():
        request, point = points[place]
        ends = point.ci_low_s or 0.0, point.ci_high_s or 0.0
        rows.append(Point(
            request.mechanism, request.phase, request.seq_len, point.time_s or 0.0, *ends,
            exp(median(one.log_s for one in found[place])), exp(seconds), len(found[place]),
        ))  # fmt: skip
    return rows


def told(taken: Sequence[TimeReading], usual: float | None) -> bool:
    """Whether enough calls were made at the calibration's speed, or none runs."""
    if usual is None or not taken:
        return True
    return enough((one.reference for one in taken), usual)


def readings(request: PointRequest) -> list[TimeReading]:
    """Calls of a point, each after one of its own, and of the reference operation beside each."""
    try:
        point = build_subject(request)

        def as_again_and_again() -> None:
            point.prepare()
            point.call()
            point.prepare()

        operation = reference_operation("cpu")
        refer = replace(
            point, prepare=partial(repeated, operation, UNTIMED),
            call=partial(repeated, operation, REFERRED),
        )  # fmt: skip
        taken = time_in_turns([replace(point, prepare=as_again_and_again), refer], BUDGET)
    except AttnprofError:
        return []
    calls, references = taken
    around = pairwise(log(one / REFERRED) for one in (references[0], *references))
    return [TimeReading(log(own), fmean(both)) for own, both in zip(calls, around, strict=True)]


def errors(found: Sequence[float]) -> str:
    """The median, and what nine in ten stay within."""
    ninth = sorted(found)[int(0.9 * (len(found) - 1))]
    return f"median error {median(found):.1%} and nine in ten within {ninth:.1%}"


def share(found: Sequence[bool]) -> str:
    """How many of them are true."""
    return f"{sum(found) / len(found):.0%}"


def page(rows: Sequence[Point], known: calibration.Calibration, made_by: str) -> str:
    """The page: all points together, then a row a mechanism and phase."""
    made = (
        f"Written by `python reports/predictions.py` with the calibration `devices/{made_by}`; "
        "every point in the CSV beside it. "
        f"{known.ceilings.name}, one thread, processor time, torch {torch.__version__}, float32, "
        f"{HEADS} heads of {HEAD_DIM}, freed memory kept; {PASSES} to {MOST_PASSES} times "
        f"{BUDGET.least} to {BUDGET.samples} calls a point, each after an untimed one of it, "
        f"minutes apart; "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. The calibration repeated itself to "
        f"±{known.repeatability or 0:.0%}."
    )
    found = (
        f"{len(rows)} points: {errors([row.steady_error for row in rows])} where calls are told at "
        f"the calibration's speed of the processor, {errors([row.error for row in rows])} as they "
        f"were; the intervals have {share([row.covered for row in rows])} of the medians as they "
        "were. Below are errors and ratios at the calibration's speed."
    )
    head = "| mechanism | phase | points | median error | worst | predicted / measured |"
    rule = "|---|---|--:|--:|--:|---|"
    lines = ["# Predicted times against measured ones", "", made, "", found, "", head, rule]
    for (name, phase), group in groupby(rows, key=lambda row: (row.mechanism, row.phase)):
        own = list(group)
        ratios = ", ".join(f"{row.predicted_s / row.steady_s:.2f}" for row in own)
        mine = [row.steady_error for row in own]
        lines.append(f"| {name} | {phase} | {len(own)} | {median(mine):.0%} | {max(mine):.0%} "
                     f"| {ratios} |")  # fmt: skip
    return (
        "\n".join([*lines, "", f"Lengths: {', '.join(map(str, LENGTHS))}, in this order."]) + "\n"
    )


if __name__ == "__main__":
    main()
