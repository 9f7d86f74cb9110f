"""Time and memory of recent mechanisms against the texts that their authors publish for a CPU.

Both sides run in one process, at the same shapes, in turns of random order; a ratio is ours /
theirs: of thread CPU time on one thread, of wall-clock time on two. fla's functions are read by
the paths of their files. Into an environment that has attnprof and torch::

    pip install --no-deps fla-core==0.6.0 einops==0.8.2 transformers==5.23
    python reports/run.py speed/public_texts
    python reports/run.py speed/public_texts mla --set SECONDS=5.0
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, thread_time

from rows import grouped, table
from speed.implementation_cases import BATCH, HEADS, WIDTH
from speed.implementations import PHASES, peak_bytes, prepared, timed
from speed.public_text_cases import cases as listed

PACKAGES = ("torch", "transformers", "fla-core")
LENGTHS, THREADS_OF = (512, 1024), (1, 2)
#: Seconds of a comparison.
SECONDS = 2.0
#: What the median over mechanisms is held against.
TARGET = 0.7


@dataclass(frozen=True)
class Row:
    """One comparison; times are seconds of one call, peaks bytes beyond what was live before."""

    mechanism: str
    reference: str
    settings: str
    threads: int
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


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.mechanism}, {row.threads} threads"


def cases() -> dict[str, tuple[str, int]]:
    """Return mechanism and threads of each case, by name."""
    pairs = [(case.mechanism, threads) for threads in THREADS_OF for case in listed()]
    return {f"{name}, {threads} threads": (name, threads) for name, threads in pairs}


def rows(_: str, asked: tuple[str, int]) -> Iterator[Row]:
    """Yield the comparisons of a case: both phases at each length."""
    import torch

    name, threads = asked
    torch.set_num_threads(threads)
    clock = thread_time if threads == 1 else perf_counter
    case = next(case for case in listed() if case.mechanism == name)
    for n in (n for n in LENGTHS if n <= case.longest):
        torch.manual_seed(0)
        random.seed(0)
        ours, reference, inputs = case.make(n)
        for phase in PHASES:
            calls = [prepared(side, inputs, phase) for side in (ours, reference)]
            peaks = [peak_bytes(call) for call in calls]
            times = timed(calls, SECONDS, clock)
            ratios = [a / b for a, b in zip(*times, strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            yield Row(
                name, case.reference, case.settings, threads, n, phase, len(ratios), middle, low,
                high, median(times[0]), median(times[1]), *peaks,
            )  # fmt: skip


def page(found: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Recent mechanisms against their public texts"
    yield (
        "Ratio of times, ours / theirs: below 1 is faster. float32, causal, d_model "
        f"{WIDTH}, {HEADS} heads, batch {BATCH}, in turns of random order. *forward* under "
        "inference mode, *train* = forward and the gradients of inputs and parameters. Thread CPU "
        "time on one thread, wall-clock time on two. The script says how to install the texts."
    )
    yield ""
    yield from summary(found)
    yield ""
    yield from by_mechanism(found)
    yield ""
    yield from by_pair(found)


def summary(found: list[Row]) -> Iterator[str]:
    """Yield the median over mechanisms of their medians, by phase and threads, and the slowest."""
    for (threads, phase), group in grouped(found, lambda row: (row.threads, row.phase)).items():
        medians = {
            name: median(row.ratio for row in some)
            for name, some in grouped(group, lambda row: row.mechanism).items()
        }
        above = sorted((x, name) for name, x in medians.items() if x > 1)
        slower = ", ".join(f"{name} {x:.2f}" for x, name in above) or "none"
        over_all = median(medians.values())
        verdict = "met" if over_all <= TARGET else "missed"
        yield (
            f"* {phase}, {threads} thread{'s' * (threads > 1)}: {over_all:.2f} at the median over "
            f"{len(medians)} comparisons ({TARGET}: {verdict}); slower: {slower}."
        )


def by_mechanism(found: list[Row]) -> Iterator[str]:
    """Yield the median and the largest ratio over lengths, and of peaks the largest."""
    parts = [(threads, phase) for threads in THREADS_OF for phase in PHASES]
    lines = []
    for group in grouped(found, lambda row: row.mechanism).values():
        cells = []
        for part in parts:
            ratios = [row.ratio for row in group if (row.threads, row.phase) == part]
            cells.append(f"{median(ratios):.2f} ({max(ratios):.2f})" if ratios else "")
        memory = max(row.own_peak_bytes / row.reference_peak_bytes for row in group)
        first = group[0]
        lines.append((first.mechanism, first.reference, first.settings, *cells, f"{memory:.2f}"))
    heads = " | ".join(f">{phase}, {threads}" for threads, phase in parts)
    yield "Median over lengths, and the largest in brackets, by phase and threads; memory: the"
    yield "largest ratio of peaks."
    yield ""
    yield from table(f"mechanism | text | settings | {heads} | >memory", lines)


def by_pair(found: list[Row]) -> Iterator[str]:
    """Yield all comparisons."""
    heads = (
        "mechanism | text | threads | tokens | phase | ratio | >ours, ms | >theirs, ms "
        "| >peak, ours → theirs, MiB | >pairs"
    )
    yield from table(
        heads,
        (
            (row.mechanism, row.reference, row.threads, row.seq_len, row.phase,
             f"{row.ratio:.2f} [{row.ratio_q1:.2f}, {row.ratio_q3:.2f}]",
             f"{row.own_s * 1e3:.1f}", f"{row.reference_s * 1e3:.1f}",
             f"{row.own_peak_bytes / 2**20:.1f} → {row.reference_peak_bytes / 2**20:.1f}",
             row.pairs)
            for row in found
        ),
    )  # fmt: skip
