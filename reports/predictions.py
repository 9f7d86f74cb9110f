"""Predicted times of single points against measured ones, over mechanisms, phases and lengths.

One thread, in processor time, freed memory kept by the process. The calibration is made first, or
read from ``--calibration``; it never runs a mechanism. Prediction and measurement of a point stand
in one row of the CSV. Rows that are there are not measured again; ``--predict`` predicts them
again::

    python reports/predictions.py            # writes predictions.md and .csv beside it
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import exp, log
from pathlib import Path
from statistics import median

import torch
from row_files import earlier, save

from attnprof import registry
from attnprof.device import calibration
from attnprof.device.calibration_run import calibrate
from attnprof.device.prediction import Predictor
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import time_in_turns
from attnprof.measure.environment import device_name
from attnprof.measure.kept_memory import memory_kept
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import build_subject

LENGTHS, PHASES = (128, 512, 1024, 2048, 4096), ("forward", "train", "decode")
HEADS, HEAD_DIM = 4, 32
#: At least five calls, at most thirty; about a second.
BUDGET = Budget(samples=30, max_time_s=1.0, warmup_s=0.1, least=5)
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
    calls: int

    @property
    def error(self) -> float:
        """Factor between prediction and measurement, above or below, minus one."""
        return exp(abs(log(self.predicted_s / self.measured_s))) - 1

    @property
    def covered(self) -> bool:
        """Whether the interval has the measured median."""
        return self.low_s <= self.measured_s <= self.high_s


def main() -> None:
    """Calibrate, measure what is missing, write the page."""
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
    table = asked.output.with_suffix(".csv")
    rows = earlier(table, Point)
    if asked.predict:
        rows = [predicted_again(row, Predictor(known, kept=True)) for row in rows]
        save(table, Point, rows)
    with memory_kept():
        for row in measured(Predictor(known, kept=True), {(r.mechanism, r.phase) for r in rows}):
            rows.append(row)
            save(table, Point, rows)
    asked.output.write_text(page(rows, known), encoding="utf-8")


def predicted_again(row: Point, predictor: Predictor) -> Point:
    """A row with what the calibration predicts now; what was measured stays."""
    request = PointRequest(
        row.mechanism, row.seq_len, HEADS, HEAD_DIM, phase=row.phase, threads=1
    )  # fmt: skip
    found = predictor.point(request)
    ends = found.ci_low_s or 0.0, found.ci_high_s or 0.0
    return replace(row, predicted_s=found.time_s or 0.0, low_s=ends[0], high_s=ends[1])


def measured(predictor: Predictor, done: set[tuple[str, str]]) -> Iterator[Point]:
    """A row a point that runs."""
    for name, phase, length in product(registry.names(), PHASES, LENGTHS):
        if (name, phase) in done:
            continue
        request = PointRequest(name, length, HEADS, HEAD_DIM, phase=phase, threads=1)
        try:
            found = predictor.point(request)
            if found.time_s is None or found.time_s > LONGEST_S:
                continue
            (times,) = time_in_turns([build_subject(request)], BUDGET)
        except AttnprofError:
            continue  # what a mechanism cannot do
        ends = found.ci_low_s or 0.0, found.ci_high_s or 0.0
        yield Point(name, phase, length, found.time_s, *ends, median(times), len(times))


def page(rows: Sequence[Point], known: calibration.Calibration) -> str:
    """The page: all points together, then a row a mechanism and phase."""
    errors = sorted(row.error for row in rows)
    made = (
        "Written by `python reports/predictions.py`; every point in the CSV beside it. "
        f"{known.ceilings.name}, one thread, processor time, torch {torch.__version__}, float32, "
        f"{HEADS} heads of {HEAD_DIM}, freed memory kept; {BUDGET.least} to {BUDGET.samples} calls "
        f"a point; {time.strftime('%Y-%m-%d', time.gmtime())}. The calibration repeated itself to "
        f"±{known.repeatability or 0:.0%}."
    )
    found = (
        f"{len(rows)} points: median error {median(errors):.1%}, nine in ten within "
        f"{errors[int(0.9 * (len(errors) - 1))]:.1%}; the intervals have "
        f"{sum(row.covered for row in rows) / len(rows):.0%} of the measured medians."
    )
    head = "| mechanism | phase | points | median error | worst | predicted / measured |"
    rule = "|---|---|--:|--:|--:|---|"
    lines = ["# Predicted times against measured ones", "", made, "", found, "", head, rule]
    for (name, phase), group in groupby(rows, key=lambda row: (row.mechanism, row.phase)):
        own = list(group)
        ratios = ", ".join(f"{row.predicted_s / row.measured_s:.2f}" for row in own)
        mine = [row.error for row in own]
        lines.append(f"| {name} | {phase} | {len(own)} | {median(mine):.0%} | {max(mine):.0%} "
                     f"| {ratios} |")  # fmt: skip
    return (
        "\n".join([*lines, "", f"Lengths: {', '.join(map(str, LENGTHS))}, in this order."]) + "\n"
    )


if __name__ == "__main__":
    main()
