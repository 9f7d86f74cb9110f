"""CPU seconds of cold commands beside the imports they need; writes startup.md.

    python reports/startup.py [ROUNDS]

Every command runs in a fresh process; user and system time of the child, median of ROUNDS
(default 15) rounds in which all commands take turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
#: name, arguments of python, and what its CPU time is compared with
COMMANDS: list[tuple[str, list[str], str | None]] = [
    ("import typer, rich.table, sympy", ["-c", "import typer, rich.table, sympy"], None),
    (
        "import matplotlib.figure, matplotlib.backends.backend_agg",
        ["-c", "import matplotlib.figure, matplotlib.backends.backend_agg"],
        None,
    ),
    ("import torch", ["-c", "import torch"], None),
    ("attnprof --help", ["-m", "attnprof", "--help"], "import typer, rich.table, sympy"),
    ("attnprof list", ["-m", "attnprof", "list"], "import typer, rich.table, sympy"),
    (
        "attnprof crossover --d 64",
        ["-m", "attnprof", "crossover", "--d", "64"],
        "import typer, rich.table, sympy",
    ),
    (
        "attnprof cost --attention efficient --seq 4096",
        ["-m", "attnprof", "cost", "--attention", "efficient", "--seq", "4096"],
        "import typer, rich.table, sympy",
    ),
    (
        "attnprof compare --attention standard,efficient --seq 4096",
        ["-m", "attnprof", "compare", "--attention", "standard,efficient", "--seq", "4096"],
        "import typer, rich.table, sympy",
    ),
    (
        "attnprof heads --d-model 256 --seq 1025",
        ["-m", "attnprof", "heads", "--d-model", "256", "--seq", "1025"],
        "import typer, rich.table, sympy",
    ),
    (
        "attnprof heatmap --output heatmap.png",
        ["-m", "attnprof", "heatmap", "--output", "heatmap.png"],
        "import matplotlib.figure, matplotlib.backends.backend_agg",
    ),
]


def cpu_seconds(arguments: list[str], folder: str) -> float:
    """User and system seconds of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # noqa: S603 (the commands above)
        [sys.executable, *arguments], cwd=folder, check=True, capture_output=True, env=os.environ
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure all commands in turn and write the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name, _, _ in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, arguments, _ in COMMANDS:
                times[name].append(cpu_seconds(arguments, folder))
    lines = [
        "# Cold start",
        "",
        f"Median CPU seconds (user and system) of a fresh process, {rounds} rounds in turn, and",
        "the median of the round-by-round ratios to the imports a command cannot do without.",
        "Made by `python reports/startup.py`.",
        "",
        "| command | CPU s | lowest | ratio | to |",
        "|---|---:|---:|---:|---|",
    ]
    for name, _, base in COMMANDS:
        ratio = ""
        if base:
            pairs = zip(times[name], times[base], strict=True)
            ratio = f"{statistics.median(a / b for a, b in pairs):.2f}"
        row = f"{statistics.median(times[name]):.3f} | {min(times[name]):.3f}"
        lines.append(f"| `{name}` | {row} | {ratio} | {f'`{base}`' if base else ''} |")
    (HERE / "startup.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))  # noqa: T201 (a script)


main()
