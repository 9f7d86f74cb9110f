"""Times of layers by how OpenMP's threads wait, beside a plain loop.

Every policy and number of threads has a process of its own, which they take in turns for ROUNDS
rounds. In each, a layer is timed as ``profile`` times it, and by torch.utils.benchmark. ``two at
once`` is the same while another process of two threads multiplies, as when two sides of a race
share two cores::

    python reports/run.py speed/wait_policies --all --set ROUNDS=3
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median

from rows import fresh, grouped, table

POLICIES = ("default", "passive", "active")
NAMES = ("standard", "sdpa", "linear", "performer", "nystromformer", "taylor-efficient")
#: Tokens, heads and head width of every layer.
SHAPE = 1536, 6, 64
ROUNDS, TWO = 1, "two at once"
SITUATIONS = ("1 thread", "2 threads", TWO)
BUSY = """
import torch
x = torch.randn(1024, 1024)
while True:
    x @ x
"""


@dataclass(frozen=True)
class Row:
    """Seconds of a layer in one process, by our clock and by torch's benchmark."""

    round: int
    situation: str
    policy: str
    mechanism: str
    ours_s: float
    torch_s: float


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.situation}, {row.policy}, {row.round}"


def cases() -> dict[str, tuple[int, str, str]]:
    """Return round, situation and policy of each process, by name."""
    listed = product(range(ROUNDS), POLICIES, SITUATIONS)
    return {f"{where}, {policy}, {turn}": (turn, where, policy) for turn, policy, where in listed}


def rows(_: str, case: tuple[int, str, str]) -> Iterator[Row]:
    """Yield each layer's times in a process with a policy."""
    turn, situation, policy = case
    count = 1 if situation == "1 thread" else 2
    other = None
    if situation == TWO:
        other = subprocess.Popen([sys.executable, "-c", BUSY])  # noqa: S603 - the lines above
        time.sleep(3)
    try:
        chosen = None if policy == "default" else policy.upper()
        times = fresh(timed, count, OMP_WAIT_POLICY=chosen)
    finally:
        if other:
            other.kill()
    for mechanism, (ours, theirs) in times.items():
        yield Row(turn, situation, policy, mechanism, ours, theirs)


def timed(threads_asked: int) -> dict[str, tuple[float, float]]:
    """Return seconds of each layer, by our clock and by torch's benchmark, in this process."""
    import torch
    from torch.utils.benchmark import Timer

    from attnprof.measure.allocator import KEPT
    from attnprof.measure.clocks import Clock, sample, threads
    from attnprof.measure.request import Budget, PointRequest
    from attnprof.measure.statistics import estimate_median
    from attnprof.measure.subject import build_subject

    torch.empty(KEPT, dtype=torch.uint8)
    times = {}
    budget = Budget(samples=15, min_time_s=0.3, max_time_s=1.5)
    for name in NAMES:
        subject = build_subject(PointRequest(name, *SHAPE, threads=threads_asked))
        timer = Timer("call()", globals={"call": subject.call}, num_threads=threads_asked)
        with threads(threads_asked):
            samples = sample(Clock(), subject.prepare, subject.call, budget)
        ours = estimate_median([one.wall_s for one in samples]).median_s
        times[name] = ours, timer.blocked_autorange(min_run_time=0.5).median
    return times


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# How threads wait"
    yield (
        f"Layers of {SHAPE[0]:,} tokens, {SHAPE[1]} heads of {SHAPE[2]}, float32; medians of "
        f"{len({row.round for row in rows})} processes each. Milliseconds as `profile` times them, "
        "in parentheses as torch.utils.benchmark does."
    )
    cells = grouped(rows, lambda row: (row.situation, row.mechanism, row.policy))
    for situation in SITUATIONS:
        yield from ("", f"## {situation}", "")
        lines = []
        for name in NAMES:
            some = [cells[situation, name, policy] for policy in POLICIES]
            lines.append([f"`{name}`", *map(_cell, some)])
        yield from table(" | ".join(("mechanism", *POLICIES)), lines)


def _cell(rows: list[Row]) -> str:
    ours, theirs = median(row.ours_s for row in rows), median(row.torch_s for row in rows)
    return f"{1e3 * ours:.1f} ({1e3 * theirs:.1f})"
