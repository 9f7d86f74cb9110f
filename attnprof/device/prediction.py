"""Time and memory of a mechanism or a module on a device, without running it there."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from math import exp, hypot, inf
from pathlib import Path
from typing import Any

from attnprof.device.benchmarks import benchmarks
from attnprof.device.calibration import Calibration, check_tables, elsewhere, load
from attnprof.device.ceilings import GPUS, Ceilings, stated
from attnprof.device.gpu_times import GpuTimes
from attnprof.device.machine_state import MachineState, read_machine
from attnprof.device.operations import Demand, operations_of
from attnprof.device.roofline import roofline
from attnprof.device.times import Times
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.batch import point_environment
from attnprof.measure.environment import conditions_now
from attnprof.measure.point import predict_point
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import refusing
from attnprof.processes.progress import tell
from attnprof.record import PredictRecord, ProfileRecord, Report
from attnprof.units import joined, plural
from attnprof.workload import ITEM_SIZES

#: Half width of an interval of 95 %, in standard deviations.
REACH = 1.96
#: Operations that are told one by one.
TOLD = 12


INTERVAL = (
    "low and high: ends of an interval of 95 % by the repeatability of the calibration, how steady "
    "the processor was meanwhile, and what a sum of single operations leaves out"
)
CHECKED = (
    "low and high: ends of an interval of 95 % by layers drawn at random that calibrate predicted "
    "and timed, nothing fitted to them"
)
LOWER = "a lower bound from stated ceilings, without overheads and caches: never a promise"


def predict_points(
    requests: Sequence[PointRequest], *, path: Path | None = None, on: str | None = None,
    kept: bool = False,
) -> Report:  # fmt: skip
    """Return the report of ``predict``: a record a point, or why it has no numbers.

    The calibration of this device, in ``path`` or the cache folder, says how long operations take;
    or that of another, which ``on`` names. Of one that was not calibrated, the ceilings that its
    maker states give a lower bound. Raises :class:`CannotRunError` without a calibration.
    """
    environment = point_environment(requests[0])
    point, made_of, interval = pricing(environment, path=path, on=on, kept=kept)
    records = []
    for done, request in enumerate(requests):
        tell(f"predicting {request.title}", done, len(requests))
        records.append(_tried(point, request))
    summary = {
        "made_of": made_of,
        "interval": interval,
        "answer": _answer(records),
        "predicted": sum(record.skipped is None for record in records),
    }
    return Report("predict", records, summary, environment)


#: The record of a point, seen within so many seconds of processor time.
Point = Callable[[PointRequest, float], PredictRecord]


def pricing(
    environment: Mapping[str, Any], *, path: Path | None = None, on: str | None = None,
    kept: bool = False,
) -> tuple[Point, str, str]:  # fmt: skip
    """Return how points are predicted, what that is made of, and what its interval is.

    Raises :class:`CannotRunError` without a calibration, :class:`RequestError` for a device whose
    ceilings nobody states.
    """
    calibrated = elsewhere(on, path) if on else calibration_of(environment, path)
    if calibrated is not None:
        reading = MachineState() if on else read_machine(calibrated, conditions_now())
        predictor = Predictor(calibrated, kept, reading.slowdown)
        higher = "upper ends are as much higher" if reading.slowdown > 1 else ""
        remarks = "; ".join(text for text in (predictor.made_of, str(reading), higher) if text)
        return predictor.point, remarks, CHECKED if calibrated.checks else INTERVAL
    ceilings = stated(on or "")
    if ceilings is None:
        known = ", ".join(gpu.name for gpu in GPUS)
        raise RequestError(
            f"--on {on}: it was not calibrated, and no ceilings are stated for it; possible: "
            f"{known}, or --calibration with a file that calibrate wrote there"
        )
    return (
        lambda request, _: at_least(request, ceilings),
        f"{ceilings.name}: {ceilings.source}", LOWER,
    )  # fmt: skip


def _tried(point: Point, request: PointRequest) -> PredictRecord:
    try:
        with refusing(request):
            return point(request, inf)
    except RequestError as error:
        asked = {name: getattr(request, name) for name in _ASKED}
        return PredictRecord(**asked, params=dict(request.params), skipped=str(error))


_ASKED = (
    "mechanism", "scope", "phase", "causal", "batch_size", "seq_len", "d_model", "num_heads",
    "head_dim", "dtype", "device",
)  # fmt: skip


def calibration_of(
    environment: Mapping[str, Any], path: Path | None, on: str | None = None
) -> Calibration:
    """Return the calibration of this device and threads, or of the device that ``on`` names."""
    if on is not None:
        if (there := elsewhere(on, path)) is None:
            raise CannotRunError(
                f"--on {on}: {path or 'the cache folder'} has no calibration of it"
            )
        return there
    name, threads = str(environment["device_name"]), environment["threads"]
    calibration = load(name, threads, path)
    if calibration is None:
        raise CannotRunError(
            f"{name} with {plural(threads, 'thread')} was not calibrated: type attnprof calibrate"
            f"{f' --threads {threads}' if threads else ''} (a minute or two)"
        )
    return calibration


def _answer(records: Sequence[PredictRecord]) -> str:
    """Return one sentence: what is fastest, and at which lengths."""
    fastest: dict[int, str] = {}
    for length in dict.fromkeys(r.seq_len for r in records):
        timed = [r for r in records if r.seq_len == length and r.time_s is not None]
        if len(timed) > 1:
            fastest[length] = min(timed, key=lambda r: r.time_s or 0.0).mechanism
    if not fastest:
        return ""
    stretches = [
        (name, list(lengths)) for name, lengths in groupby(fastest, key=fastest.__getitem__)
    ]
    sentences = joined(
        f"{name} at {lengths[0]:,}{f' to {lengths[-1]:,}' if len(lengths) > 1 else ''} tokens"
        for name, lengths in stretches
    )
    return f"predicted to be fastest: {sentences}"


@dataclass(frozen=True)
class Predictor:
    """Predictions by a calibration; ``kept``: freed memory stays with the process.

    ``slowdown``: so many times slower than when it was calibrated is the machine now.
    """

    calibration: Calibration
    kept: bool = False
    slowdown: float = 1.0
    _times: dict[str, Times] = field(default_factory=dict, compare=False)

    @property
    def made_of(self) -> str:
        """The device and how well its calibration repeats itself."""
        known, again = self.calibration, self.calibration.repeatability
        how = "" if again is None else f", repeatable to ±{again:.0%}"
        where = f"{known.ceilings.name}, {plural(known.threads, 'thread')}"
        checks = [f"; {dtype} {check}" for dtype, check in known.checks.items()]
        return f"{where}: single operations measured{how}{''.join(checks)}"

    def times(self, dtype: str) -> Times:
        """Return the times in a number format; RequestError where it was not calibrated."""
        import torch

        known = self.calibration.tables
        if dtype not in known:
            have = ", ".join(known) or "none with the tables of this version"
            raise RequestError(
                f"{dtype} was not calibrated ({have}): type attnprof calibrate --dtype {dtype}"
            )
        if dtype not in self._times:  # made once: they remember what they fitted
            device = self.calibration.device
            try:
                check_tables(known[dtype], benchmarks(getattr(torch, dtype), device))
            except RequestError as error:
                raise RequestError(
                    f"the calibration of {dtype} is not whole: {error}: type attnprof calibrate "
                    f"--dtype {dtype}"
                ) from error
            fault_s = 0.0 if self.kept else self.calibration.fault_s
            key = known[dtype], fault_s, ITEM_SIZES[dtype]
            on_gpu = device.startswith("cuda")
            self._times[dtype] = (
                GpuTimes(*key, processors=self.calibration.processors) if on_gpu else Times(*key)
            )
        return self._times[dtype]

    def interval(self, work: Demand, dtype: str, phase: str) -> tuple[float, float, float]:
        """Return the seconds of a phase's call, and the ends of their interval of 95 %."""
        times, known, check = (
            self.times(dtype),
            self.calibration,
            self.calibration.checks.get(dtype),
        )
        seconds = times.of(work) * (exp(check.bias(phase)) if check else 1.0)
        spreads = (times.spread, known.repeatability or 0.0, known.unsteadiness or 0.0)
        spread = exp(check.reach if check else REACH * hypot(*spreads))
        return seconds, seconds / spread, seconds * spread * self.slowdown

    def point(self, request: PointRequest, most_s: float = inf) -> PredictRecord:
        """Return the record of a point: time with an interval, peak memory, what takes how long.

        Raises what :func:`attnprof.device.operations.operations_of` raises.
        """
        work, times = operations_of(request, most_s), self.times(request.dtype)
        seconds, low_s, high_s = self.interval(work, request.dtype, request.phase)
        shares = _shares(work, times)
        bounds: Counter[str] = Counter()
        for row in shares:
            bounds[row["bound"]] += row["time_s"]
        return replace(
            predicted_record(request), device=self.calibration.device, time_s=seconds,
            ci_low_s=low_s, ci_high_s=high_s,
            bound=bounds.most_common(1)[0][0] if bounds else None, operations=shares[:TOLD],
        )  # fmt: skip


def at_least(request: PointRequest, ceilings: Ceilings) -> PredictRecord:
    """Return the record of a point on an uncalibrated device: its roofline, a lower bound."""
    known = predict_point(request)
    rate = ceilings.rate(request.dtype)
    flops = known.flops_formula if known.flops_formula is not None else known.flops_derived
    record = predicted_record(request, known)
    if rate is None or flops is None or known.bytes_moved is None:
        return replace(record, skipped=f"{ceilings.name} has no stated rate for {request.dtype}")
    seconds, bound = roofline(flops, known.bytes_moved, ceilings, rate)
    return replace(record, time_s=seconds, ci_low_s=seconds, bound=bound)


def predicted_record(request: PointRequest, known: ProfileRecord | None = None) -> PredictRecord:
    """Return what was asked, and the peak by the closed form."""
    known = known or predict_point(request)
    shared = {field.name for field in fields(PredictRecord)} & set(asdict(known))
    return PredictRecord(**{name: getattr(known, name) for name in shared})


def _shares(work: Demand, times: Times) -> list[dict[str, Any]]:
    """Return operations alike with their calls and seconds, the dearest first."""
    calls = Counter(work.operations)
    rows = [
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
    return sorted(rows, key=lambda row: -row["time_s"])
