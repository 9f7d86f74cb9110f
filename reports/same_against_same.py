"""Do two measurements of the same thing agree? 100 pairs of runs, taken in turns.

A run is what ``attnprof sweep --processes 5`` does for one point: five fresh processes, a median
each, one interval over them. The processes of the two runs of a pair take turns in random order.
The interval is honest if the two overlap nearly always, useful if it is narrow or says ``noisy``::

    python reports/same_against_same.py          # appends to .csv, then writes .md beside it

It goes on where it stopped; rows are kept as they come.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from statistics import median
from typing import Any

from attnprof.measure.batch import measure_apart
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.statistics import estimate_over_processes

PAIRS, PROCESSES = 100, 5
BUDGET = Budget(samples=20, min_time_s=0.1, max_time_s=0.4, warmup_s=0.1)
POINTS = [
    PointRequest("standard", 256, 4, 32, threads=1, budget=BUDGET, counts=False),
    PointRequest("linear", 1024, 4, 32, threads=1, budget=BUDGET, counts=False),
]
FIELDS = ("pair", "mechanism", "a_low", "a_median", "a_high", "b_low", "b_median", "b_high",
          "overlap", "half_width_a", "half_width_b", "noisy_a", "noisy_b")  # fmt: skip
TABLE = Path(__file__).with_suffix(".csv")


def main() -> None:
    """Measure the pairs that the table lacks, then write the summary."""
    done = {row["pair"] for row in rows()}
    chance = random.Random()  # noqa: S311 - any order will do
    if not TABLE.exists():
        _write(dict.fromkeys(FIELDS), header=True)
    for pair in range(PAIRS):
        if str(pair) not in done:
            _write(measured(pair, POINTS[pair % len(POINTS)], chance))
    TABLE.with_suffix(".md").write_text(summary(rows()), encoding="utf-8")


def measured(pair: int, point: PointRequest, chance: random.Random) -> dict[str, Any]:
    """Two runs of a point, their processes in turns."""
    times: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(PROCESSES):
        for run in chance.sample((0, 1), 2):
            times[run].append(measure_apart(point).times_s)
    a, b = (estimate_over_processes(found) for found in times)
    row: dict[str, Any] = {"pair": pair, "mechanism": point.mechanism}
    for name, found in (("a", a), ("b", b)):
        row |= {f"{name}_low": found.low_s, f"{name}_median": found.median_s,
                f"{name}_high": found.high_s, f"half_width_{name}": found.half_width,
                f"noisy_{name}": bool(found.noisy)}  # fmt: skip
    return row | {"overlap": a.low_s <= b.high_s and b.low_s <= a.high_s}


def rows() -> list[dict[str, str]]:
    """What was measured so far."""
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _write(row: dict[str, Any], *, header: bool = False) -> None:
    with TABLE.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader() if header else writer.writerow(row)


def summary(found: list[dict[str, str]]) -> str:
    """The report."""
    overlap = sum(row["overlap"] == "True" for row in found)
    runs = [(float(row[f"half_width_{r}"]), row[f"noisy_{r}"] == "True")
            for row in found for r in "ab"]  # fmt: skip
    narrow = sum(width <= 0.1 for width, _ in runs)
    said = sum(width > 0.1 and noisy for width, noisy in runs)
    return f"""# The same against the same

{len(found)} pairs of runs of one point, {PROCESSES} fresh processes a run, in turns and in
random order; the interval is the 95 % one over the processes' medians, as
`sweep --processes {PROCESSES}` prints it. Points: standard with 256 tokens and linear with 1024,
4 heads of 32, one thread. By `python reports/same_against_same.py`; every pair is in
`same_against_same.csv`.

| | of | |
|---|--:|--:|
| pairs whose intervals overlap | {len(found)} | {overlap} |
| runs with a half-width of 10 % or less | {len(runs)} | {narrow} |
| wider runs that say `noisy` | {len(runs) - narrow} | {said} |

Median half-width: {median(width for width, _ in runs):.1%}.
"""


if __name__ == "__main__":
    main()
