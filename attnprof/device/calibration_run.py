"""Calibrate this device: measure its ceilings and the tables of single operations."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from math import exp, floor, log, prod
from statistics import fmean, median, pstdev

import torch

from attnprof.device.benchmarks import benchmarks
from attnprof.device.calibration import Calibration, SelfCheck
from attnprof.device.ceilings import Ceilings
from attnprof.device.operations import operations_of
from attnprof.device.prediction import Predictor
from attnprof.device.self_check import checked, drawn_points, measure_here, measure_in_new_process
from attnprof.device.steady_times import TimeReading, enough, steady, usual_of
from attnprof.device.tables import Benchmark, Call, Sizes, TimeTable
from attnprof.device.times import Times
from attnprof.errors import CannotRunError
from attnprof.measure.clocks import Clock, CudaClock, HostClock, cuda_clock, memory_kept, sample
from attnprof.measure.environment import conditions_now, device_name
from attnprof.measure.request import Budget, PointRequest
from attnprof.processes.progress import tell

#: Square products tried, and the bytes of a copy: far beyond every cache.
PRODUCTS = (256, 512, 1024, 2048)
GPU_PRODUCTS = (2048, 4096, 8192)
COPY_BYTES = 1 << 28


def measured_ceilings(device: str, dtypes: Sequence[str], seconds: float, clock: Clock) -> Ceilings:
    """Measure ceilings, the best of all sizes: what the device can do, not its average."""
    budget = Budget(samples=5, min_time_s=seconds / 2, max_time_s=seconds, warmup_s=seconds / 4)
    rates = {dtype: _product_rate(device, dtype, clock, budget) for dtype in dtypes}
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies = sample(clock, lambda: None, lambda: target.copy_(source), budget)
    made_by = f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    return Ceilings(
        device_name(device), {dtype: rate for dtype, rate in rates.items() if rate},
        2 * COPY_BYTES / min(copy.wall_s for copy in copies),
        f"attnprof calibrate: best square product and copy, {made_by}", measured=True,
    )  # fmt: skip


def _product_rate(device: str, dtype: str, clock: Clock, budget: Budget) -> float:
    best = 0.0
    for size in GPU_PRODUCTS if device.startswith("cuda") else PRODUCTS:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        try:
            times = sample(clock, lambda: None, lambda a=a, b=b: a @ b, budget)  # type: ignore[misc] # bound now
        except RuntimeError:  # no such product on this device
            return 0.0
        quickest = min(product.wall_s for product in times)
        best = max(best, 2 * size**3 / quickest)
        if 8 * quickest > budget.max_time_s:  # the next one, twice the size, takes longer
            break
    return best


#: Ceilings (the fastest product, a copy) get so many times the seconds of a table's place.
PLACES = 80
#: ``--seconds`` from which on tables have their largest sizes.
WHOLE_S = 0.5
#: Seconds of the largest products of a table, at the fastest rate: some formats are slow.
LARGEST_S = 0.01
#: Passes over all places: each is measured so often, minutes apart.
PASSES = 2
#: Places whose readings were all made on a slowed processor are measured again, until so many times
#: the seconds of a ceiling have passed.
MOST = 120
#: Measurements in each pass of a benchmark that is marked ``often``.
OFTEN = 3
#: Work up to this factor apart is of one magnitude.
ALIKE = 16.0
#: Timed calls of the reference operation next to each reading; untimed calls before them, which
#: bring its code back into the cache; least seconds of a reading, as a clock may give 0.
REFERRED, UNTIMED, LEAST_S = 30, 10, 1e-9
#: Rows and columns of the product that is the reference of several threads.
SHARED = 64
#: Seconds of work by which the share of the processors left by other programs is measured; the
#: share below which a calibration is refused.
LOOK_S, LEAST_SHARE = 0.3, 0.6


def calibrate(
    device: str, dtypes: Sequence[str], seconds: float = WHOLE_S, *, contended: bool = False,
    before: Calibration | None = None,
) -> Calibration:  # fmt: skip
    """Measure the device as it is now, ``seconds`` for each ceiling; no attention is run.

    At the end layers are predicted and timed, also by the formats that were measured ``before``.
    Formats that it cannot multiply are left out. Raises :class:`CannotRunError` where other
    processes use the processor, unless ``contended`` allows that.
    """
    share = processor_share() if device == "cpu" else None
    if share is not None and share < LEAST_SHARE and not contended:
        raise CannotRunError(
            f"other processes use this machine: {share:.0%} of what was asked of its processors "
            "was left for calibrating; wait until it is quiet, or type --contended"
        )
    clock = _clock(device)
    tell("timing products and copies")
    ceilings = measured_ceilings(device, dtypes, seconds, clock)
    fault_s = _fault_s(clock, seconds) if device == "cpu" else 0.0
    tables: dict[str, dict[str, TimeTable]] = {}
    differences: list[float] = []
    references: list[float] = []
    with memory_kept() if device == "cpu" else nullcontext():
        for dtype in ceilings.flops_per_s:
            reference = reference_operation(device) if device == "cpu" else None
            bench = _Bench(
                lambda one: _clock(device, host=one.host), seconds,
                benchmarks(getattr(torch, dtype), device), reference, ceilings.flops_per_s[dtype],
            )  # fmt: skip
            tables[dtype], twice = bench.tables()
            differences += twice
            references += bench.references
    gpu = torch.cuda.get_device_properties(device) if device.startswith("cuda") else None
    calibration = Calibration(
        ceilings, device, torch.get_num_threads(), tables, fault_s,
        repeatability=exp(median(differences)) - 1 if differences else None, cpu_share=share,
        unsteadiness=pstdev(references) if any(references) else None,
        reference_s=exp(usual_of(references)) if any(references) else None,
        processors=gpu.multi_processor_count if gpu else None, conditions=conditions_now(),
    )  # fmt: skip
    whole = calibration.with_formats_of(before) if before else calibration
    return replace(calibration, checks=_checks(whole, list(calibration.tables)))


def _checks(calibration: Calibration, dtypes: Sequence[str]) -> dict[str, SelfCheck]:
    """Return how far predictions by a calibration are off, by number format."""
    predictor, checks = Predictor(calibration), {}
    measure = partial(measure_in_new_process, threads=calibration.threads)
    if calibration.device.startswith("cuda"):
        measure = partial(measure_here, clock=cuda_clock(torch, calibration.device))
    for dtype in dtypes:
        times = predictor.times(dtype)

        def predicted(request: PointRequest, most_s: float, times: Times = times) -> float:
            return times.of(operations_of(request, most_s))

        if check := checked(predicted, drawn_points(dtype, calibration.device), measure):
            checks[dtype] = check
    return checks


def _clock(device: str, *, host: bool = False) -> Clock:
    """Return the clock: of one thread its processor time, which others disturb least."""
    if device.startswith("cuda"):
        return HostClock(torch.cuda) if host else CudaClock(torch.cuda)
    return Clock(now_ns=time.thread_time_ns) if torch.get_num_threads() == 1 else Clock()


def processor_share(seconds: float = LOOK_S) -> float:
    """Return the share of its processors that this process gets while all threads multiply."""
    a = torch.ones(512, 512)
    a @ a  # the first one sets up what the next ones use
    start, busy = time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - start) < seconds:
        a @ a
    return min(1.0, (time.process_time() - busy) / passed / torch.get_num_threads())


def machine_speed(seconds: float, bundles: int) -> tuple[float, float]:
    """Return the reference operation's seconds on the CPU now, and the share of processors left.

    The share is measured first, as a processor that was idle is slow at first. The time is that of
    the fastest quarter of the bundles, since a calibration keeps its fastest times.
    """
    share = processor_share(seconds)
    clock, reference = _clock("cpu"), reference_operation("cpu")
    return sorted(_referred_s(clock, reference) for _ in range(bundles))[bundles // 4], share


@dataclass
class _Bench:
    """A run of all benchmarks, ``seconds / PLACES`` for each place.

    On a CPU the reference operation is timed next to each reading; a GPU is taken to be used by
    nobody else, so all readings count as made at one speed. ``flops_per_s``: the fastest product's.
    """

    new_clock: Callable[[Benchmark], Clock]
    seconds: float
    benchmarks: Sequence[Benchmark]
    reference: Call | None
    flops_per_s: float
    references: list[float] = field(default_factory=list)

    def tables(self) -> tuple[dict[str, TimeTable], list[float]]:
        """Return a table per benchmark, and how far passes differ at each place, as logarithms."""
        until = time.monotonic() + MOST * self.seconds
        often = [one for one in self.benchmarks if one.often]
        rest = [one for one in self.benchmarks if not one.often]
        passes: list[dict[tuple[str, Sizes], list[TimeReading]]] = []
        for turn, part in product(range(PASSES), range(OFTEN)):
            tell("timing single operations", len(passes), PASSES * OFTEN)
            passes.append({
                (one.name, place): readings for one in (*often, *rest[part::OFTEN])
                for place, readings in self._places(one, turn).items()
            })  # fmt: skip
        passes += self._again(passes, until)
        values = steady(passes, kind=_kind)
        tables: dict[str, dict[Sizes, float]] = {one.name: {} for one in self.benchmarks}
        for (name, place), logs in values.items():
            tables[name][place] = exp(median(logs))
        differences = [abs(logs[-1] - logs[0]) for logs in values.values() if len(logs) > 1]
        return {name: TimeTable(seconds) for name, seconds in tables.items()}, differences

    def _again(
        self, passes: Sequence[Mapping[tuple[str, Sizes], Sequence[TimeReading]]], until: float
    ) -> Iterator[dict[tuple[str, Sizes], list[TimeReading]]]:
        """Yield further passes over places without a reading of an undisturbed processor."""
        named = {one.name: one for one in self.benchmarks}
        references = defaultdict[tuple[str, Sizes], list[float]](list)
        for one_pass in passes:
            for key, readings in one_pass.items():
                references[key] += [one.reference for one in readings]
        while time.monotonic() < until:
            usual = usual_of(self.references)
            lacking = [key for key, readings in references.items() if not enough(readings, usual)]
            if not lacking:
                return
            tables = {}
            tell("timing again what was disturbed", left_s=until - time.monotonic())
            for name, place in lacking:
                if time.monotonic() < until:
                    tables[name, place] = taken = self._at(named[name], place)
                    references[name, place] += [one.reference for one in taken]
            yield tables

    def _places(self, one: Benchmark, turn: int) -> dict[Sizes, list[TimeReading]]:
        most = max(1.0, one.most * min(1.0, self.seconds / WHOLE_S))
        if one.flops:
            most = min(most, LARGEST_S * self.flops_per_s / one.flops)
        # a product's layout, its fifth size, is no work
        places = [place for place in one.places(turn, PASSES) if prod(place[:4]) <= most]
        return {place: self._at(one, place) for place in places or [next(iter(one.places()))]}

    def _at(self, one: Benchmark, place: Sizes) -> list[TimeReading]:
        turns, clock = [one.make(*place)], self.new_clock(one)
        each = self.seconds / PLACES
        with torch.no_grad():  # benchmarks of gradients turn them on themselves
            turns[0]()
            once = max(1e-7, _seconds_of(clock, turns[0]))
            # sizes of longer calls fill more than any cache
            more = min(one.turns, int(each / once)) - 1
            turns += [one.make(*place) for _ in range(more)]
            rounds = max(1, int(each / 5 / once / len(turns)))
            kept: list[object] = [None] * len(turns)

            def bundle() -> None:
                for _ in range(rounds):
                    for turn, call in enumerate(turns):
                        kept[turn] = call()

            references: list[float] = []
            budget = Budget(5, min_time_s=each / 2, max_time_s=each, warmup_s=0.0)

            def refer() -> None:
                known = self.reference and _referred_s(clock, self.reference)
                references.append(known or 1.0)

            taken = sample(clock, refer, bundle, budget)
            refer()
        calls = rounds * len(turns)
        last = map(log, references[-len(taken) - 1 :])
        around = [fmean(both) for both in pairwise(last)]
        self.references += around
        return [
            TimeReading(log(max(timed.wall_s / calls, LEAST_S)), reference)
            for timed, reference in zip(taken, around, strict=True)
        ]


def _seconds_of(clock: Clock, call: Call, times: int = 1) -> float:
    """Return the seconds of a call, roughly, by timing ``times`` calls at once."""
    start = clock.now_s()
    for _ in range(times):
        call()
    clock.settle()
    return (clock.now_s() - start) / times


def _kind(place: tuple[str, Sizes]) -> tuple[str, int]:
    """Return the group of places that follow the processor's speed alike: table, magnitude."""
    name, sizes = place
    return name, floor(log(prod(sizes[:4])) / log(ALIKE))


