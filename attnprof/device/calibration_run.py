"""Calibrate this device: time products, copies and single operations, then check predictions.

A calibration may last two minutes, on machines that other programs use now and then. So each
operation is timed at each *place* of its table (the sizes of one call) in short readings, in passes
minutes apart, next to a reference operation that shows how fast the processor is at that moment
(:mod:`.steady_times`); places whose readings were all disturbed are timed again. Entry points:
:func:`calibrate` makes a calibration, :func:`machine_speed` reads the machine's speed later.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import exp, floor, log, prod
from statistics import fmean, median, pstdev, quantiles

import torch

from attnprof.device.benchmarks import benchmarks
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.checked_layers import SelfCheck
from attnprof.device.operations import operations_of
from attnprof.device.prediction import Predictor
from attnprof.device.self_check import (
    check_layers,
    drawn_points,
    measure_here,
    measure_in_new_process,
)
from attnprof.device.steady_times import (
    TimeReading,
    has_enough,
    same_speed,
    steady,
    usual_reference,
)
from attnprof.device.tables import Benchmark, Call, Sizes, TimeTable
from attnprof.device.times import Times
from attnprof.errors import CannotRunError
from attnprof.measure.allocator import memory_kept
from attnprof.measure.clocks import Clock, CudaClock, HostClock, cuda_clock, sample
from attnprof.measure.environment import conditions_now, device_name
from attnprof.measure.request import Budget, PointRequest
from attnprof.processes.progress import tell

#: Rows of the square products that are timed for a ceiling.
PRODUCTS, GPU_PRODUCTS = (256, 512, 1024, 2048), (2048, 4096, 8192)
#: Bytes of the copy that is timed for a ceiling: more than any cache holds.
COPY_BYTES = 1 << 28


def measure_ceilings(device: str, dtypes: Sequence[str], seconds: float, clock: Clock) -> Ceilings:
    """Return the device's ceilings: its fastest square product by number format, its fastest copy.

    ``seconds``: how long each size may take. Formats that the device cannot multiply are left out.
    """
    budget = Budget(samples=5, min_time_s=seconds / 2, max_time_s=seconds, warmup_s=seconds / 4)
    rates = {dtype: _product_rate(device, dtype, clock, budget) for dtype in dtypes}
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies = sample(clock, lambda: None, lambda: target.copy_(source), budget)
    setup = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    return Ceilings(
        device_name(device), {dtype: rate for dtype, rate in rates.items() if rate},
        2 * COPY_BYTES / min(copy.wall_s for copy in copies),
        f"attnprof calibrate: best square product and copy, {setup}", measured=True,
    )  # fmt: skip


def _product_rate(device: str, dtype: str, clock: Clock, budget: Budget) -> float:
    """Return the FLOP/s of the fastest square product; 0 if the device has none in the format."""
    best = 0.0
    for size in GPU_PRODUCTS if device.startswith("cuda") else PRODUCTS:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        try:
            times = sample(clock, lambda: None, lambda a=a, b=b: a @ b, budget)  # type: ignore[misc] # bound now
        except RuntimeError:  # no such product on this device
            return 0.0
        fastest_s = min(product.wall_s for product in times)
        best = max(best, 2 * size**3 / fastest_s)
        if 8 * fastest_s > budget.max_time_s:  # a product of twice the rows takes 8 times as long
            break
    return best


#: Places that are timed in the time of one ceiling, ``--seconds``.
PLACES_PER_CEILING = 90
#: Least ``--seconds`` at which tables have their largest sizes.
FULL_TABLES_S = 0.5
#: The most seconds of a product in a table, at the ceiling's rate: some formats are slow.
MAX_PRODUCT_S = 0.01
#: Passes over all places, minutes apart.
PASSES = 2
#: In multiples of ``--seconds`` since the first pass: when to stop repeating disturbed places, and
#: after how long the places of grids, which each pass has all of, are not timed twice.
REPEAT_LIMIT, GRID_LIMIT = 120, 80
#: Parts of a pass. Each has a third of the places, and all benchmarks with ``repeat_in_pass``.
PARTS = 3
#: Places of a table follow the processor's speed alike if their work differs by less than this.
KIND_FACTOR = 16.0
#: Calls of the reference operation in a reading, and untimed ones before it, for the caches.
REFERENCE_CALLS, WARMUP_CALLS = 30, 10
#: Least seconds of a reading, since a coarse clock may say 0.
LEAST_S = 1e-9
#: Readings of the reference operation before and after a run of a checked layer.
READINGS = 12
#: Limit of :func:`machine_speed`, in multiples of its ``seconds``; the least readings it makes.
PATIENCE, LEAST_READINGS = 3.0, 4
#: Seconds for which :func:`processor_share` multiplies; the least share for a calibration.
SHARE_S, LEAST_SHARE = 0.3, 0.6


def calibrate(
    device: str, dtypes: Sequence[str], seconds: float = FULL_TABLES_S, *, contended: bool = False,
    before: Calibration | None = None,
) -> Calibration:  # fmt: skip
    """Return a calibration of a device as it is now, with layers that check its predictions.

    ``seconds``: time for each ceiling; all else takes multiples of it. ``before``: an earlier
    calibration, whose other formats price layers that compute in several. Formats that the device
    cannot multiply are left out. Raises :class:`CannotRunError` if other processes use the
    processor, unless ``contended``.
    """
    share = processor_share() if device == "cpu" else None
    if share is not None and share < LEAST_SHARE and not contended:
        raise CannotRunError(
            f"other processes use this machine: {share:.0%} of what was asked of its processors "
            "was left for calibrating; wait until it is quiet, or type --contended"
        )
    clock = _clock(device)
    tell("timing products and copies")
    ceilings = measure_ceilings(device, dtypes, seconds, clock)
    fault_s = _fault_s(clock, seconds) if device == "cpu" else 0.0
    tables: dict[str, dict[str, TimeTable]] = {}
    differences: list[float] = []
    references: list[float] = []
    with memory_kept() if device == "cpu" else nullcontext():
        for dtype in ceilings.flops_per_s:
            reference = reference_operation(device) if device == "cpu" else None
            bench = _Bench(
                lambda benchmark: _clock(device, host=benchmark.host_time), seconds,
                benchmarks(getattr(torch, dtype), device), reference, ceilings.flops_per_s[dtype],
            )  # fmt: skip
            tables[dtype], bench_differences = bench.tables()
            differences += bench_differences
            references += bench.references
    gpu = torch.cuda.get_device_properties(device) if device.startswith("cuda") else None
    calibration = Calibration(
        ceilings, device, torch.get_num_threads(), tables, fault_s,
        repeatability=exp(median(differences)) - 1 if differences else None, cpu_share=share,
        unsteadiness=pstdev(references) if any(references) else None,
        reference_s=exp(usual_reference(references)) if any(references) else None,
        processors=gpu.multi_processor_count if gpu else None, conditions=conditions_now(),
    )  # fmt: skip
    merged = calibration.with_formats_of(before) if before else calibration
    return replace(calibration, checks=_checks(merged, list(calibration.tables)))


def _checks(calibration: Calibration, dtypes: Sequence[str]) -> dict[str, SelfCheck]:
    """Return the checked layers of a calibration, by number format."""
    predictor, checks = Predictor(calibration), {}
    measure = partial(measure_in_new_process, threads=calibration.threads)
    is_undisturbed = partial(_is_undisturbed, calibration.reference_s)
    if calibration.device.startswith("cuda"):
        measure = partial(measure_here, clock=cuda_clock(torch, calibration.device))
    for dtype in dtypes:
        times = predictor.times(dtype)

        def predict(request: PointRequest, most_s: float, times: Times = times) -> float:
            return times.of(operations_of(request, most_s))

        points = drawn_points(dtype, calibration.device)
        if check := check_layers(predict, points, measure, is_undisturbed):
            checks[dtype] = check
    return checks


def _is_undisturbed(usual_s: float | None) -> bool:
    """Return whether the reference operation takes its usual seconds now; True if it has none."""
    if usual_s is None:
        return True
    clock, reference = _clock("cpu"), reference_operation("cpu")
    now_s = sorted(_reference_s(clock, reference) for _ in range(READINGS))[READINGS // 4]
    return same_speed(log(now_s), log(usual_s))


def _clock(device: str, *, host: bool = False) -> Clock:
    """Return the clock for a device: processor time for one thread, else wall time.

    Processor time excludes other programs. ``host``: time the processor, not the GPU.
    """
    if device.startswith("cuda"):
        return HostClock(torch.cuda) if host else CudaClock(torch.cuda)
    return Clock(now_ns=time.thread_time_ns) if torch.get_num_threads() == 1 else Clock()


def processor_share() -> float:
    """Return the share of the processors that this process gets while all its threads multiply."""
    a = torch.ones(512, 512)
    a @ a  # the first product starts the threads
    return _share_of(lambda: a @ a, SHARE_S)


def _share_of(call: Call, seconds: float) -> float:
    start, busy = time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - start) < seconds:
        call()
    return min(1.0, (time.process_time() - busy) / passed / torch.get_num_threads())


def machine_speed(seconds: float, bundles: int) -> tuple[float, float, float]:
    """Return the lower quartile of the reference's seconds, the upper over it, and the share.

    The share is that of the processors which this process gets. ``bundles`` readings are spread
    over ``seconds``, since other users of a virtual processor come and go within tenths of a
    second. The lower quartile is taken as the time on an undisturbed processor.
    """
    clock, reference, a = _clock("cpu"), reference_operation("cpu"), torch.ones(512, 512)
    a @ a
    readings, shares = list[float](), list[float]()
    until = time.perf_counter() + PATIENCE * seconds
    for done in range(bundles):
        if done >= LEAST_READINGS and time.perf_counter() >= until:
            break
        shares.append(_share_of(lambda: a @ a, seconds / bundles))
        readings.append(_reference_s(clock, reference))
    lower_s, _, upper_s = quantiles(readings)
    return lower_s, upper_s / lower_s, fmean(shares)


@dataclass
class _Bench:
    """A run of all benchmarks of a number format, ``seconds / PLACES_PER_CEILING`` for each place.

    On a CPU the ``reference`` operation is timed around each reading. On a GPU it is None: no other
    program is assumed to use it, and all readings count as made at one speed. ``flops_per_s``: the
    ceiling's. ``references``: logarithms of the reference's seconds around each reading.
    """

    new_clock: Callable[[Benchmark], Clock]
    seconds: float
    benchmarks: Sequence[Benchmark]
    reference: Call | None
    flops_per_s: float
    references: list[float] = field(default_factory=list)

    def tables(self) -> tuple[dict[str, TimeTable], list[float]]:
        """Return a table per benchmark, and |log(last pass / first pass)| at each place."""
        start = time.monotonic()
        repeated = [one for one in self.benchmarks if one.repeat_in_pass]
        rest = [one for one in self.benchmarks if not one.repeat_in_pass]
        passes: list[dict[tuple[str, Sizes], list[TimeReading]]] = []
        for pass_index, part in product(range(PASSES), range(PARTS)):
            tell("timing single operations", len(passes), PASSES * PARTS)
            is_late = pass_index and time.monotonic() > start + GRID_LIMIT * self.seconds
            timed = [one for one in rest[part::PARTS] if one.scattered or not is_late]
            passes.append({
                (one.name, place): readings for one in (*repeated, *timed)
                for place, readings in self._readings_of(one, pass_index).items()
            })  # fmt: skip
        passes += self._repeat_disturbed(passes, start + REPEAT_LIMIT * self.seconds)
        values = steady(passes, kind=_kind)
        tables: dict[str, dict[Sizes, float]] = {one.name: {} for one in self.benchmarks}
        for (name, place), logs in values.items():
            tables[name][place] = exp(median(logs))
        differences = [abs(logs[-1] - logs[0]) for logs in values.values() if len(logs) > 1]
        return {name: TimeTable(seconds) for name, seconds in tables.items()}, differences

    def _repeat_disturbed(
        self, passes: Sequence[Mapping[tuple[str, Sizes], Sequence[TimeReading]]], until: float
    ) -> Iterator[dict[tuple[str, Sizes], list[TimeReading]]]:
        """Yield further passes over places without enough readings at the usual speed."""
        by_name = {benchmark.name: benchmark for benchmark in self.benchmarks}
        references = defaultdict[tuple[str, Sizes], list[float]](list)
        for one_pass in passes:
            for key, readings in one_pass.items():
                references[key] += [reading.reference for reading in readings]
        while time.monotonic() < until:
            usual = usual_reference(self.references)
            disturbed = [key for key, logs in references.items() if not has_enough(logs, usual)]
            if not disturbed:
                return
            tables = {}
            tell("timing again what was disturbed", left_s=until - time.monotonic())
            for name, place in disturbed:
                if time.monotonic() < until:
                    tables[name, place] = repeated = self._readings_at(by_name[name], place)
                    references[name, place] += [reading.reference for reading in repeated]
            yield tables

    def _readings_of(self, benchmark: Benchmark, pass_index: int) -> dict[Sizes, list[TimeReading]]:
        """Return readings at the places of a benchmark that a pass visits and time allows."""
        max_work = max(1.0, benchmark.max_work * min(1.0, self.seconds / FULL_TABLES_S))
        if benchmark.flops:
            max_work = min(max_work, MAX_PRODUCT_S * self.flops_per_s / benchmark.flops)
        # the fifth size of a product is its layout, not work
        places = [x for x in benchmark.places(pass_index, PASSES) if prod(x[:4]) <= max_work]
        places = places or [next(iter(benchmark.places()))]
        return {place: self._readings_at(benchmark, place) for place in places}

    def _readings_at(self, benchmark: Benchmark, place: Sizes) -> list[TimeReading]:
        """Return readings, five of short calls, with the reference timed in between."""
        calls, clock = [benchmark.make(*place)], self.new_clock(benchmark)
        place_s = self.seconds / PLACES_PER_CEILING
        with torch.no_grad():  # benchmarks of autograd enable it themselves
            results: list[object] = [calls[0]()]  # kept while the next is made: two have memory
            call_s = max(1e-7, _seconds_of(clock, calls[0]))
            # operands of a long call are larger than caches: it needs no copies
            copies = min(benchmark.copies, int(place_s / call_s)) - 1
            calls += [benchmark.make(*place) for _ in range(copies)]
            rounds = max(1, int(place_s / 5 / call_s / len(calls)))
            results += [None] * (len(calls) - 1)

            def bundle() -> None:
                for _ in range(rounds):
                    for index, call in enumerate(calls):
                        results[index] = call()

            references: list[float] = []
            budget = Budget(5, min_time_s=0.0, max_time_s=place_s, warmup_s=0.0, least=2)

            def time_reference() -> None:
                reference_s = self.reference and _reference_s(clock, self.reference)
                references.append(reference_s or 1.0)

            samples = sample(clock, time_reference, bundle, budget)
            time_reference()
        logs = map(log, references[-len(samples) - 1 :])
        means = [fmean(both) for both in pairwise(logs)]
        self.references += means
        return [
            TimeReading(log(max(timed.wall_s / rounds / len(calls), LEAST_S)), reference)
            for timed, reference in zip(samples, means, strict=True)
        ]


def _seconds_of(clock: Clock, call: Call, times: int = 1) -> float:
    """Return the mean seconds of ``times`` calls."""
    start = clock.now_s()
    for _ in range(times):
        call()
    clock.settle()
    return (clock.now_s() - start) / times


def _kind(place: tuple[str, Sizes]) -> tuple[str, int]:
    """Return the group of a place: places of a group follow the processor's speed alike."""
    name, sizes = place
    return name, floor(log(prod(sizes[:4])) / log(KIND_FACTOR))


