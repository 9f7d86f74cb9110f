"""What approximations of softmax attention give up, and 003's experiment: tables and figures.

    python reports/tradeoff.py errors      # every mechanism on eight inputs: no times
    python reports/tradeoff.py times       # the same over measured time, on one input
    python reports/tradeoff.py distill     # 003's experiment, minutes, a process a seed
    python reports/tradeoff.py             # all of them

Each writes reports/tradeoff/PART.csv, .md and .png, and where it has several inputs a figure as
wide as a column. What each seed of the experiment gave is kept in distill-SEED.json, which is not
committed; the same command goes on from there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from attnprof.cli.app import main
from attnprof.papers.approximation.distillation import FULL
from attnprof.papers.approximation.distilled import merged
from attnprof.record import DistillRecord, Report, write_whole
from attnprof.record.recognition import written_by
from attnprof.render.formats import render, render_markdown
from attnprof.render.plots import plot_report

FOLDER = Path(__file__).with_suffix("")
#: What is typed for each part.
PARTS = {
    "errors": "attnprof tradeoff --heads 2 --norms sphere,spread --seeds 5 --no-time",
    "times": "attnprof tradeoff --input local --seq 2048 --heads 2 --over time --max-time 120",
    "distill": "attnprof tradeoff --distill",
}
#: Figures beside the page's, by the part and the size.
COLUMNS = {"errors": "column"}
HEADS = {
    "errors": "# How far mechanisms are from softmax attention, over their FLOPs",
    "times": "# How far mechanisms are from softmax attention, over measured time",
    "distill": "# 003's experiment: distillation from standard attention",
}
#: What a page shows of the settings that nothing beats.
SHOWN = (
    "mechanism", "params", "input", "norms", "relation", "seeds", "error_relative",
    "error_relative_low", "error_relative_high", "error_worst_row", "error_distribution", "flops",
    "peak_bytes", "median_s",
)  # fmt: skip


#: Of repetitions of the experiment, at the same time.
SEEDS = (0, 1)


def repeated() -> Report:
    """The experiment with every seed, each in a process of its own."""
    missing = [seed for seed in SEEDS if not _kept(seed).is_file()]
    words = [sys.executable, "-m", *shlex.split(PARTS["distill"]), "--format", "json"]
    orders = ([*words, "--seed", str(seed), "--output", str(_kept(seed))] for seed in missing)
    for run in [subprocess.Popen(order) for order in orders]:  # noqa: S603 - our own command
        run.wait()
    reports = [Report.load(_kept(seed)) for seed in SEEDS]
    rows = [row for report in reports for row in report.of(DistillRecord)]
    return merged(rows, FULL, reports[0].environment)


def _kept(seed: int) -> Path:
    return FOLDER / f"distill-{seed}.json"


def made(part: str) -> Report:
    """The report of a part's command."""
    if part == "distill":
        return repeated()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        with suppress(SystemExit):
            main([*shlex.split(PARTS[part])[1:], "--format", "json", "--output", str(path)])
        return Report.load(path)


def page(part: str, report: Report) -> str:
    """The command, the machine, what came out."""
    where, load = report.environment, os.getloadavg()
    made_by = (
        f"Made by `python reports/tradeoff.py {part}` on {where['device_name']} "
        f"({where['cores']} cores, of which {where['threads']} computed), torch {where['torch']}, "
        f"while other jobs ran: {load[0]:.1f} of them on average at the end. Times are processor "
        "time, which others change less than the wall clock's, but do change. All numbers are in "
        f"[{part}.csv]({part}.csv)."
    )
    figure = f"![The figure of these results]({part}.png)"
    lines = [HEADS[part], "", f"`{PARTS[part]}`", "", made_by, "", figure, ""]
    if part == "distill":
        lines += [f"Seeds {' and '.join(map(str, SEEDS))}.", "", render(report, "markdown")]
    else:
        best = [record for record in report.records if record.pareto]
        short = [replace(r, params=_told(r.mechanism, r.params)) for r in best]
        lines += [
            str(report.summary["answer"]), "",
            "Settings that no other one beats in both FLOPs and error, by input:", "",
            render_markdown(replace(report, records=short), SHOWN),
        ]  # fmt: skip
    return "\n".join([*lines, written_by("tradeoff"), ""])


def _told(name: str, params: dict[str, object]) -> dict[str, object]:
    """The parameters that are varied."""
    from attnprof import registry

    return {key: params[key] for key in registry.get(name).tuned}


def write(part: str) -> None:
    """A part's files."""
    FOLDER.mkdir(exist_ok=True)
    report = made(part)
    write_whole(FOLDER / f"{part}.csv", render(report, "csv"), known=True)
    write_whole(FOLDER / f"{part}.md", page(part, report), known=True)
    plot_report(report, FOLDER / f"{part}.png")
    if part in COLUMNS:
        plot_report(report, FOLDER / f"{part}-column.png", COLUMNS[part])


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PARTS:
        write(chosen)
