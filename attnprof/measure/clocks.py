"""Clocks that time single calls of a function, on the CPU or on a GPU's own stream."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from attnprof.measure.allocator import holes_filled, let_allocator_learn
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median

if TYPE_CHECKING:
    from attnprof.measure.subject import Subject

_Call = Callable[[], object]
#: Samples queued on a GPU before one synchronisation, and timed on a CPU between two looks; timing
#: stops at so many times the asked number of samples.
ROUND, ENOUGH = 10, 10
#: GPU calls are queued behind a kernel that only waits where they are shorter than this, or where
#: the host takes more than this share of their time to queue them: otherwise the gaps between
#: launches, which the host makes, would be timed.
SHORT_S, QUEUED_SHARE = 200e-6, 0.5
#: Above every GPU's clock: a wait in cycles lasts at least as long as asked.
CYCLES_PER_S = 2.5e9


class Sample(NamedTuple):
    """One timed call: wall seconds, and processor seconds of all threads (None on a GPU)."""

    wall_s: float
    cpu_s: float | None = None


class Clock:
    """A clock that reads ``perf_counter_ns`` around each call, for devices that finish by then.

    ``cuda`` is :mod:`torch.cuda` or a stand-in, for calls that queue work on a GPU.
    """

    #: how it times
    name = "perf_counter_ns"

    def __init__(
        self, now_ns: Callable[[], int] = time.perf_counter_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns, cuda: Any = None,
    ) -> None:  # fmt: skip
        self._now_ns, self._cpu_ns, self._cuda = now_ns, cpu_ns, cuda

    def now_s(self) -> float:
        """Return the seconds since an arbitrary moment, on the host."""
        return self._now_ns() / 1e9

    def adapt(self, prepare: _Call, call: _Call) -> None:
        """Prepare the clock for calls that were warmed up; a clock of the host needs nothing."""

    def settle(self) -> None:
        """Wait until all queued work is done."""
        if self._cuda is not None:
            self._cuda.synchronize()

    def times(self, prepare: _Call, call: _Call, count: int) -> list[Sample]:
        """Time ``count`` calls; ``prepare`` runs before each, untimed."""
        samples = []
        for _ in range(count):
            prepare()
            busy = self._cpu_ns()
            start = self._now_ns()
            kept = call()
            end = self._now_ns()
            busy = self._cpu_ns() - busy
            del kept  # freeing the result is no part of the call
            samples.append(Sample((end - start) / 1e9, busy / 1e9))
        return samples


class CudaClock(Clock):
    """A clock with a pair of CUDA events around each call; it synchronises once at the end.

    Before each call, ``flush`` writes a buffer larger than the second-level cache (None: no flush).
    Short calls are queued behind a kernel that waits until the host has queued all their work, so
    that events see the device's time and not the host's.
    """

    def __init__(self, cuda: Any, flush: _Call | None = None) -> None:
        super().__init__(cuda=cuda)
        self._flush, self._wait_cycles = flush, 0
        self.name = "cuda events" if flush is None else "cuda events, second-level cache flushed"

    def times(self, prepare: _Call, call: _Call, count: int) -> list[Sample]:
        """Return the seconds between the two events of each call."""
        pairs = []
        for _ in range(count):
            prepare()
            if self._flush is not None:
                self._flush()
            start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            if self._wait_cycles:
                self._cuda._sleep(self._wait_cycles)  # noqa: SLF001 - torch's only waiting kernel
            start.record()
            kept = call()
            end.record()
            del kept
            pairs.append((start, end))
        self._cuda.synchronize()
        return [Sample(start.elapsed_time(end) / 1e3) for start, end in pairs]

    def adapt(self, prepare: _Call, call: _Call) -> None:
        """Let the device wait before each short call, twice as long as the host takes to queue.

        If several calls are timed in turns, the longest wait is kept.
        """
        prepare()
        self._cuda.synchronize()
        start = time.perf_counter()
        kept = call()
        queued = time.perf_counter() - start
        self._cuda.synchronize()
        del kept
        shortest = min(sample.wall_s for sample in self.times(prepare, call, 3))
        if shortest < max(SHORT_S, queued / QUEUED_SHARE):
            self.name += "" if self._wait_cycles else ", queued behind a waiting kernel"
            self._wait_cycles = max(self._wait_cycles, 1, int(2 * queued * CYCLES_PER_S))


class HostClock(Clock):
    """A clock of the host's part of a GPU call; the device is idle before each call.

    A call must queue less than the GPU's queue holds, or the host waits, too.
    """

    name = "perf_counter_ns of the host"

    def __init__(self, cuda: Any) -> None:
        super().__init__(cuda=cuda)

    def times(self, prepare: _Call, call: _Call, count: int) -> list[Sample]:
        """Return the seconds until each call has queued its work."""

        def ready() -> None:
            prepare()
            self.settle()

        return super().times(ready, call, count)


def cuda_clock(torch: Any, device: str) -> CudaClock:
    """Return the clock of a CUDA device, whose cache is flushed before each call."""
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or (64 << 20)
    buffer = torch.empty(2 * cache, dtype=torch.uint8, device=device)
    return CudaClock(torch.cuda, buffer.zero_)


@contextmanager
def onednn_restored() -> Iterator[None]:
    """Put back whether torch uses oneDNN, after calls that may have switched it off.

    Torch does so for the whole process once a product of bfloat16 fails there (a batch whose
    strides it does not know): all later products are then up to twenty times slower.
    """
    from torch.backends import mkldnn

    before = mkldnn.enabled
    try:
        yield
    finally:
        if mkldnn.enabled != before:
            mkldnn.enabled = before


def warm_up(clock: Clock, prepare: _Call, call: _Call, seconds: float) -> int:
    """Call for ``seconds``, at least twice unless one call takes longer; return how many calls."""
    start, calls = clock.now_s(), 0
    while calls == 0 or clock.now_s() - start < seconds:
        prepare()
        call()
        clock.settle()
        calls += 1
    return calls


@onednn_restored()
@holes_filled()
def sample(clock: Clock, prepare: _Call, call: _Call, budget: Budget) -> list[Sample]:
    """Time calls within a budget, garbage collection off; return the samples in order.

    It ends once there are ``samples``, ``min_time_s`` is spent and the median's interval is within
    ``spread``; at the latest after ``max_time_s`` or ``ENOUGH`` times the samples. Those of short
    calls are spread over ``min_time_s``, with untimed calls in between: a processor that others use
    has one speed for tenths of a second, and then another one.
    """
    samples: list[Sample] = []
    most = ENOUGH * budget.samples
    enabled = gc.isenabled()
    gc.collect(1)  # what is young; a full collection would take longer than many a point
    gc.disable()
    try:
        let_allocator_learn()
        warm_up(clock, prepare, call, budget.warmup_s)
        clock.adapt(prepare, call)
        start = clock.now_s()
        while len(samples) < most:
            # one call at first; then what a tenth of the time may hold, at most a round
            longest = max((timing.wall_s for timing in samples), default=budget.max_time_s)
            share = int(budget.max_time_s / 10 / max(1e-9, longest))
            missing = budget.samples - len(samples)
            left = missing if missing > 0 else most - len(samples)
            samples += clock.times(prepare, call, min(max(1, min(ROUND, share)), left))
            while clock.now_s() - start < budget.min_time_s * len(samples) / most:
                prepare()
                call()
                clock.settle()
            spent = clock.now_s() - start
            if spent >= budget.max_time_s and len(samples) >= budget.least:
                break
            if spent >= budget.min_time_s and len(samples) >= budget.samples:
                median = estimate_median([timing.wall_s for timing in samples])
                if median.half_width <= budget.spread:
                    break
    finally:
        if enabled:
            gc.enable()
    return samples


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run the body with ``count`` compute threads; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Run the body with a GPU as torch's current one, whose stream and allocator calls ask.

    Events, waiting and statistics of memory are those of the current device, whichever device the
    tensors of a call are on.
    """
    import torch

    with torch.cuda.device(device) if device.startswith("cuda") else nullcontext():
        yield


