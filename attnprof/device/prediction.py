"""Predict time and memory of a mechanism or a module on a device, without running it there.

The time is the sum of the times of the call's operations (:mod:`attnprof.device.operations`), each
interpolated in the tables of a calibration, and corrected by layers that the calibration predicted
and timed. The peak of memory is the closed form's. A device that was never calibrated gets a lower
bound from its maker's ceilings. Entry points: :func:`predict_points` for a report,
:class:`Predictor` for a calibration.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from math import exp, hypot, inf
from pathlib import Path
from typing import Any, NamedTuple

from attnprof.device.benchmarks import benchmarks
from attnprof.device.calibration import (
    Calibration,
    calibrated_names,
    check_tables,
    load,
    load_by_words,
    roofline,
)
from attnprof.device.ceilings import GPUS, Ceilings, stated_ceilings
from attnprof.device.machine_reading import SLOWER, MachineReading, read_machine
from attnprof.device.operations import Demand, operations_of
from attnprof.device.times import GpuTimes, Times
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.batch import point_environment
from attnprof.measure.environment import conditions_now
from attnprof.measure.point import blank_of, predict_point
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import refusing
from attnprof.processes.progress import tell
from attnprof.record import PredictRecord, ProfileRecord, RecommendRecord, Report
from attnprof.units import joined, plural
from attnprof.workload import ITEM_SIZES

#: Half width of a 95 % interval in standard deviations; most operations that a record lists.
REACH, MAX_OPERATIONS = 1.96, 12

TimedRecord = PredictRecord | RecommendRecord

#: What intervals mean, for reports: without checked layers, with them, and from ceilings alone.
INTERVAL = (
    "low and high: ends of an interval of 95 % by the repeatability of the calibration, how steady "
    "the processor was meanwhile, and what a sum of single operations leaves out"
)
CHECKED = (
    "low and high: ends of an interval of 95 % by layers drawn at random that calibrate predicted "
    "and timed, nothing fitted to them"
)
LOWER = (
    "lower bounds from the maker's figures, without the microseconds that starting a kernel takes, "
    "other overheads and caches: never a promise"
)


def predict_points(
    requests: Sequence[PointRequest], *, path: Path | None = None, on: str | None = None,
    kept: bool = False,
) -> Report:  # fmt: skip
    """Return the report of ``predict``: for each point a record, or the reason it has none.

    Times come from the calibration of this device, in ``path`` or the cache folder, or of the
    device that ``on`` names. If that was never calibrated, its maker's ceilings give a lower bound.
    ``kept``: see :class:`Predictor`. Raises :class:`CannotRunError` without a calibration of this
    device.
    """
    environment = point_environment(requests[0])
    priced = pricing(environment, path=path, on=on, threads=requests[0].threads, kept=kept)
    records = []
    for done, request in enumerate(requests):
        tell(f"predicting {request.title}", done, len(requests))
        try:
            with refusing(request):
                records.append(priced.predict(request, inf))
        except RequestError as error:
            records.append(blank_of(PredictRecord, request, str(error)))
    summary = {
        "made_of": priced.made_of, "interval": priced.interval,
        "answer": _answer(records, priced.reading),
        "predicted": sum(record.skipped is None for record in records),
    }  # fmt: skip
    return Report("predict", records, summary, environment)


#: A function that returns a point's record, given a request and the most processor seconds to list
#: its operations.
PointPredictor = Callable[[PointRequest, float], PredictRecord]


class Pricing(NamedTuple):
    """How points are predicted; for reports, by what, what intervals mean, and the machine now."""

    predict: PointPredictor
    made_of: str
    interval: str
    reading: MachineReading = MachineReading()


def pricing(
    environment: Mapping[str, Any], *, path: Path | None = None, on: str | None = None,
    threads: int | None = None, kept: bool = False,
) -> Pricing:  # fmt: skip
    """Return how points are predicted on this device, or on the device ``on``.

    ``threads``: of a CPU elsewhere, if asked for. Raises :class:`CannotRunError` without a
    calibration of this device, :class:`RequestError` for a device ``on`` that has neither a
    calibration nor ceilings by its maker.
    """
    calibration = load_by_words(on, path, threads) if on else calibration_of(environment, path)
    if calibration is not None:
        reading = MachineReading() if on else read_machine(calibration, conditions_now())
        predictor = Predictor(calibration, kept, reading)
        interval = CHECKED if calibration.checks else INTERVAL
        return Pricing(predictor.point, predictor.made_of, interval, reading)
    ceilings = stated_ceilings(on or "")
    if ceilings is None:
        possible = ", ".join([*calibrated_names(path), *(gpu.name for gpu in GPUS)])
        raise RequestError(
            f"--on {on}: it was not calibrated, and no ceilings are stated for it; possible: "
            f"{possible}, or --calibration with a file that calibrate wrote there"
        )
    return Pricing(
        lambda request, _: lower_bound_point(request, ceilings),
        f"{ceilings.name}: {ceilings.source}", LOWER,
    )  # fmt: skip


def calibration_of(
    environment: Mapping[str, Any], path: Path | None, on: str | None = None,
    on_threads: int | None = None,
) -> Calibration:  # fmt: skip
    """Return the calibration of this device and its threads, or of the device that ``on`` names.

    ``on_threads``: of that device, if asked for. Raises :class:`CannotRunError` if there is none.
    """
    if on is not None:
        if (calibration := load_by_words(on, path, on_threads)) is None:
            names, where = calibrated_names(path), path or "the cache folder"
            others = f", but of {joined(names)}" if names else ""
            raise CannotRunError(
                f"--on {on}: {where} has no calibration of it{others}: type --calibration with a "
                "file that calibrate wrote there"
            )
        return calibration
    name, threads = str(environment["device_name"]), environment["threads"]
    calibration = load(name, threads, path)
    if calibration is None:
        who, where = f"{name} with {plural(threads, 'thread')}", f" in {path}" if path else ""
        raise CannotRunError(
            f"{who} was not calibrated{where}: type attnprof calibrate"
            f"{f' --threads {threads}' if threads else ''} (a minute or two)"
        )
    return calibration


def _answer(records: Sequence[PredictRecord], reading: MachineReading) -> str:
    """Return a sentence with the fastest mechanism by length; "" without any comparison.

    Lower bounds promise no order, so the sentence says that it is by them.
    """
    fastest: dict[int, str] = {}
    for length in dict.fromkeys(r.seq_len for r in records):
        timed = [r for r in records if r.seq_len == length and r.time_s is not None]
        if len(timed) > 1:
            first = min(timed, key=lambda r: r.time_s or 0.0)
            fastest[length] = f"{first.mechanism}{alternative(timed, first, reading)}"
    if not fastest:
        return ""
    stretches = [
        (name, list(lengths)) for name, lengths in groupby(fastest, key=fastest.__getitem__)
    ]
    sentences = joined(
        f"{name} at {lengths[0]:,}{f' to {lengths[-1]:,}' if len(lengths) > 1 else ''} tokens"
        for name, lengths in stretches
    )
    bounded = any(r.time_s is not None and r.ci_high_s is None for r in records)
    return f"{'least by lower bounds' if bounded else 'predicted to be fastest'}: {sentences}"


def alternative(records: Sequence[TimedRecord], first: TimedRecord, reading: MachineReading) -> str:
    """Return " or NAME" for the next fastest mechanism if its interval overlaps, else "".

    Both are asked about at one speed of the machine, so what its ``reading`` widens does not count.
    """
    others = [one for one in records if one is not first and one.time_s is not None]
    second = min(others, key=lambda one: one.time_s or 0.0, default=None)
    if second is None or second.ci_low_s is None or first.ci_high_s is None:
        return ""
    overlaps = second.ci_low_s * reading.widening <= first.ci_high_s
    return f" or {second.mechanism}" if overlaps else ""


@dataclass(frozen=True)
class Predictor:
    """Predictions by a calibration.

    ``kept``: freed memory stays with the process, so that new memory costs no page faults.
    ``reading``: how fast the machine is now; times follow it, and intervals reach over both speeds.
    """

    calibration: Calibration
    kept: bool = False
    reading: MachineReading = MachineReading()
    _times: dict[str, Times] = field(default_factory=dict, compare=False)

    @property
    def made_of(self) -> str:
        """A text for reports: the device, how good its calibration is, and how fast it is now."""
        calibration, share = self.calibration, self.calibration.repeatability
        repeatable = "" if share is None else f", repeatable to ±{share:.0%}"
        where = f"{calibration.ceilings.name}, {plural(calibration.threads, 'thread')}"
        checks = [f"; {dtype} {check}" for dtype, check in calibration.checks.items()]
        if calibration.swing > SLOWER:
            checks.append(
                "; meanwhile the processor's speed varied by a factor of about "
                f"{calibration.swing:.1f}: times are of its faster state"
            )
        if calibration.tables and "float32" not in calibration.tables:
            checks.append(
                "; float32 was not calibrated (attnprof calibrate adds it): what layers compute in "
                "it is priced in their own format"
            )
        now = f"; {self.reading.remarks}" if self.reading.remarks else ""
        return f"{where}: single operations measured{repeatable}{''.join(checks)}{now}"

    def times(self, dtype: str) -> Times:
        """Return the times in a number format, with those of other calibrated formats.

        Raises :class:`RequestError` if it was not calibrated, or its tables are damaged.
        """
        tables = self.calibration.tables
        if dtype not in tables:
            have = ", ".join(tables) or "none with the tables of this version"
            raise RequestError(
                f"{dtype} was not calibrated ({have}): type attnprof calibrate --dtype {dtype}"
            )
        if dtype not in self._times:  # once: they keep fits and prices
            others = {name: self._single_format_times(name) for name in tables if name != dtype}
            self._times[dtype] = replace(self._single_format_times(dtype), formats=others)
        return self._times[dtype]

    def _single_format_times(self, dtype: str) -> Times:
        """Return the times in a number format, without those of others."""
        import torch

        tables, device = self.calibration.tables[dtype], self.calibration.device
        try:
            check_tables(tables, benchmarks(getattr(torch, dtype), device))
        except RequestError as error:
            raise RequestError(
                f"the calibration of {dtype} is not whole: {error}: type attnprof calibrate "
                f"--dtype {dtype}"
            ) from error
        arguments = tables, 0.0 if self.kept else self.calibration.fault_s, ITEM_SIZES[dtype]
        if device.startswith("cuda"):
            return GpuTimes(*arguments, processors=self.calibration.processors)
        return Times(*arguments)

    def interval(self, work: Demand, dtype: str, phase: str) -> tuple[float, float, float]:
        """Return the seconds of a phase's call, and the low and high end of the 95 % interval."""
        times, calibration, check = (
            self.times(dtype),
            self.calibration,
            self.calibration.checks.get(dtype),
        )
        seconds = times.of(work) * (exp(check.bias(phase)) if check else 1.0)
        spreads = (times.spread, calibration.repeatability or 0.0, calibration.unsteadiness or 0.0)
        spread = exp(check.reach if check else REACH * hypot(*spreads))
        low, high = self.reading.ends
        return seconds * self.reading.factor, seconds / spread * low, seconds * spread * high

    def point(self, request: PointRequest, most_s: float = inf) -> PredictRecord:
        """Return the record of a point: time and its interval, peak memory, seconds by operation.

        ``most_s``: limit in processor seconds. Raises the errors of
        :func:`attnprof.device.operations.operations_of`.
        """
        work, times = operations_of(request, most_s), self.times(request.dtype)
        seconds, low_s, high_s = self.interval(work, request.dtype, request.phase)
        rows = _operation_rows(work, times, seconds)
        bounds: Counter[str] = Counter()
        for row in rows:
            bounds[row["bound"]] += row["time_s"]
        return replace(
            record_with_peak(request), device=self.calibration.device, time_s=seconds,
            ci_low_s=low_s, ci_high_s=high_s,
            bound=bounds.most_common(1)[0][0] if bounds else None, operations=rows[:MAX_OPERATIONS],
        )  # fmt: skip