def _referred_s(clock: Clock, reference: Call) -> float:
    """Return the seconds of a call of the reference operation now."""
    _seconds_of(clock, reference, UNTIMED)
    return max(LEAST_S, _seconds_of(clock, reference, REFERRED))


def reference_operation(device: str) -> Call:
    """Return the reference operation, whose time says how slow the processor is.

    For one thread it is so small that its code is all. Several threads share a small product: how
    long they wait for each other changes where a machine's cores are lent out, and then small
    products and fused kernels take up to twice as long while large ones take as long as before.
    """
    if torch.get_num_threads() > 1:
        square = torch.ones(SHARED, SHARED, device=device)
        return lambda: square @ square
    x = torch.ones(64, device=device)
    return lambda: x * 1.5


#: Rows and columns of a matrix that the C library maps anew and gives back at every use.
MAPPED = (4096, 4096)


def _fault_s(clock: Clock, seconds: float) -> float:
    """Return the seconds that a byte costs when memory is new to the process, beyond writing it.

    The median of three operations, each into new memory and into memory that the process keeps.
    """
    budget = Budget(samples=5, min_time_s=seconds / 8, max_time_s=seconds / 4, warmup_s=0.0)
    x = torch.ones(MAPPED)

    def median_s(call: Call) -> float:
        return median(one.wall_s for one in sample(clock, lambda: None, call, budget))

    calls: tuple[Call, ...] = (
        lambda: x * 1.5, lambda: x.softmax(-1), lambda: torch.empty_like(x).fill_(1.0)
    )  # fmt: skip
    fresh = [median_s(call) for call in calls]
    with memory_kept():
        kept = [median_s(call) for call in calls]
    more = median(new - old for new, old in zip(fresh, kept, strict=True))
    return max(0.0, more) / x.nbytes
