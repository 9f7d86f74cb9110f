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
from types import SimpleNamespace
from typing import Any

BATCH, WIDTH, HEADS = 2, 256, 4
HEAD = WIDTH // HEADS
ALLOCATORS = {
    "default": {},
    "no mmap": {
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
    },
}
Pair = tuple[Callable[..., Any], Callable[..., Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """A mechanism and its reference; ``make(n)`` builds both and their inputs."""

    mechanism: str
    reference: str
    settings: str
    make: Callable[[int], Pair]
    target: float
    longest: int = 1 << 30


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
        f"{WIDTH}, {HEADS} heads, batch {BATCH}, one thread, interleaved pairs in random order, dropout 0, "
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


# -- the cases -------------------------------------------------------------------------------
def cases() -> list[Case]:
    """What is compared with what: the same parameters on both sides."""
    return [
        Case("performer", "performer-pytorch", "core, 266 features", performer(False), 1.05),
        Case("performer causal", "performer-pytorch", "core, 266 features", performer(True), 0.15,
             1024),
        Case("linformer", "linformer", "layer, proj_len 256, own maps", linformer, 1.05),
        Case("nystromformer", "nystrom-attention", "layer, 256 landmarks, no convolution",
             nystrom(None), 1.05),
        Case("nystromformer conv", "nystrom-attention", "layer, 256 landmarks, kernel 33",
             nystrom(33), 1.05),
        Case("nystromformer m=64", "transformers", "layer, 64 landmarks, no convolution",
             hf_nystrom(None), 1.05),
        Case("nystromformer m=64 conv", "transformers", "layer, 64 landmarks, kernel 65",
             hf_nystrom(65), 1.05),
        Case("longformer", "local-attention", "core, window 256 a side", local(False), 0.6),
        Case("longformer causal", "local-attention", "core, window 256 back", local(True), 0.6),
        Case("longformer layer", "transformers", "layer, window 256 a side", hf_longformer, 0.6),
        Case("sdpa", "nn.MultiheadAttention", "layer, no weights asked", multihead(False), 1.05),
        Case("standard", "nn.MultiheadAttention", "layer, weights asked", multihead(True), 1.05,
             2048),
    ]  # fmt: skip


def side(module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that knows whose parameters it uses."""

    def run(*inputs: Any) -> Any:
        return call(*inputs)

    run.module = module  # type: ignore[attr-defined]  # an attribute of a function
    return run


def layer(name: str, n: int, **params: Any) -> Any:
    """Our layer at the report's sizes."""
    import attnprof

    return attnprof.build(name, d_model=WIDTH, num_heads=HEADS, seq_len=n, **params)


def tokens(n: int) -> list[Any]:
    """The input of a layer."""
    import torch

    return [torch.randn(BATCH, n, WIDTH)]


def rows_of(n: int) -> list[Any]:
    """Queries, keys and values."""
    import torch

    return [torch.randn(BATCH, HEADS, n, HEAD) for _ in range(3)]


def performer(causal: bool) -> Callable[[int], Pair]:
    """FAVOR+ with the features of the reference's default: head_dim · ln(head_dim)."""

    def make(n: int) -> Pair:
        from performer_pytorch import FastAttention

        core = layer("performer", n, num_features=266).core
        theirs = FastAttention(HEAD, nb_features=266, causal=causal)
        return side(core, lambda q, k, v: core(q, k, v, causal)), theirs, rows_of(n)

    return make


def linformer(n: int) -> Pair:
    """Separate maps for keys and values on both sides."""
    from linformer import LinformerSelfAttention

    own = layer("linformer", n, proj_len=256, shared=False)
    return own, LinformerSelfAttention(WIDTH, n, k=256, heads=HEADS), tokens(n)


def nystrom(kernel: int | None) -> Callable[[int], Pair]:
    """Six iterations on both sides; lengths divide into the landmarks."""

    def make(n: int) -> Pair:
        from nystrom_attention import NystromAttention

        own = layer("nystromformer", n, num_landmarks=256, iterations=6, conv_kernel=kernel)
        theirs = NystromAttention(
            WIDTH, HEAD, HEADS, num_landmarks=256, residual=kernel is not None,
            residual_conv_kernel=kernel or 33,
        )  # fmt: skip
        return own, theirs, tokens(n)

    return make


def hf_nystrom(kernel: int | None) -> Callable[[int], Pair]:
    """The model's self-attention with an output map behind it, as ours has one."""

    def make(n: int) -> Pair:
        from torch import nn
        from transformers.models.nystromformer import modeling_nystromformer as source

        config = SimpleNamespace(
            hidden_size=WIDTH, num_attention_heads=HEADS, num_landmarks=64, conv_kernel_size=kernel,
            segment_means_seq_len=n, attention_probs_dropout_prob=0.0, inv_coeff_init_option=False,
        )  # fmt: skip
        theirs = nn.ModuleList([source.NystromformerSelfAttention(config), nn.Linear(WIDTH, WIDTH)])
        own = layer(
            "nystromformer", n, num_landmarks=64, iterations=6, conv_kernel=kernel, bias=True
        )
        return own, side(theirs, lambda x: theirs[1](theirs[0](x)[0])), tokens(n)

    return make


def local(causal: bool) -> Callable[[int], Pair]:
    """The exact window on both sides, no rotary embedding."""

    def make(n: int) -> Pair:
        from local_attention import LocalAttention

        theirs = LocalAttention(
            256, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False, dim=HEAD
        )
        core = layer("longformer", n, window=256).core
        return side(core, lambda q, k, v: core(q, k, v, causal)), theirs, rows_of(n)

    return make


def hf_longformer(n: int) -> Pair:
    """The model's self-attention without global tokens, and an output map behind it."""
    import torch
    from torch import nn
    from transformers.models.longformer import modeling_longformer as source

    config = SimpleNamespace(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[512],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    attention = source.LongformerSelfAttention(config, 0)
    for name in ("query_global", "key_global", "value_global"):
        delattr(attention, name)  # unused without global tokens
    theirs = nn.ModuleList([attention, nn.Linear(WIDTH, WIDTH)])
    mask = torch.zeros(BATCH, n)

    def run(x: Any) -> Any:
        found = attention(
            x, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0,
            is_global_attn=False,
        )  # fmt: skip
        return theirs[1](found[0])

    return layer("longformer", n, window=256, bias=True), side(theirs, run), tokens(n)


def multihead(weights: bool) -> Callable[[int], Pair]:
    """Training mode: no fast path, which fuses whole layers in eval only."""

    def make(n: int) -> Pair:
        from torch import nn

        theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).train()

        def run(x: Any) -> Any:
            return theirs(x, x, x, need_weights=weights, average_attn_weights=False)[0]

        own = layer("standard" if weights else "sdpa", n, bias=True)
        return own, side(theirs, run), tokens(n)

    return make


if __name__ == "__main__":
    main()
