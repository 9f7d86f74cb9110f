"""Try the gate on this machine: on unchanged code, and on code slower by a known share.

A revision is a folder with one file of modules. Each module does one small piece of work forty
times; a slower revision does it a few times more.
"""

import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median

from attnprof.gate.rules import INCONCLUSIVE, REGRESSED, Rule
from attnprof.gate.times import Race, race
from attnprof.gate.trees import RunningTree
from attnprof.measure.environment import describe_environment, fingerprint
from attnprof.measure.request import PointRequest
from attnprof.processes.folders import temporary_folder
from attnprof.processes.progress import tell
from attnprof.record import Report, SelfTestRecord
from attnprof.units import plural

#: Equal pieces of work in a call; a slowdown of 5 % adds 2 of 40.
PIECES = 40
FILE = "rehearsed.py"
_SOURCE = '''"""The same piece of work {count} times: nothing else takes time worth telling."""

import torch
from torch import nn

COUNT = {count}


class Softmax(nn.Module):
    def forward(self, q, k, v):
        total = torch.zeros_like(q)
        for _ in range(COUNT):
            rows = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            total = total + rows
        return total


class Features(nn.Module):
    def forward(self, q, k, v):
        total = torch.zeros_like(q)
        for _ in range(COUNT):
            rows = nn.functional.elu(q) + 1
            total = total + rows @ (k.softmax(-2).transpose(-1, -2) @ v)
        return total


class Projected(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.down = nn.Linear(head_dim, 2 * head_dim, bias=False)
        self.up = nn.Linear(2 * head_dim, head_dim, bias=False)

    def forward(self, q, k, v):
        total = torch.zeros_like(q)
        for _ in range(COUNT):
            rows = self.up(torch.relu(self.down(q * k)))
            total = total + rows * v
        return total
'''


#: Requests for the file's modules; a call takes about six milliseconds.
REHEARSED = tuple(
    PointRequest(
        f"{FILE}:{module}", n, h, d, phase=phase, threads=1, params={
            "args": ["head_dim=d"] if module == "Projected" else [],
            "inputs": [f"{name}: B, h, N, d" for name in "qkv"],
        },
    )
    for module, n, h, d, phase in (
        ("Softmax", 64, 4, 64, "forward"), ("Softmax", 128, 1, 64, "forward"),
        ("Softmax", 48, 2, 32, "train"), ("Features", 64, 4, 64, "forward"),
        ("Projected", 64, 4, 64, "forward"),
    )
)  # fmt: skip


def write_revision(folder: Path, slowdown: float) -> None:
    """Write the modules into a folder, slower by this share (a multiple of 1/40)."""
    text = _SOURCE.format(count=round((1 + slowdown) * PIECES))
    (folder / FILE).write_text(text, encoding="utf-8")


#: Slowdowns that are tried, as shares of a call's time.
SLOWDOWNS = (0.0, 0.05, 0.10, 0.20)


def self_test_report(rule: Rule, budget_s: float) -> Report:
    """Race unchanged and slowed code until the budget is spent; a record a slowdown."""
    by_slowdown: dict[float, list[Race]] = {slowdown: [] for slowdown in SLOWDOWNS}
    seeds, end = count(), time.monotonic() + budget_s
    while time.monotonic() <= end or not by_slowdown[0.0]:
        with ExitStack() as stack:
            sides = []
            for slowdown in (0.0, *SLOWDOWNS):
                folder = stack.enter_context(temporary_folder())
                write_revision(folder, slowdown)
                side = RunningTree(folder, f"{slowdown:.0%} slower")
                sides.append(stack.enter_context(side))
            for request in REHEARSED:
                for races, head in zip(by_slowdown.values(), sides[1:], strict=True):
                    races.append(race(sides[0], head, request, rule, seed=next(seeds)))
                rounds = plural(len(by_slowdown[0.0]), "round")
                tell(f"racing unchanged and slowed code, {rounds}", left_s=end - time.monotonic())
                if time.monotonic() > end:
                    break
    records = []
    for slowdown, races in by_slowdown.items():
        judged = [race.judgement for race in races if race.judgement]
        records.append(SelfTestRecord(
            slowdown=slowdown, rule=rule.name, trials=len(judged),
            regressed=sum(item.verdict == REGRESSED for item in judged),
            inconclusive=sum(item.verdict == INCONCLUSIVE for item in judged),
            ratio=median(item.ratio for item in judged),
            noise=median(item.noise for item in judged),
            case_s=median(race.spent_s for race in races),
        ))  # fmt: skip
    summary = {"rule": rule.name, "budget_s": budget_s, "fingerprint": fingerprint("cpu")}
    return Report("check --self-test", records, summary, describe_environment("cpu"))
