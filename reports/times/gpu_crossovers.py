"""Crossovers on a GPU: predicted against measured, and where forms overtake fused attention.

Calibrations come first and never run a mechanism; every part then adds its rows to a CSV in the
folder of the device. ``--predict`` predicts by the calibrations that are there, on any machine, and
writes the page::

    python reports/run.py times/gpu_crossovers calibrate taylor fused points again
    python reports/run.py times/gpu_crossovers --predict
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

from rows import earlier, save
from times.crossovers import BUDGET, Case, equal_flops, number, taylor_cases
from times.crossovers_tables import Crossing
from times.gpu_crossovers_tables import Curve, Fused, TimedPoint, page

from attnprof import registry
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting, TimeTerms
from attnprof.device import calibration
from attnprof.device.calibration_run import calibrate
from attnprof.device.prediction import Predictor
from attnprof.errors import AttnprofError
from attnprof.measure.clocks import cuda_clock, time_in_turns
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject
from attnprof.workload import Workload

FOLDER = Path(__file__).with_name("h200")
DTYPES = ("float32", "bfloat16")
#: Layers of 16 heads of 64, one sequence, against fused attention.
HEADS, HEAD_DIM = 16, 64
RIVALS = ("taylor-efficient", "linformer", "performer", "longformer")
#: Seconds of the longest call of cores, and of layers.
CORE_S, LAYER_S = 0.2, 0.05
#: Points of layers of 8 heads of 64.
LENGTHS, POINT_HEADS = (512, 2048, 8192), 8
#: Seconds of a product or copy in a calibration, as ``calibrate --seconds`` takes them.
CALIBRATION_S = 0.25


def main() -> None:
    """Measure what is missing, or predict and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--predict", action="store_true", help="predict rows that are there")
    parser.add_argument("--output", type=Path, default=FOLDER, help="the device's folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=inf, help="begin no row after so many")
    options = parser.parse_args()
    run = Run(options.output, options.device, time.monotonic() + options.seconds)
    options.output.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        getattr(run, part)()
    if options.predict:
        run.predict()


@dataclass(frozen=True)
class Run:
    """Measurements of a device, kept in a folder."""

    folder: Path
    device: str
    until: float

    def calibrations(self) -> list[Path]:
        """Files of calibrations that are there."""
        return sorted(self.folder.glob("device_*.json"))

    def calibrate(self) -> None:
        """One calibration more."""
        path = self.folder / f"device_{len(self.calibrations()) + 1}.json"
        dtypes = DTYPES if self.device.startswith("cuda") else DTYPES[:1]
        calibration.save(calibrate(self.device, dtypes, CALIBRATION_S, contended=True), path)

    def _add(self, name: str, kind: type, rows: Iterable[Any]) -> None:
        """Rows at the end of a table, each kept at once."""
        table = self.folder / f"{name}.csv"
        before = earlier(table, kind)
        for row in rows:
            before.append(row)
            save(table, kind, before)

    def _cases(self) -> Iterator[Case]:
        for dtype, case in product(DTYPES, taylor_cases()):
            workload = case.workload.with_(dtype=dtype)
            yield Case(f"{case.name}, {dtype}", case.sides, workload, case.scope)

    def _rivals(self) -> Iterator[Case]:
        for dtype, name, phase in product(reversed(DTYPES), RIVALS, ("forward", "train")):
            workload = Workload(1, HEADS, HEAD_DIM, phase=phase, dtype=dtype)
            sides = registry.configured(["sdpa", name], {})
            yield Case(f"{name}, {dtype}", sides, workload, "layer")

    def _measured(self, case: Case, most_s: float) -> Any:
        terms = TimeTerms(self.device, None, self.calibrations()[0], most_s=most_s)
        report = crossover_report(
            Meeting(*case.sides, case.workload, case.scope), [case.workload.head_dim], ["measured"],
            ["time"], terms=terms, with_curves=True, environment={},
        )  # fmt: skip
        curves = [
            Curve(case.name, case.workload.phase, curve["mechanism"].split(":")[-1], n, seconds)
            for curve in report.summary["curves"]
            for n, seconds in zip(curve["seq_len"], curve["value"], strict=True)
        ]
        self._add("curves", Curve, curves)
        return report.records[0]

    def _rows(
        self, cases: Iterable[Case], known: Sequence[tuple[str, str]],
        row: Callable[[Case], Any],
    ) -> Iterator[Any]:  # fmt: skip
        for case in cases:
            if (case.name, case.workload.phase) in known:
                continue
            if time.monotonic() > self.until:
                sys.stderr.write(f"no time left for {case.name}, {case.workload.phase}\n")
                return
            try:
                yield row(case)
            except AttnprofError as error:
                sys.stderr.write(f"{case.name}, {case.workload.phase}: {error}\n")

    def taylor(self) -> None:
        """Document 004's crossing, in both number formats."""

        def row(case: Case) -> Crossing:
            start = time.perf_counter()
            one = self._measured(case, CORE_S)
            return Crossing(
                case.name, "forward", equal_flops(case), nan, nan, nan, nan, nan,
                number(one.crossover_seq_len), number(one.ci_low), number(one.ci_high), nan,
                one.verdict, one.timed_calls, len(one.lengths), time.perf_counter() - start,
            )  # fmt: skip

        known = [(x.case, x.phase) for x in earlier(self.folder / "taylor.csv", Crossing)]
        self._add("taylor", Crossing, self._rows(self._cases(), known, row))

    def again(self) -> None:
        """Document 004's crossing a second time."""
        table = self.folder / "taylor.csv"
        rows, cases = earlier(table, Crossing), {case.name: case for case in self._cases()}
        for place, row in enumerate(rows):
            if time.monotonic() > self.until:
                break
            if not isnan(row.again):
                continue
            second = self._measured(cases[row.case], CORE_S)
            rows[place] = replace(row, again=number(second.crossover_seq_len))
            save(table, Crossing, rows)

    def fused(self) -> None:
        """Layers against fused attention."""

        def row(case: Case) -> Fused:
            one = self._measured(case, LAYER_S)
            return Fused(
                case.name, case.workload.phase, one.verdict, number(one.crossover_seq_len),
                number(one.ci_low), number(one.ci_high), max(one.lengths), one.timed_calls,
            )  # fmt: skip

        known = [(x.case, x.phase) for x in earlier(self.folder / "fused.csv", Fused)]
        self._add("fused", Fused, self._rows(self._rivals(), known, row))

    def points(self) -> None:
        """Single layers of all mechanisms."""
        import torch

        known = {
            (x.seq_len, x.dtype, x.phase, x.mechanism)
            for x in earlier(self.folder / "points.csv", TimedPoint)
        }

        def rows() -> Iterator[TimedPoint]:
            for length, dtype, phase, name in product(
                LENGTHS, DTYPES, ("forward", "train", "decode"), registry.names()
            ):
                if (length, dtype, phase, name) in known:
                    continue
                if time.monotonic() > self.until:
                    return
                point = point_request(TimedPoint(name, phase, length, dtype, nan, nan))
                with suppress(AttnprofError):  # what a mechanism cannot do
                    subject = build_subject(replace(point, device=self.device))
                    clock = cuda_clock(torch, self.device) if self.device != "cpu" else None
                    times = time_in_turns([subject], BUDGET, clock, None)[0]
                    yield TimedPoint(name, phase, length, dtype, nan, median(times))

        self._add("points", TimedPoint, rows())

    def predict(self) -> None:
        """All rows by the calibrations, and the page."""
        devices = self.calibrations()
        cases = {case.name: case for case in self._cases()}
        table = self.folder / "taylor.csv"
        crossings = []
        for row in earlier(table, Crossing):
            predictions = [self._predicted(cases[row.case], path) for path in devices]
            at = [number(one.crossover_seq_len) for one in predictions] + [nan] * 3
            crossings.append(replace(
                row, predicted=at[0], predicted_2=at[1], predicted_3=at[2],
                low=number(predictions[0].ci_low), high=number(predictions[0].ci_high),
            ))  # fmt: skip
        save(table, Crossing, crossings)
        (known,) = calibration.entries(devices[0])
        predictor = Predictor(calibration.Calibration.from_dict(known))
        points = []
        for point in earlier(self.folder / "points.csv", TimedPoint):
            with suppress(AttnprofError):
                seconds = predictor.point(point_request(point)).time_s or nan
                points.append(replace(point, predicted_s=seconds))
        save(self.folder / "points.csv", TimedPoint, points)
        fused = []
        timed = {(x.case, x.phase): x for x in earlier(self.folder / "fused.csv", Fused)}
        for case in self._rivals():
            cost = self._predicted(case, devices[0])
            row = timed.get((case.name, case.workload.phase)) or Fused(
                case.name, case.workload.phase, "not measured", nan, nan, nan, 0, 0
            )
            fused.append(replace(
                row, predicted=number(cost.crossover_seq_len), predicted_low=number(cost.ci_low),
                predicted_high=number(cost.ci_high), predicted_verdict=cost.verdict or "",
                predicted_to=max(cost.lengths),
            ))  # fmt: skip
        save(self.folder / "fused.csv", Fused, fused)
        curves = earlier(self.folder / "curves.csv", Curve)
        page(self.folder, known, crossings, fused, points, curves)

    def _predicted(self, case: Case, path: Path) -> Any:
        (known,) = calibration.entries(path)
        terms = TimeTerms("cpu", None, path, on=known["name"])
        return crossover_report(
            Meeting(*case.sides, case.workload, case.scope), [case.workload.head_dim],
            ["predicted"], ["time"], terms=terms, environment={},
        ).records[0]  # fmt: skip


def point_request(row: TimedPoint) -> PointRequest:
    """The point of a row."""
    return PointRequest(
        row.mechanism, row.seq_len, POINT_HEADS, HEAD_DIM, phase=row.phase, dtype=row.dtype
    )