def time_in_turns(
    subjects: "Sequence[Subject]", budget: Budget, clock: Clock | None = None,
    count: int | None = 1,
) -> list[list[float]]:  # fmt: skip
    """Return the seconds of every call, a list a subject; the n-th calls are neighbours.

    With one thread it is processor time, unless a clock is given; with ``count`` threads (None: as
    many as there are) wall time. A round calls every subject once, every other round in reverse;
    rounds go on until ``max_time_s`` is spent, at least ``least`` and at most ``samples`` of them.
    """
    clock = clock or Clock(now_ns=time.thread_time_ns if count == 1 else time.perf_counter_ns)
    seconds: list[list[float]] = [[] for _ in subjects]
    pairs = list(zip(subjects, seconds, strict=True))
    with threads(count), holes_filled():
        let_allocator_learn()
        for subject in subjects:
            with onednn_restored():  # what one switches off is on again for the others
                warm_up(clock, subject.prepare, subject.call, budget.warmup_s)
                clock.adapt(subject.prepare, subject.call)
        start = clock.now_s()
        while len(seconds[0]) < budget.samples and not (
            len(seconds[0]) >= budget.least and clock.now_s() - start >= budget.max_time_s
        ):
            for subject, times in pairs:
                with onednn_restored():
                    times.append(clock.times(subject.prepare, subject.call, 1)[0].wall_s)
            pairs.reverse()
    return seconds
