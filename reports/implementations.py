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
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

from implementations_cases import BATCH, HEADS, WIDTH, Case, Pair, cases

ALLOCATORS = {
    "default": {},
    "no mmap": {
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
    },
}


@dataclass(frozen=True)
class Row:
    """One comparison; times are seconds of one call, peaks bytes beyond what was live before."""

    mechanism: str
    reference: str
    settings: str
    seq_len: int
    phase: str
    allocator: str
    pairs: int
    ratio: float
    ratio_q1: float
    ratio_q3: float
    own_s: float
    reference_s: float
    own_peak_bytes: int
    reference_peak_bytes: int
    target: float


def main() -> None:
    """Measure with both allocators, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU seconds a comparison")
    parser.add_argument("--only", default="", help="mechanisms whose name contains this")
    parser.add_argument("--output", default=str(Path(__file__).with_suffix(".md")))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        found = [asdict(row) for row in measured(asked)]
        Path(asked.worker).write_text(json.dumps(found))
        return
    rows = [row for name in ALLOCATORS for row in started(name, asked)]
    output = Path(asked.output)
    with output.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(asdict(row).values() for row in rows)
    output.write_text(report(rows))


def started(allocator: str, asked: argparse.Namespace) -> list[Row]:
    """Rows of a process of its own: the C library reads its settings when it starts."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ATTNPROF_ALLOCATOR": allocator}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--worker", str(found), "--only", asked.only]
        command += ["--seconds", str(asked.seconds), "--lengths", *map(str, asked.lengths)]
        environment = {**os.environ, **threads, **ALLOCATORS[allocator]}
        subprocess.run(command, check=True, env=environment)  # noqa: S603 - our own command line
        return [Row(**row) for row in json.loads(found.read_text())]


# -- measuring -------------------------------------------------------------------------------
def measured(asked: argparse.Namespace) -> Iterator[Row]:
    """Every case, length and phase in random order of own and reference."""
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    for case in cases():
        if asked.only not in case.mechanism:
            continue
        for n in asked.lengths:
            if n > case.longest:
                continue
            torch.manual_seed(0)
            own, reference, inputs = case.make(n)
            for phase in ("forward", "train"):
                row = compared(case, n, phase, (own, reference, inputs), asked.seconds)
                sys.stderr.write(f"{case.mechanism} {n} {phase}: {row.ratio:.3f}\n")
                yield row


def compared(case: Case, n: int, phase: str, pair: Pair, seconds: float) -> Row:
    """Ratios of interleaved pairs until the CPU seconds are spent, seven pairs at least."""
    calls = [prepared(side, pair[2], phase) for side in pair[:2]]
    peaks = [peak_bytes(call) for call in calls]
    times: list[list[float]] = [[], []]
    spent = perf_counter()
    while len(times[0]) < 7 or (perf_counter() - spent < seconds and len(times[0]) < 200):
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


# -- the report ------------------------------------------------------------------------------
def report(rows: list[Row]) -> str:
    """The tables as Markdown."""
    names = ["torch", "performer-pytorch", "linformer", "nystrom-attention", "local-attention",
             "reformer-pytorch", "transformers"]  # fmt: skip
    found = ", ".join(f"{name} {version(name)}" for name in names)
    head = [
        "# attnprof against public implementations", "",
        (f"Ratio of thread CPU time, ours / reference: below 1 is faster. float32, d_model "
        f"{WIDTH}, {HEADS} heads, batch {BATCH}, one thread, pairs in random order, no dropout, "
        f"CPU {platform.machine()}; {found}."), "",
        ("Median, and first to third quartile in brackets; *forward* under inference mode, *train* "
        "= forward and the gradients of inputs and parameters. Memory: peak of the allocator. "
        "Written by `reports/implementations.py`, which says how to install the references; "
        "`implementations.csv` has all columns."), "",
    ]  # fmt: skip
    return "\n".join([*head, *summary(rows), *(x for a in ALLOCATORS for x in table(rows, a)), ""])


def summary(rows: list[Row]) -> list[str]:
    """One line a mechanism, medians over its lengths."""
    lines = ["## Medians over the lengths", "", "| mechanism | reference | target | "
             + " | ".join(f"{p}, {a}" for a in ALLOCATORS for p in ("forward", "train"))
             + " | most memory | |", "|---|---|---|" + "---|" * 6]  # fmt: skip
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.mechanism, row.reference), []).append(row)
    columns: list[list[float]] = [[], [], [], []]
    for (mechanism, reference), group in groups.items():
        cells = []
        parts = [(a, p) for a in ALLOCATORS for p in ("forward", "train")]
        for column, (allocator, phase) in zip(columns, parts, strict=True):
            some = [r.ratio for r in group if (r.allocator, r.phase) == (allocator, phase)]
            cells.append(median(some))
            column.append(median(some))
        memory = max(r.own_peak_bytes / r.reference_peak_bytes for r in group)
        target = group[0].target
        verdict = "met" if max(cells) <= target and memory <= 1 else "missed"
        figures = " | ".join(f"{c:.2f}" for c in cells)
        lines.append(
            f"| {mechanism} | {reference} | {target} | {figures} | {memory:.2f} | {verdict} |"
        )
    figures = " | ".join(f"{median(c):.2f}" for c in columns)
    slowest = max(rows, key=lambda r: r.ratio)
    return [
        *lines, f"| median over all | | 0.7 | {figures} | | |", "",
        (f"Slowest single comparison: {slowest.mechanism} against {slowest.reference}, "
        f"{slowest.seq_len} tokens, {slowest.phase}, {slowest.allocator}: {slowest.ratio:.2f}."),
        "",
    ]  # fmt: skip


def table(rows: list[Row], allocator: str) -> list[str]:
    """All comparisons with one allocator."""
    lines = [f"## Allocator: {allocator}", ""]
    setting = " ".join(f"{k}={v}" for k, v in ALLOCATORS[allocator].items())
    lines += [f"`{setting}`", ""] if setting else []
    lines += [("| mechanism (settings) | reference | tokens | phase | ratio | ours, ms | "
              "reference, ms | peak, ours → reference, MiB | pairs |"),
              "|" + "---|" * 9]  # fmt: skip
    for r in (r for r in rows if r.allocator == allocator):
        own, other = r.own_peak_bytes / 2**20, r.reference_peak_bytes / 2**20
        lines.append(
            f"| {r.mechanism} ({r.settings}) | {r.reference} | {r.seq_len} | {r.phase} "
            f"| {r.ratio:.2f} [{r.ratio_q1:.2f}, {r.ratio_q3:.2f}] | {r.own_s * 1e3:.1f} "
            f"| {r.reference_s * 1e3:.1f} | {own:.1f} → {other:.1f} | {r.pairs} |"
        )
    return [*lines, ""]


if __name__ == "__main__":
    main()
