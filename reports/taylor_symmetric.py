"""Efficient TaylorShift: symmetric features against the document's boxed ones.

One thread, thread CPU time, the two forms in turns; memory is the closed form's peak, which the
tests hold against the allocator. Writes taylor_symmetric.md beside itself.

Run: python reports/taylor_symmetric.py
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch  # noqa: TID253 - a script that measures, never imported

import attnprof
from attnprof import Workload

SEQ_LEN, HEADS, BATCH, ROUNDS = 2048, 4, 1, 9
IMPLS = ("boxed", "symmetric")
NAME = "taylor-efficient"


def seconds(qkv: list[torch.Tensor], impl: str, causal: bool, train: bool) -> float:
    """Thread CPU seconds of one call of the core."""
    start = time.thread_time()
    with torch.set_grad_enabled(train):
        y = attnprof.attend(NAME, *qkv, causal=causal, impl=impl)
    if train:
        torch.autograd.grad(y, qkv, torch.ones_like(y))
    return time.thread_time() - start


def row(d: int, causal: bool, train: bool) -> str:
    """One line of the table: medians, quartiles of the paired ratios, peaks."""
    torch.manual_seed(0)
    qkv = [torch.randn(BATCH, HEADS, SEQ_LEN, d, requires_grad=train) for _ in range(3)]
    pairs = [[seconds(qkv, impl, causal, train) for impl in IMPLS] for _ in range(ROUNDS + 1)][1:]
    boxed, symmetric = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    phase = "train" if train else "forward"
    w = Workload(SEQ_LEN, HEADS, d, BATCH, causal=causal, phase=phase)
    held = [attnprof.cost(NAME, w, "core", impl=impl).peak() / 2**20 for impl in IMPLS]
    mask = "yes" if causal else "no"
    return (
        f"| {d} | {mask} | {phase} | {boxed:.1f} | {symmetric:.1f} | "
        f"{middle:.2f} ({low:.2f}-{high:.2f}) | {held[0]:.0f} | {held[1]:.0f} |"
    )


def main() -> None:
    """Measure and write the table."""
    torch.set_num_threads(1)
    lines = [
        "# Efficient TaylorShift: symmetric features against boxed ones",
        "",
        (
            f"N = {SEQ_LEN}, {HEADS} heads, batch {BATCH}, float32, core, one CPU thread, thread "
            f"CPU time, {ROUNDS} interleaved pairs after one to warm up, the default C allocator, "
            f"torch {torch.__version__}. By `python reports/taylor_symmetric.py`."
        ),
        "",
        "| d | causal | phase | boxed ms | symmetric ms | ratio (quartiles) | boxed MiB | symmetric MiB |",  # noqa: E501 - one line a row
        "|--:|---|---|--:|--:|---|--:|--:|",
    ]
    for d in (64, 32, 16):
        lines += [row(d, causal, train) for causal in (False, True) for train in (False, True)]
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
