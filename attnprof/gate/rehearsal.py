"""The gate tried on this machine: unchanged code, and code made slower by an exact share.

A revision is a folder with one file of modules; each does one small piece of work forty times, and
a slower revision does it some times more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from attnprof.gate.paired import Rule
from attnprof.gate.racing import Race, race
from attnprof.gate.sides import Side
from attnprof.measure.request import PointRequest

#: Pieces of work in a call, all the same; a slowdown adds so many hundredths of them.
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


@dataclass(frozen=True)
class Rehearsed:
    """One module of the file at one shape: a call of about six milliseconds."""

    module: str
    seq_len: int
    num_heads: int
    head_dim: int
    phase: str = "forward"

    @property
    def request(self) -> PointRequest:
        """As a point; relative to the revision's folder."""
        args = ["head_dim=d"] if self.module == "Projected" else []
        params = {"args": args, "inputs": [f"{name}: B, h, N, d" for name in "qkv"]}
        return PointRequest(
            f"{FILE}:{self.module}", self.seq_len, self.num_heads, self.head_dim,
            phase=self.phase, params=params, threads=1,
        )  # fmt: skip


REHEARSED = (
    Rehearsed("Softmax", 64, 4, 64),
    Rehearsed("Softmax", 128, 1, 64),
    Rehearsed("Softmax", 48, 2, 32, "train"),
    Rehearsed("Features", 64, 4, 64),
    Rehearsed("Projected", 64, 4, 64),
)


@dataclass
class Trials:
    """Races of one slowdown."""

    slowdown: float
    races: list[Race] = field(default_factory=list)


def write_revision(folder: Path, slowdown: float) -> None:
    """The modules into a folder, slower by this share (a multiple of 1/40)."""
    text = _SOURCE.format(count=round((1 + slowdown) * PIECES))
    (folder / FILE).write_text(text, encoding="utf-8")


@contextmanager
def revisions(*slowdowns: float) -> Iterator[list[Side]]:
    """A side each, running; the folders go at the end."""
    with ExitStack() as stack:
        sides = []
        for number, slowdown in enumerate(slowdowns):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnprof-")))
            write_revision(folder, slowdown)
            sides.append(stack.enter_context(Side(folder, f"revision {number}")))
        yield sides


def rehearse(
    rule: Rule,
    budget_s: float,
    slowdowns: Sequence[float] = (0.0, 0.05, 0.10, 0.20),
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Trials]:
    """Races of every slowdown in turn, over the modules, until the budget is spent; once at least.

    Each round has processes of its own.
    """
    found = [Trials(slowdown) for slowdown in slowdowns]
    end, seed = time.monotonic() + budget_s, 0
    while True:
        with revisions(0.0, *slowdowns) as (base, *heads):
            for item in REHEARSED:
                for trials, head in zip(found, heads, strict=True):
                    trials.races.append(race(base, head, item.request, rule, seed=seed))
                    seed += 1
                tell(f"{len(found[0].races)} rounds")
                if time.monotonic() > end:
                    return found
