"""Clocks: time single calls of a function, on the CPU or on a GPU's own stream."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from attnprof.measure.request import Budget

Call = Callable[[], object]
#: Samples queued on a GPU before one synchronisation, and timed on a CPU between two looks.
ROUND = 10
#: More samples than this many times the asked number say nothing new.
ENOUGH = 10


class Clock(Protocol):
    """Times calls; ``now_s`` is the wall clock the budget is kept with."""

    name: str

    def now_s(self) -> float:
        """Seconds on a monotonic clock."""
        ...

    def times(self, prepare: Call, call: Call, count: int) -> list[float]:
        """Seconds of ``count`` calls; ``prepare`` runs before each, outside its time."""
        ...

    def settle(self) -> None:
        """Wait until everything asked for has been done."""
        ...


class MonotonicClock:
    """``perf_counter_ns`` around each call; for devices that finish before they return."""

    name = "perf_counter_ns"

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns

    def now_s(self) -> float:
        """Seconds since an arbitrary moment."""
        return self._now_ns() / 1e9

    def times(self, prepare: Call, call: Call, count: int) -> list[float]:
        """Seconds of each call."""
        found = []
        for _ in range(count):
            prepare()
            start = self._now_ns()
            kept = call()
            end = self._now_ns()
            del kept  # freeing the result is no part of the call
            found.append((end - start) / 1e9)
        return found

    def settle(self) -> None:
        """Nothing to wait for."""


class CudaClock:
    """A pair of events around each call on the same stream; one synchronisation at the end.

    ``cuda`` is :mod:`torch.cuda` or a stand-in with ``Event`` and ``synchronize``.
    """

    name = "cuda events"

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def now_s(self) -> float:
        """Seconds since an arbitrary moment, on the host."""
        return time.perf_counter()

    def times(self, prepare: Call, call: Call, count: int) -> list[float]:
        """Seconds between the two events of each call."""
        pairs = []
        for _ in range(count):
            prepare()
            start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            kept = call()
            end.record()
            del kept
            pairs.append((start, end))
        self._cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def settle(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect(1)  # what is young; a full collection would take longer than many a point
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def warm_up(clock: Clock, prepare: Call, call: Call, seconds: float) -> int:
    """Call until ``seconds`` have passed, at least twice unless one call takes longer; how often.

    The first call pays for lazy initialisation, page faults and thread pools.
    """
    start, calls = clock.now_s(), 0
    while calls == 0 or clock.now_s() - start < seconds:
        prepare()
        call()
        clock.settle()
        calls += 1
    return calls


def sample(clock: Clock, prepare: Call, call: Call, budget: Budget) -> list[float]:
    """Raw times in seconds within a budget, garbage collection off."""
    found: list[float] = []
    most = ENOUGH * budget.samples
    with _no_garbage_collection():
        warm_up(clock, prepare, call, budget.warmup_s)
        start = clock.now_s()
        while len(found) < most:
            found += clock.times(prepare, call, _next_round(found, budget, most))
            spent = clock.now_s() - start
            if spent >= budget.max_time_s and len(found) >= budget.least:
                break
            if spent >= budget.min_time_s and len(found) >= budget.samples:
                break
    return found


def _next_round(found: list[float], budget: Budget, most: int) -> int:
    """One call at first; then what a tenth of the time left may hold, at most a round."""
    if not found:
        return 1
    share = budget.max_time_s / 10 / max(1e-9, *found)
    missing = budget.samples - len(found)
    return min(max(1, min(ROUND, int(share))), missing if missing > 0 else most - len(found))
