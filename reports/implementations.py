"""Time and memory of attnprof's mechanisms against the public implementation of each.

Both sides run in one process on one thread, at the same shapes and weights' sizes, in pairs of
random order; a ratio is ours / reference in thread CPU time, below 1 is faster. Peaks are those
of torch's CPU allocator. Everything is done twice: with glibc's default allocator, and with one
that neither maps large blocks nor gives memory back (the script starts itself again for that).

The references are no dependencies of attnprof. Into an environment that has attnprof and torch::

    pip install --no-deps performer-pytorch==1.1.4 linformer==0.2.3 nystrom-attention==0.0.14 \
        local-attention==1.11.2 reformer-pytorch==1.4.4 transformers==5.23
    pip install einops axial-positional-embedding colt5-attention product-key-memory \
        hyper-connections tokenizers huggingface_hub safetensors regex
    python reports/implementations.py            # writes implementations.md and .csv beside it
    python reports/implementations.py --only longformer "longformer causal" --again

A row is appended to the CSV as soon as it is measured; the next run measures what is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

from implementations_cases import Case, Pair, cases
from implementations_tables import ALLOCATORS, Row, append, report, rewrite, saved

PHASES = ("forward", "train")
#: Pairs of a comparison at least, however slow they are.
FEWEST = 5


def main() -> None:
    """Measure what the CSV lacks, with both allocators, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--seconds", type=float, default=3.0, help="least seconds of a comparison")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cases with these names alone")
    parser.add_argument("--again", action="store_true", help="measure what stands in the CSV anew")
    parser.add_argument("--output", default=str(Path(__file__).with_suffix(".md")))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    table = Path(asked.output).with_suffix(".csv")
    names = [case.mechanism for case in cases()]
    if unknown := set(asked.only or ()) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}: possible: {', '.join(names)}")
    if asked.worker:
        for row in measured(asked, {row.key for row in saved(table)}):
            append(table, row)
        return
    if asked.again:
        chosen = asked.only or names
        keep = [r for r in saved(table) if r.mechanism not in chosen]
        rewrite(table, keep)
    for allocator in ALLOCATORS:
        started(allocator, asked)
    rewrite(table, saved(table))
    Path(asked.output).write_text(report(saved(table)))


def started(allocator: str, asked: argparse.Namespace) -> None:
    """A process of its own: the C library reads its settings when it starts."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ATTNPROF_ALLOCATOR": allocator}
    command = [sys.executable, __file__, "--worker", "--output", asked.output]
    command += ["--only", *asked.only] if asked.only else []
    command += ["--seconds", str(asked.seconds), "--lengths", *map(str, asked.lengths)]
    environment = {**os.environ, **threads, **ALLOCATORS[allocator]}
    subprocess.run(command, check=True, env=environment)  # noqa: S603 - our own command line


# -- measuring -------------------------------------------------------------------------------
def measured(asked: argparse.Namespace, known: set[tuple[str, int, str, str]]) -> Iterator[Row]:
    """Every case, length and phase that is not known, own and reference in random order."""
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    allocator = os.environ["ATTNPROF_ALLOCATOR"]
    for case in cases():
        if asked.only and case.mechanism not in asked.only:
            continue
        for n in (n for n in asked.lengths if n <= case.longest):
            phases = [p for p in PHASES if (case.mechanism, n, p, allocator) not in known]
            if not phases:
                continue
            torch.manual_seed(0)
            pair = case.make(n)
            for phase in phases:
                row = compared(case, n, phase, pair, asked.seconds)
                sys.stderr.write(f"{allocator}, {case.mechanism} {n} {phase}: {row.ratio:.3f}\n")
                yield row


def compared(case: Case, n: int, phase: str, pair: Pair, seconds: float) -> Row:
    """Ratios of interleaved pairs until the seconds are spent, five pairs at least."""
    calls = [prepared(side, pair[2], phase) for side in pair[:2]]
    peaks = [peak_bytes(call) for call in calls]
    times: list[list[float]] = [[], []]
    spent = perf_counter()
    while len(times[0]) < FEWEST or (perf_counter() - spent < seconds and len(times[0]) < 200):
        for side in random.sample((0, 1), 2):
            start = thread_time()
            calls[side]()
            times[side].append(thread_time() - start)
    ratios = [own / reference for own, reference in zip(*times, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return Row(
        case.mechanism, case.reference, case.settings, n, phase, os.environ["ATTNPROF_ALLOCATOR"],
        len(ratios), middle, low, high, median(times[0]), median(times[1]), *peaks, case.target,
    )  # fmt: skip


def prepared(side: Callable[..., Any], inputs: list[Any], phase: str) -> Callable[[], Any]:
    """A call without arguments: forward alone, or forward and the gradients of everything."""
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
    call()
    call()
    return call


def peak_bytes(call: Callable[[], Any]) -> int:
    """Largest sum of live allocations during a call, from the profiler's memory events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    events = found.profiler.kineto_results.events()
    steps = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = peak = 0
    for _, size in steps:
        live += size
        peak = max(peak, live)
    return peak


if __name__ == "__main__":
    main()
