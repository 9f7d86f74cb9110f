"""Ours and a public implementation in turns: one comparison, and the cells that tell it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

from speed.implementation_cases import BATCH, HEADS, WIDTH, Case

PHASES = ("forward", "train")
#: Least and most pairs of a comparison, however fast they are.
FEWEST, MOST = 5, 200
#: Sizes of both sides, for the head of a page.
SIZES = f"float32, d_model {WIDTH}, {HEADS} heads, batch {BATCH}"
#: What the two phases run, for the head of a page.
MEANING = (
    "*forward* under inference mode, *train* = forward and the gradients of inputs and parameters."
)
#: Columns of :func:`cells`.
COLUMNS = "ratio | >ours, ms | >theirs, ms | >peak, ours → theirs, MiB | >pairs"


@dataclass(frozen=True)
class Row:
    """One comparison; times are seconds of one call, peaks bytes beyond what was live before."""

    mechanism: str
    reference: str
    settings: str
    seq_len: int
    phase: str
    pairs: int
    ratio: float
    ratio_q1: float
    ratio_q3: float
    own_s: float
    reference_s: float
    own_peak_bytes: int
    reference_peak_bytes: int
    target: float = 1.0
    threads: int = 1
    allocator: str = "default"

    @property
    def memory(self) -> float:
        """Our peak over theirs."""
        return self.own_peak_bytes / self.reference_peak_bytes


def comparisons(
    case: Case, n: int, seconds: float, threads: int, allocator: str = "default"
) -> Iterator[Row]:
    """Yield both phases of a case at a length: thread CPU time of one thread, else wall-clock."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    random.seed(0)
    ours, theirs, inputs = case.make(n)
    for phase in PHASES:
        calls = [prepared(side, inputs, phase) for side in (ours, theirs)]
        peaks = [peak_bytes(call) for call in calls]
        times = timed(calls, seconds, thread_time if threads == 1 else perf_counter)
        ratios = [a / b for a, b in zip(*times, strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        yield Row(
            case.mechanism, case.reference, case.settings, n, phase, len(ratios), middle, low,
            high, *map(median, times), *peaks, case.target, threads, allocator,
        )  # fmt: skip


def timed(
    calls: list[Callable[[], Any]], seconds: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Return the times of two calls by a clock, in turns of random order, as often in each."""
    times: list[list[float]] = [[], []]
    start = perf_counter()
    while len(times[0]) < FEWEST or (perf_counter() - start < seconds and len(times[0]) < MOST):
        for side in random.sample((0, 1), 2):
            before = clock()
            calls[side]()
            times[side].append(clock() - before)
    return times


def prepared(
    side: Callable[..., Any], inputs: list[Any], phase: str, warm: int = 2
) -> Callable[[], Any]:
    """Return a call without arguments, made ``warm`` times: forward, or with all gradients."""
    import torch

    module = getattr(side, "module", side)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def forward() -> None:
        with torch.inference_mode():
            side(*inputs)

    def train() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = side(*leaves)
        torch.autograd.grad(out, [*leaves, *parameters], torch.ones_like(out), allow_unused=True)

    call = forward if phase == "forward" else train
    for _ in range(warm):
        call()
    return call


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the largest sum of live allocations during a call, from the profiler's events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = profiled.profiler.kineto_results.events()
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = peak = 0
    for _, size in steps:
        live += size
        peak = max(peak, live)
    return peak


def cells(row: Row) -> tuple[str, ...]:
    """Return the numbers of a comparison as text."""
    return (
        f"{row.ratio:.2f} [{row.ratio_q1:.2f}, {row.ratio_q3:.2f}]",
        f"{row.own_s * 1e3:.1f}", f"{row.reference_s * 1e3:.1f}",
        f"{row.own_peak_bytes / 2**20:.1f} → {row.reference_peak_bytes / 2**20:.1f}",
        str(row.pairs),
    )  # fmt: skip