def lower_bound_point(request: PointRequest, ceilings: Ceilings) -> PredictRecord:
    """Return the record of a point on an uncalibrated device: its roofline, a lower bound."""
    counts = predict_point(request)
    rate = ceilings.rate(request.dtype)
    flops = counts.flops_formula if counts.flops_formula is not None else counts.flops_derived
    record = replace(record_with_peak(request, counts), device="cuda")  # all that GPUS has
    if rate is None or flops is None or counts.bytes_moved is None:
        return replace(record, skipped=f"{ceilings.name} has no stated rate for {request.dtype}")
    seconds, bound = roofline(flops, counts.bytes_moved, ceilings, rate)
    return replace(record, time_s=seconds, ci_low_s=seconds, bound=bound)


def record_with_peak(request: PointRequest, counts: ProfileRecord | None = None) -> PredictRecord:
    """Return a record of a request with the peak by its closed form, without a time."""
    names = {field.name for field in fields(PredictRecord)}
    values = asdict(counts or predict_point(request))
    return PredictRecord(**{name: value for name, value in values.items() if name in names})


def _operation_rows(work: Demand, times: Times, total_s: float) -> list[dict[str, Any]]:
    """Return rows for a record: equal operations with their calls and seconds, the slowest first.

    Costs between operations are rows, too. All together they take the predicted ``total_s``: what
    checked layers correct is shared out.
    """
    calls = Counter(replace(o, weights=0) for o in work.operations)
    rows: list[dict[str, Any]] = [
        {
            "name": operation.name, "sizes": list(operation.sizes), "calls": count,
            "time_s": count * times.seconds(operation), "bound": times.bound(operation),
            "part": "backward" if operation.backward else "forward",
        }
        for operation, count in calls.items()
    ]  # fmt: skip
    rows += [
        {"name": name, "sizes": [], "calls": count, "time_s": seconds, "bound": "overhead",
         "part": "both"}
        for name, (count, seconds) in times.between(work).items() if count
    ]  # fmt: skip
    listed_s = sum(row["time_s"] for row in rows)
    for row in rows:
        row["time_s"] *= total_s / listed_s if listed_s else 1.0
    return sorted(rows, key=lambda row: -row["time_s"])
