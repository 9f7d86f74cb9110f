"""Several calls timed in turns, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attnprof.measure.clocks import Clock, MonotonicClock, Sample, warm_up
from attnprof.measure.request import Budget
from attnprof.measure.running import threads
from attnprof.measure.subject import Subject


def processor_clock() -> MonotonicClock:
    """Processor time of this thread alone: what others do on the machine is not in it."""
    return MonotonicClock(now_ns=time.thread_time_ns)


#: The largest block that glibc learns to keep.
KEPT = 2**25 - 2**16


def settle_allocator() -> None:
    """Take and free one large block, so that small ones cost the same whatever ran before.

    glibc gives blocks back to the system, and takes fresh pages at the next call, above a size
    that grows with the largest block freed so far; it stops growing at 32 MiB.
    """
    import torch

    torch.empty(KEPT, dtype=torch.uint8)


def time_in_turns(
    subjects: Sequence[Subject], budget: Budget, clock: Clock | None = None
) -> list[list[float]]:
    """Seconds of every call, a list a subject; the n-th of each lie next to each other in time.

    One thread, processor time unless another clock is given. A round calls every subject once,
    every other round backwards; rounds follow until ``max_time_s`` is spent, at least ``least``
    and at most ``samples`` of them.
    """
    clock = clock or processor_clock()
    found: list[list[Sample]] = [[] for _ in subjects]
    pairs = list(zip(subjects, found, strict=True))
    with threads(1):
        settle_allocator()
        for subject in subjects:
            warm_up(clock, subject.prepare, subject.call, budget.warmup_s)
        start = clock.now_s()
        while len(found[0]) < budget.samples and not (
            len(found[0]) >= budget.least and clock.now_s() - start >= budget.max_time_s
        ):
            for subject, times in pairs:
                times.extend(clock.times(subject.prepare, subject.call, 1))
            pairs.reverse()
    return [[sample.wall_s for sample in times] for times in found]
