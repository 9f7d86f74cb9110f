"""Efficient TaylorShift: symmetric features against the document's boxed ones.

One thread, thread CPU time, the two forms in turns; memory is the closed form's peak, which the
tests hold against the allocator::

    python reports/run.py speed/symmetric_features
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from rows import table

import attnprof
from attnprof import Workload

SEQ_LEN, HEADS, BATCH, ROUNDS = 2048, 4, 1, 9
IMPLS = ("boxed", "symmetric")
NAME = "taylor-efficient"


@dataclass(frozen=True)
class Row:
    """Both forms at a head width: medians, quartiles of the paired ratios, peaks."""

    head_dim: int
    causal: bool
    phase: str
    boxed_ms: float
    symmetric_ms: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    boxed_mib: float
    symmetric_mib: float


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"d={row.head_dim}{' causal' * row.causal}, {row.phase}"


def cases() -> dict[str, tuple[int, bool, str]]:
    """Return head width, mask and phase of each case, by name."""
    listed = product((64, 32, 16), (False, True), ("forward", "train"))
    return {
        f"d={d}{' causal' * causal}, {phase}": (d, causal, phase) for d, causal, phase in listed
    }


def seconds(qkv: list[Any], impl: str, causal: bool, train: bool) -> float:
    """Return thread CPU seconds of one call of the core."""
    import torch

    start = time.thread_time()
    with torch.set_grad_enabled(train):
        y = attnprof.attend(NAME, *qkv, causal=causal, impl=impl)
    if train:
        torch.autograd.grad(y, qkv, torch.ones_like(y))
    return time.thread_time() - start


def rows(_: str, case: tuple[int, bool, str]) -> Iterator[Row]:
    """Yield the row of a case; the first pair warms up."""
    import torch

    d, causal, phase = case
    train = phase == "train"
    torch.manual_seed(0)
    qkv = [torch.randn(BATCH, HEADS, SEQ_LEN, d, requires_grad=train) for _ in range(3)]
    pairs = [[seconds(qkv, impl, causal, train) for impl in IMPLS] for _ in range(ROUNDS + 1)][1:]
    boxed, symmetric = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    w = Workload(SEQ_LEN, HEADS, d, BATCH, causal=causal, phase=phase)
    peaks = [attnprof.cost(NAME, w, "core", impl=impl).peak() / 2**20 for impl in IMPLS]
    yield Row(d, causal, phase, boxed, symmetric, middle, low, high, *peaks)


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Efficient TaylorShift: symmetric features against boxed ones"
    yield (
        f"N = {SEQ_LEN}, {HEADS} heads, batch {BATCH}, float32, core, one CPU thread, thread CPU "
        f"time, {ROUNDS} interleaved pairs after one to warm up, the default C allocator."
    )
    yield ""
    yield from table(
        ">d | causal | phase | >boxed ms | >symmetric ms | ratio (quartiles) | >boxed MiB "
        "| >symmetric MiB",
        (
            (r.head_dim, "yes" if r.causal else "no", r.phase, f"{r.boxed_ms:.1f}",
             f"{r.symmetric_ms:.1f}", f"{r.ratio:.2f} ({r.ratio_q1:.2f}-{r.ratio_q3:.2f})",
             f"{r.boxed_mib:.0f}", f"{r.symmetric_mib:.0f}")
            for r in rows
        ),
    )  # fmt: skip
