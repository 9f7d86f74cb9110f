"""False alarms and detections of the gate, measured: unchanged code and exact slowdowns.

    python reports/run.py gate/alarms run quiet      # trials of the machine as it is
    python reports/run.py gate/alarms run busy       # with one process that computes all the time
    python reports/run.py gate/alarms table          # alarms.csv and alarms.md from them

Trials go with all their pairs to reports/gate/trials-CONDITION.jsonl as they are made, which is not
kept; the same command goes on where it stopped. Without those files the table is left as it is and
the page is made of it. A round has fresh processes: a base revision, revisions of it with the same
work (other comments, names and an unused function), and revisions slower by 5, 10 and 20 %. In a
round every module is raced against each of them; a trial is one race.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gate.alarm_tables import compact, page

from attnprof.gate.check import FILE, REHEARSED, write_revision
from attnprof.gate.rules import RULES
from attnprof.gate.times import Race, race
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.measure.environment import describe_environment
from attnprof.measure.request import PointRequest

HERE = Path(__file__).parent
TABLE = HERE / "alarms.csv"
ROUNDS = 20
LIMIT_S = 60.0
#: Registered mechanisms, in calls of about six milliseconds.
MECHANISMS = (
    ("standard", 160, "forward"), ("efficient", 192, "forward"), ("sdpa", 128, "train"),
    ("linear", 128, "train"), ("taylor-direct", 256, "forward"),
)  # fmt: skip
#: Revision of the head, rule, and which requests: a round's trials.
PLAN = (
    ("same", "default", "modules"), ("same", "default", "mechanisms"),
    ("5 %", "sensitive", "modules"), ("10 %", "default", "modules"),
    ("20 %", "default", "modules"),
)  # fmt: skip
SLOWER = {"base": 0.0, "same": 0.0, "5 %": 0.05, "10 %": 0.10, "20 %": 0.20}


def requests(kind: str) -> list[PointRequest]:
    """What is raced."""
    if kind == "modules":
        return list(REHEARSED)
    return [
        PointRequest(name, seq_len, 8, 64, phase=phase, threads=1)
        for name, seq_len, phase in MECHANISMS
    ]


def _reworded(folder: Path) -> None:
    """The same work in other words: what a commit that should not matter looks like."""
    path = folder / FILE
    text = re.sub(r"\brows\b", "part_of_the_rows", path.read_text(encoding="utf-8"))
    text = text.replace("import torch\n", "import torch\n\n# said differently\n", 1)
    path.write_text(text + '\n\ndef unused(x):\n    """Not called."""\n    return x + 1\n')


@contextmanager
def sides() -> Iterator[dict[str, RunningTree]]:
    """A running side of each revision."""
    with ExitStack() as stack:
        trees = {}
        for name, slowdown in SLOWER.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_revision(folder, slowdown)
            if name != "base":
                _reworded(folder)
            trees[name] = stack.enter_context(RunningTree(folder, name))
        yield trees


def _spin() -> None:
    """Computes until it is ended: arithmetic and memory traffic."""
    values = np.ones(1 << 20)
    while True:
        values = np.sqrt(values * 1.0001 + 0.5)


@contextmanager
def competing(busy: bool) -> Iterator[None]:
    """A process that takes what it can get."""
    if not busy:
        yield
        return
    spinner = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    spinner.start()
    try:
        yield
    finally:
        spinner.kill()


def _row(
    key: str, number: int, item: tuple[str, ...], request: PointRequest, trees: Race
) -> dict[str, Any]:
    judged = trees.judgement
    assert judged is not None
    columns = {
        "log_ratios": trees.log_ratios, "wall_log_ratios": trees.wall_log_ratios,
        "baseline_s": trees.baseline_s, "current_s": trees.current_s,
    }  # fmt: skip
    return {
        "key": key, "round": number, "head": item[0], "rule": item[1],
        "case": f"{request.mechanism} N={request.seq_len} {request.phase}",
        "verdict": judged.verdict, "ratio": judged.ratio,
        "low": judged.low, "high": judged.high,
        "processes": judged.processes, "spent_s": round(trees.spent_s, 3),
        "load": os.getloadavg()[0], "at": round(time.time()),
        **{name: [float(f"{x:.4g}") for x in values] for name, values in columns.items()},
    }  # fmt: skip


def run(condition: str, rounds: int = ROUNDS) -> None:
    """All trials of a condition that are not there yet."""
    path = HERE / f"trials-{condition}.jsonl"
    done = {row["key"] for row in load(condition)}
    if not path.exists():
        where = {"environment": describe_environment("cpu"), "condition": condition}
        where["environment"]["command"] = f"python reports/run.py gate/alarms run {condition}"
        path.write_text(json.dumps(where) + "\n", encoding="utf-8")
    with competing(condition == "busy"):
        for number in range(rounds):
            plan = [
                (f"{number}/{item}/{index}", item, request)
                for item in PLAN
                for index, request in enumerate(requests(item[2]))
            ]
            plan = [entry for entry in plan if str(entry[0]) not in done]
            if plan:
                _round(path, number, plan)


def _round(path: Path, number: int, plan: list[Any]) -> None:
    with sides() as trees:
        for key, item, request in plan:
            seed = sum(key.encode())
            try:
                raced = race(trees["base"], trees[item[0]], request, RULES[item[1]],
                             limit_s=LIMIT_S, seed=seed)  # fmt: skip
            except TreeError as error:
                sys.stderr.write(f"{key}: {error}\n")
                continue
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(_row(key, number, item, request, raced)) + "\n")


def load(condition: str) -> list[dict[str, Any]]:
    """The trials there are."""
    path = HERE / f"trials-{condition}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [json.loads(line) for line in lines if line.endswith("}")]


def table() -> dict[str, list[Any]]:
    """Trials by condition, as the table has them; what was run here is put into it before."""
    import pandas as pd

    rows = {name: compact(load(name)) for name in ("quiet", "busy")}
    if all(rows.values()):
        lines = [{"condition": name, **row} for name, some in rows.items() for row in some]
        pd.DataFrame(lines).to_csv(TABLE, index=False)
    kept = pd.read_csv(TABLE, keep_default_na=False)
    groups = kept.groupby("condition", sort=False)
    return {str(name): some.to_dict("records") for name, some in groups}


def main() -> None:
    """Run trials of a condition, or write the table and the page."""
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2], *(int(text) for text in sys.argv[3:]))
    else:
        (HERE / "alarms.md").write_text(page(table()), encoding="utf-8")
