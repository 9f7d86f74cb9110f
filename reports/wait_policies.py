"""Times of layers by how OpenMP's threads wait, beside a plain loop; writes wait_policies.md.

    python reports/wait_policies.py [ROUNDS]

Every policy and number of threads has a process of its own, which they take in turns for ROUNDS
(default 3) rounds. In each, a layer is timed as ``profile`` times it, and by torch.utils.benchmark.
``two at once`` is the same while another process of two threads multiplies, as when two sides of a
race share two cores.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from attnprof.measure.environment import cpu_model

HERE = Path(__file__)
POLICIES, THREADS = ("default", "passive", "active"), (1, 2)
NAMES = ("standard", "sdpa", "linear", "performer", "nystromformer", "taylor-efficient")
#: Tokens, heads and head width of every layer.
SHAPE = 1536, 6, 64


def timed(threads_asked: int) -> dict[str, tuple[float, float]]:
    """Seconds of each layer, by our clock and by torch's benchmark, in this process."""
    import torch
    from torch.utils.benchmark import Timer

    from attnprof.measure.clocks import KEPT, Clock, sample, threads
    from attnprof.measure.request import Budget, PointRequest
    from attnprof.measure.statistics import estimate_median
    from attnprof.measure.subject import build_subject

    torch.empty(KEPT, dtype=torch.uint8)
    found = {}
    budget = Budget(samples=15, min_time_s=0.3, max_time_s=1.5)
    for name in NAMES:
        subject = build_subject(PointRequest(name, *SHAPE, threads=threads_asked))
        timer = Timer("call()", globals={"call": subject.call}, num_threads=threads_asked)
        with threads(threads_asked):
            taken = sample(Clock(), subject.prepare, subject.call, budget)
        ours = estimate_median([one.wall_s for one in taken]).median_s
        found[name] = ours, timer.blocked_autorange(min_run_time=0.5).median
    return found


def run(policy: str, threads_asked: int) -> dict[str, tuple[float, float]]:
    """The same in a process with a policy."""
    usual = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
    chosen = {} if policy == "default" else {"OMP_WAIT_POLICY": policy.upper()}
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, str(HERE), "--child", str(threads_asked)],
        env={**usual, **chosen}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name: tuple(both) for name, both in json.loads(done.stdout).items()}


BUSY = """
import torch
x = torch.randn(1024, 1024)
while True:
    x @ x
"""


def busy(policy: str) -> dict[str, tuple[float, float]]:
    """The same with two threads while another process uses both processors."""
    other = subprocess.Popen([sys.executable, "-c", BUSY])  # noqa: S603 - the lines above
    try:
        time.sleep(3)
        return run(policy, 2)
    finally:
        other.kill()


def main() -> None:
    """Measure in turns and write the page."""
    if sys.argv[1:2] == ["--child"]:
        sys.stdout.write(json.dumps(timed(int(sys.argv[2]))))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    columns: dict[tuple[str, str], list[dict[str, tuple[float, float]]]] = defaultdict(list)
    for _ in range(rounds):
        for policy in POLICIES:
            for count in THREADS:
                columns[f"{count} thread{'s' * (count > 1)}", policy].append(run(policy, count))
            columns["two at once", policy].append(busy(policy))
    HERE.with_suffix(".md").write_text(page(columns, rounds), encoding="utf-8")


def page(columns: dict, rounds: int) -> str:
    """The tables."""
    import torch

    made = (
        f"Written by `python reports/wait_policies.py`: {cpu_model()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}; layers of {SHAPE[0]:,} "
        f"tokens, {SHAPE[1]} heads of {SHAPE[2]}, float32; medians of {rounds} processes each, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Milliseconds as `profile` times them, in "
        "parentheses as torch.utils.benchmark does."
    )
    lines = ["# How threads wait", "", made, ""]
    for situation in dict.fromkeys(name for name, _ in columns):
        lines += [
            f"## {situation}",
            "",
            f"| mechanism | {' | '.join(POLICIES)} |",
            "|---|" + "---|" * len(POLICIES),
        ]
        for name in NAMES:
            cells = []
            for policy in POLICIES:
                ours, theirs = (
                    median(found[name][which] for found in columns[situation, policy]) * 1e3
                    for which in (0, 1)
                )
                cells.append(f"{ours:.1f} ({theirs:.1f})")
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
