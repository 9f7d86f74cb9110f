"""What approximations of softmax attention give up, and 003's experiment: tables and figures.

    python reports/run.py tradeoff/pages errors      # every mechanism on eight inputs: no times
    python reports/run.py tradeoff/pages times       # the same over measured time, on one input
    python reports/run.py tradeoff/pages distill     # 003's experiment, minutes, a process a seed
    python reports/run.py tradeoff/pages             # all of them

Each writes reports/tradeoff/PART.csv, .md and .png, and where it has several inputs a figure as
wide as a column. What the commands gave is kept in .json files, which are not committed: pages are
written again from them; delete them to measure again.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from attnprof import registry
from attnprof.measure.tradeoff import EXACT
from attnprof.papers.approximation.distillation import FULL
from attnprof.papers.approximation.measurements import merged
from attnprof.record import DistillRecord, Report, TradeoffRecord, write_whole
from attnprof.record.escapes import markdown_text
from attnprof.record.recognition import written_by
from attnprof.render.formats import markdown_table, render, render_markdown
from attnprof.render.plots import plot_report
from attnprof.render.tables.measured import CLAIMS, claim_rows
from attnprof.units import format_value, setting_text

FOLDER = Path(__file__).parent
#: What is typed for each part.
PARTS = {
    "errors": "attnprof tradeoff --heads 2 --norms sphere,spread --seeds 5 --no-time",
    "times": "attnprof tradeoff --input local --seq 1024 --over time",
    "distill": "attnprof tradeoff --distill",
}
#: Figures beside the page's, by the part and the size.
COLUMNS = {"errors": "column"}
HEADS = {
    "errors": "# How far mechanisms are from softmax attention, over their FLOPs",
    "times": "# How far mechanisms are from softmax attention, over measured time",
    "distill": "# 003's experiment: distillation from standard attention",
}
#: Of repetitions of the experiment, at the same time.
SEEDS = (0, 1)


def report_of(part: str) -> Report:
    """The report of a part's command; of the experiment's, with every seed, a process each."""
    names = [f"{part}-{seed}" for seed in SEEDS] if part == "distill" else [part]
    paths = [FOLDER / f"{name}.json" for name in names]
    words = [sys.executable, "-m", *shlex.split(PARTS[part]), "--format", "json", "--output"]
    seeds = [["--seed", str(seed)] for seed in SEEDS] if part == "distill" else [[]]
    orders = zip(paths, seeds, strict=True)
    orders = [[*words, str(path), *seed] for path, seed in orders if not path.is_file()]
    for run in [subprocess.Popen(order) for order in orders]:  # noqa: S603 - our own command
        run.wait()
    reports = [Report.load(path) for path in paths]
    if part != "distill":
        return reports[0]
    rows = [row for report in reports for row in report.of(DistillRecord)]
    return merged(rows, FULL, reports[0].environment)


def page(part: str, report: Report) -> str:
    """The command, the machine, what came out."""
    where = report.environment
    made_by = (
        f"Made by `python reports/run.py tradeoff/pages {part}` on {where['cores']} shared CPU "
        f"cores ({where['device_name']}), one thread, "
        f"torch {where['torch'].partition('+')[0]}, "
        "while other jobs ran beside it. Errors, losses and counts do not depend on that; times, "
        "which are processor time (medians of 20 calls, of 10 in the experiment), do a little. All "
        f"numbers are in [{part}.csv]({part}.csv)."
    )
    figure = f"![The figure of these results]({part}.png)"
    lines = [HEADS[part], "", f"`{PARTS[part]}`", "", made_by, "", figure, ""]
    if part == "distill":
        lines += [f"Seeds {' and '.join(map(str, SEEDS))}; times are of the first.", ""]
        lines += [render_markdown(report, TRAINED), *_claims(report)]
    else:
        lines += [*(f"- {line}" for line in report.summary["nearest"]), "", *_inputs(report)]
    return "\n".join([*lines, written_by("tradeoff"), ""])


#: What the page shows of every model.
TRAINED = (
    "setting", "model", "seq_len", "steps", "cross_entropy", "cross_entropy_low",
    "cross_entropy_high", "accuracy", "mse_teacher", "mse_ratio", "matmul_flops", "median_s",
    "skipped",
)  # fmt: skip


def _claims(report: Report) -> Iterator[str]:
    """A row a claim."""
    yield "## What document 003 claims\n"
    rows = ([markdown_text(cell) for cell in row] for row in claim_rows(report))
    yield markdown_table(CLAIMS, rows)


#: Columns of an input's table, by the field they show.
SHOWN = {
    "error_relative": "error", "error_worst_row": "worst row",
    "error_distribution": "weights apart", "flops": "FLOPs", "peak_bytes": "peak",
    "median_s": "time",
}  # fmt: skip


def _inputs(report: Report) -> Iterator[str]:
    """Of each input the settings that no other one beats; of equal ones the textbook's."""
    records = report.of(TradeoffRecord)
    groups: dict[tuple[str, str | None], list[TradeoffRecord]] = defaultdict(list)
    for row in records:
        if row.pareto and (row.relation != "same" or row.mechanism == "standard"):
            groups[row.input, row.norms].append(row)
    timed = any(row.median_s for row in records)
    shown = [name for name in SHOWN if timed or name != "median_s"]
    for (name, norms), rows in groups.items():
        yield f"## {name}, norms: {norms}\n"
        rows.sort(key=lambda row: row.error_relative or 0.0)
        cells = ([_named(r), r.relation, *(_cell(r, field) for field in shown)] for r in rows)
        yield markdown_table(["mechanism", "is", *map(SHOWN.get, shown)], cells)


def _named(row: TradeoffRecord) -> str:
    """A mechanism with the parameter that is varied."""
    values = (f"{key}={setting_text(row.params[key])}" for key in registry.get(row.mechanism).tuned)
    return " ".join([row.mechanism, *values])


def _cell(row: TradeoffRecord, field: str) -> str:
    value = getattr(row, field)
    formats = {name: meta["format"] for name, meta in row.columns()}
    text = "0" if field.startswith("error") and value is not None and value < EXACT else ""
    text = text or format_value(value, formats[field], short=True)
    if field == "error_relative" and row.seeds > 1:
        ends = (row.error_relative_low, row.error_relative_high)
        text += f" ({' to '.join(format_value(end, 'number', short=True) for end in ends)})"
    return text


def write(part: str) -> None:
    """A part's files."""
    report = report_of(part)
    write_whole(FOLDER / f"{part}.csv", render(report, "csv"), owned=True)
    write_whole(FOLDER / f"{part}.md", page(part, report), owned=True)
    plot_report(report, FOLDER / f"{part}.png")
    if part in COLUMNS:
        plot_report(report, FOLDER / f"{part}-column.png", COLUMNS[part])


def main() -> None:
    """Write the files of the parts that are named, or of all."""
    for chosen in sys.argv[1:] or PARTS:
        write(chosen)
