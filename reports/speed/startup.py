"""Processor time of every command's start, beside the imports it cannot do without.

    python reports/run.py speed/startup [ROUNDS]

Writes startup.md. Every command runs in a fresh process, after one that is not counted and leaves
compiled modules behind; all commands take turns, in ROUNDS (default 7) rounds. The least of a
command's processor times, user and system, is the least disturbed by what else the machine does.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from attnprof.cli.program import COMMANDS

HERE = Path(__file__).parent
#: What ratios are to, and what some commands import besides.
BASE = "import typer, rich.table"
IMPORTS = (
    BASE,
    "import typer, rich.table, typer.rich_utils",
    "import sympy",
    "import matplotlib.figure, matplotlib.backends.backend_agg",
    "import torch",
)
#: Commands that answer from formulas.
ANSWERS = (
    "list",
    "cost --attention efficient --seq 4096",
    "compare --attention standard,efficient --seq 4096",
    "crossover --d 64",
    "heads --d-model 256 --seq 1025",
    "heatmap --output heatmap.png",
)


def runs() -> dict[str, list[str]]:
    """Return the arguments of Python by the name of each row, in the table's order."""
    helps = ["--help", *(f"{name} --help" for name in COMMANDS)]
    imports = {text: ["-c", text] for text in IMPORTS}
    texts = {f"attnprof {text}": text.split() for text in (*helps, *ANSWERS)}
    return imports | {name: ["-m", "attnprof", *words] for name, words in texts.items()}


def cpu_seconds(arguments: list[str], folder: str) -> float:
    """Return user and system seconds of one child process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # noqa: S603 (the commands above)
        [sys.executable, *arguments], cwd=folder, check=True, capture_output=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measure all commands in turn and write the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    commands = runs()
    times: dict[str, list[float]] = {name: [] for name in commands}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for count in range(rounds + 1):
            for name, arguments in commands.items():
                spent = cpu_seconds(arguments, folder)
                times[name] += [spent] if count else []
    least = min(times[BASE])
    lines = [
        "# Start of every command",
        "",
        "Processor seconds (user and system) of a fresh process: the least and the median of",
        f"{rounds} rounds in which all rows take turns, and the ratio of the least to that of",
        f"`{BASE}`. Made by `python reports/run.py speed/startup`.",
        "",
        f"{rounds} samples a row are few, and other work ran on the machine,",
        f"{os.cpu_count()} cores with a load of {load:.1f} at the start. Processor time does not",
        "count waiting, but rises where caches are shared: a tenth in a ratio says nothing.",
        "",
        "| process | least s | median s | ratio |",
        "|---|---:|---:|---:|",
    ]
    for name, spent in times.items():
        middle = sorted(spent)[len(spent) // 2]
        lines.append(f"| `{name}` | {min(spent):.3f} | {middle:.3f} | {min(spent) / least:.2f} |")
    (HERE / "startup.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))  # noqa: T201 (a script)
