"""A prompt of 131,072 tokens through each mechanism of linear time, forward and in training.

A layer, one sample, on two threads; each run in a process of its own, whose largest resident
memory beyond what it had before is told, at half the length, too: twice as much is linear::

    python reports/run.py speed/long_prompts
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from rows import grouped, table
from speed.compared import PHASES, prepared
from speed.implementation_cases import HEADS, WIDTH, side

THREADS = 2
TOKENS = 131_072
NAMES = (
    "gated-deltanet", "kimi-delta", "mamba2", "retnet", "lightning", "gla", "sliding-window",
    "linear",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One run: seconds, and the most resident memory beyond that of the layer and its input."""

    mechanism: str
    phase: str
    seq_len: int
    seconds: float
    peak_bytes: int


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.mechanism}, {row.phase}, {row.seq_len} tokens"


def cases() -> dict[str, tuple[str, str, int]]:
    """Return mechanism, phase and tokens of each case, by name."""
    every = [(x, phase, n) for x in NAMES for phase in PHASES for n in (TOKENS // 2, TOKENS)]
    return {f"{name}, {phase}, {n} tokens": (name, phase, n) for name, phase, n in every}


def rows(_: str, case: tuple[str, str, int]) -> Iterator[Row]:
    """Yield the run of a case, after one of few tokens."""
    import torch

    import attnprof

    name, phase, n = case
    torch.manual_seed(0)
    layer = attnprof.build(name, WIDTH, HEADS)
    call = side(layer, lambda x: layer(x, causal=True))
    prepared(call, [torch.randn(1, 512, WIDTH)], phase)()  # what is set up once
    whole = prepared(call, [torch.randn(1, n, WIDTH)], phase, warm=0)
    before, start = resident(), perf_counter()
    whole()
    yield Row(name, phase, n, perf_counter() - start, resident() - before)


def resident() -> int:
    """Return the most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# A prompt of 131,072 tokens on two cores"
    yield (
        f"float32, causal, one sample, d_model {WIDTH}, {HEADS} heads, two threads. *train* = "
        "forward and the gradients of inputs and parameters. *growth*: memory over that of half "
        "the tokens, 2 is linear. Memory is resident, beyond that of the layer and its input."
    )
    yield ""
    lines = []
    for (mechanism, phase), group in grouped(rows, lambda r: (r.mechanism, r.phase)).items():
        half, whole = sorted(group, key=lambda row: row.seq_len)
        lines.append((
            mechanism, phase, f"{whole.seconds:.1f}", f"{whole.seconds / half.seconds:.2f}",
            f"{whole.peak_bytes / 2**20:,.0f}", f"{whole.peak_bytes / half.peak_bytes:.2f}",
        ))  # fmt: skip
    yield from table("mechanism | phase | >s | >growth | >MiB | >growth", lines)