def _reference_s(clock: Clock, reference: Call) -> float:
    """Return the seconds of the reference operation now."""
    _seconds_of(clock, reference, WARMUP_CALLS)
    return max(LEAST_S, _seconds_of(clock, reference, REFERENCE_CALLS))


def reference_operation(device: str) -> Call:
    """Return a call of the reference operation, whose time says how slow the processor is now.

    For one thread it is pure overhead. For several it is a small product, which shows how long they
    wait for each other: on a virtual machine that changes, and then small products and fused
    kernels take up to twice as long while large products take as long as before.
    """
    if torch.get_num_threads() > 1:
        square = torch.ones(64, 64, device=device)
        return lambda: square @ square
    x = torch.ones(64, device=device)
    return lambda: x * 1.5


#: Shape of a tensor so large that the C library maps and unmaps its memory at every use.
FAULT_SHAPE = (4096, 4096)


def _fault_s(clock: Clock, seconds: float) -> float:
    """Return the seconds that a byte of new memory costs: its page faults, and giving it back.

    It is the median over five operations of the seconds that a result in new memory takes longer
    than one in kept memory. Results are dropped at once, as a layer drops most of its own.
    """
    budget = Budget(samples=5, min_time_s=seconds / 8, max_time_s=seconds / 4, warmup_s=0.0)
    x = torch.ones(FAULT_SHAPE)
    calls: tuple[Call, ...] = (
        lambda: x * 1.5, lambda: x.softmax(-1), x.exp, lambda: x[:, :64] @ x[:64],
        lambda: x[:128, None] * x[0, :32, None],
    )  # fmt: skip

    def median_s(call: Call) -> float:
        timed = sample(clock, lambda: None, lambda: call() is None, budget)
        return median(one.wall_s for one in timed)

    fresh_s = [*map(median_s, calls)]
    with memory_kept():
        added_s = [fresh - median_s(call) for fresh, call in zip(fresh_s, calls, strict=True)]
    return max(0.0, median(added_s)) / x.nbytes
