"""Time and memory of attnprof's mechanisms against the public implementation of each.

Both sides run in one process on one thread, at the same shapes and weights' sizes, in pairs of
random order; a ratio is ours / reference in thread CPU time, below 1 is faster. Peaks are those
of torch's CPU allocator. Everything is done twice: with glibc's default allocator, and with one
that neither maps large blocks nor gives memory back (each in a process with its settings).

The references are no dependencies of attnprof. Into an environment that has attnprof and torch::

    pip install --no-deps performer-pytorch==1.1.4 linformer==0.2.3 nystrom-attention==0.0.14 \
        local-attention==1.11.2 reformer-pytorch==1.4.4 transformers==5.23
    pip install einops axial-positional-embedding colt5-attention product-key-memory \
        hyper-connections tokenizers huggingface_hub safetensors regex
    python reports/run.py speed/implementations
    python reports/run.py speed/implementations longformer --set SECONDS=10.0
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import product
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

from rows import fresh
from speed import implementation_cases as listed
from speed.implementation_tables import ALLOCATORS, PHASES, Row, page

__all__ = ["Row", "page"]
PACKAGES = (
    "torch", "performer-pytorch", "linformer", "nystrom-attention", "local-attention",
    "reformer-pytorch", "transformers",
)  # fmt: skip
LENGTHS = (512, 2048, 4096)
#: Least seconds of a comparison, and its least pairs, however slow they are.
SECONDS, FEWEST = 3.0, 5


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.mechanism}, {row.seq_len} tokens, {row.allocator}"


def cases() -> dict[str, tuple[str, int, str]]:
    """Return mechanism, length and allocator of each case, by name."""
    asked = [
        (case.mechanism, n, allocator)
        for allocator, case, n in product(ALLOCATORS, listed.cases(), LENGTHS)
        if n <= case.longest
    ]
    return {
        f"{name}, {n} tokens, {allocator}": (name, n, allocator) for name, n, allocator in asked
    }


def rows(_: str, case: tuple[str, int, str]) -> Iterator[Row]:
    """Yield both phases; the C library reads its settings when a process starts."""
    name, n, allocator = case
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    times = fresh(measured, name, n, allocator, SECONDS, **threads, **ALLOCATORS[allocator])
    for values in times:
        yield Row(*values)


# -- measuring -------------------------------------------------------------------------------
def measured(name: str, n: int, allocator: str, seconds: float) -> list[tuple[Any, ...]]:
    """Return the fields of the rows of a case, own and reference in random order."""
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    case = next(case for case in listed.cases() if case.mechanism == name)
    pair = case.make(n)
    return [astuple(compared(case, n, phase, allocator, pair, seconds)) for phase in PHASES]


def compared(
    case: listed.Case, n: int, phase: str, allocator: str, pair: listed.Pair, seconds: float
) -> Row:
    """Ratios of interleaved pairs until the seconds are spent, five pairs at least."""
    calls = [prepared(side, pair[2], phase) for side in pair[:2]]
    peaks = [peak_bytes(call) for call in calls]
    times = timed(calls, seconds, thread_time)
    ratios = [ours / reference for ours, reference in zip(*times, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return Row(
        case.mechanism, case.reference, case.settings, n, phase, allocator,
        len(ratios), middle, low, high, median(times[0]), median(times[1]), *peaks, case.target,
    )  # fmt: skip


def timed(
    calls: list[Callable[[], Any]], seconds: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Return the times of two calls by a clock, in turns of random order, as often in each."""
    times: list[list[float]] = [[], []]
    spent = perf_counter()
    while len(times[0]) < FEWEST or (perf_counter() - spent < seconds and len(times[0]) < 200):
        for side in random.sample((0, 1), 2):
            start = clock()
            calls[side]()
            times[side].append(clock() - start)
    return times


def prepared(
    side: Callable[..., Any], inputs: list[Any], phase: str, warm: int = 2
) -> Callable[[], Any]:
    """A call without arguments: forward alone, or forward and the gradients of everything.

    It was made ``warm`` times.
    """
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
    """Largest sum of live allocations during a call, from the profiler's memory events."""
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
