"""Sweeps and checks over modules that do what modules should not, and signals at random moments.

``python reports/run.py gate/hostile [FOLDER]`` writes hostile.md beside this file, or into the
folder. The modules are those of tests/hostile; each trial starts from fresh copies of
them, with a temporary folder of its own. After each, processes are looked for by a mark in their
environment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rows import table

from attnprof.measure.journal import read
from tests.hostile import NAMES, copied, marked

ROOT = Path(__file__).resolve().parents[2]
SWEEP_LIMIT, CHECK_LIMIT = 30, 40
SIZES = ("--seq", "16", "--d-model", "16", "--heads", "2")
QUICK = ("--samples", "3", "--min-time", "0", "--max-time", "0.05")
CASE = """
[[case]]
attention = {names}
input = ["x: B, N, h*d"]
seq = 16
d_model = 16
heads = 2
formula = false
"""
SIGNALS, TIMES, LATEST_S = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"), 10, 22.0
#: Seconds after which nothing may be left of a command that is over, or was killed.
PATIENCE_S = 20.0


@dataclass
class Place:
    """Where a trial runs, and what it is found by."""

    folder: Path
    temporary: Path
    arguments: list[str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "attnprof", *arguments],
            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary),
                 "ATTNPROF_MARK": str(self.folder)},
        )  # fmt: skip

    def left(self) -> list[str]:
        """Processes, files and folders that are there and should not be."""
        remains = [f"process {pid}" for pid in marked(f"ATTNPROF_MARK={self.folder}", PATIENCE_S)]
        end = time.monotonic() + PATIENCE_S
        while (odd := self._odd()) and time.monotonic() < end:
            time.sleep(0.05)
        return remains + odd

    def _odd(self) -> list[str]:
        """Files of nobody; torch keeps a cache of its own."""
        known = {f"{name}.py" for name in NAMES} | {"s.jsonl", "b.json", "bench.toml"}
        known |= {"__pycache__", "base"}
        odd = [path.name for path in self.folder.iterdir() if path.name not in known]
        names = [path.name for path in self.temporary.iterdir()]
        return odd + [name for name in names if not name.startswith("torchinductor_")]


@contextmanager
def place(names: list[str] = NAMES) -> Iterator[Place]:
    """A folder with copies of modules and a suite of them."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        arguments = copied(Path(one), names)
        text = CASE.format(names=json.dumps(arguments))
        (Path(one) / "bench.toml").write_text(text, encoding="utf-8")
        yield Place(Path(one), Path(other), arguments)


@dataclass
class Trial:
    """What a command over all modules said of each."""

    title: str
    code: int
    seconds: float
    said: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def swept() -> Trial:
    """All modules in one sweep."""
    with place() as here:
        start = time.monotonic()
        child = here.start("sweep", "--attention", ",".join(here.arguments), *SIZES, *QUICK,
                           "--limit", str(SWEEP_LIMIT), "-o", "s.jsonl")  # fmt: skip
        child.communicate()
        rows = [entry["record"] for entry in read(here.folder / "s.jsonl")]
        said = {row["mechanism"]: row["skipped"] or "measured" for row in rows}
        spent = time.monotonic() - start
        return Trial("sweep", child.returncode, spent, said, here.left())


def checked(how: str) -> Trial:
    """All modules in one check, beside a folder or beside a baseline."""
    with place() as here:
        options = ("--suite", "bench.toml", "--no-time", "--limit", str(CHECK_LIMIT))
        base = here.folder / "base"
        base.mkdir()
        copied(base)
        other = str(base)
        if how == "--baseline":
            other = "b.json"
            here.start("baseline", *options, "-o", other).communicate()
            copied(here.folder)  # one removes itself
        start = time.monotonic()
        child = here.start("check", how, other, *options, "--format", "json")
        out, _ = child.communicate()
        said: dict[str, str] = {}
        for row in json.loads(out)["records"]:
            name = row["case"].partition("[")[0]
            verdict = row["verdict"] + (f": {row['why']}" if row["verdict"] != "ok" else "")
            said[name] = max(said.get(name, ""), verdict)
        spent = time.monotonic() - start
        return Trial(f"check {how}", child.returncode, spent, said, here.left())


@dataclass
class Blow:
    """A signal at a random moment."""

    name: str
    command: str
    after_s: float
    code: int
    rows: int
    wrong: list[str]


def struck(name: str, chance: random.Random, command: str) -> Blow:
    """Start a command, send it a signal, see what is left; then run it to its end."""
    names = ["forks", "daemons", "crashes", "floods", "closes_descriptors", "thread_stays"]
    with place(names) as here:
        journal = here.folder / "s.jsonl"
        arguments = ["sweep", "--attention", ",".join(here.arguments), *SIZES, *QUICK,
                     "--limit", str(SWEEP_LIMIT), "-o", "s.jsonl"]  # fmt: skip
        if command == "check":
            limit = ("--limit", str(CHECK_LIMIT), "--budget", "5")
            arguments = ["check", "--against", ".", "--suite", "bench.toml", *limit,
                         "--junit", "s.jsonl"]  # fmt: skip
        child, start = here.start(*arguments), time.monotonic()
        if command == "sweep":  # some have rows by then
            least = chance.randrange(5)
            while child.poll() is None and least > (len(read(journal)) if journal.exists() else 0):
                time.sleep(0.05)
        time.sleep(
            chance.uniform(0.0, 3.0) if command == "sweep" else chance.uniform(1.0, LATEST_S)
        )
        after_s = time.monotonic() - start
        child.send_signal(signal.Signals[name])
        _, err = child.communicate()
        wrong, rows = here.left(), 0
        if command == "sweep" and journal.exists():
            data = journal.read_bytes()
            rows = len(read(journal))
            wrong += [] if data.count(b"\n") == rows and data[-1:] in (b"", b"\n") else ["torn"]
        allowed = {0, 3, -signal.Signals[name], 130 if name == "SIGINT" else 0}
        wrong += [] if child.returncode in allowed else [f"exit code {child.returncode}"]
        wrong += ["a traceback"] if "Traceback" in err else []
    return Blow(name, command, after_s, child.returncode, rows, wrong)


def page(trials: list[Trial], blows: list[Blow]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("# Hostile modules", "", (__doc__ or "").split("\n\n")[0], "")
    yield (
        "Made by `python reports/run.py gate/hostile`. A sweep and two kinds of check over "
        f"{len(NAMES)} modules (tests/hostile), each made twice."
    )
    yield ""
    lines = []
    for one, again in zip(trials[::2], trials[1::2], strict=True):
        apart = [name for name in one.said if one.said[name] != again.said.get(name)]
        left = ", ".join(one.left + again.left) or "nothing"
        same = f"all but {', '.join(apart)}" if apart else "yes"
        lines.append((one.title, f"{one.code}, {again.code}", len(one.said), same, left))
    yield from table("command | exit code | rows or cases | the same again | left behind", lines)
    for one in trials[::2]:
        yield from ("", f"## {one.title}", "")
        said = ((name, " ".join(text.split())) for name, text in one.said.items())
        yield from table("module | what it said", said)
    yield from ("", "## Signals at random moments", "")
    yield (
        f"Sent to the process that was started: to a check within {LATEST_S:g} s, to a sweep up to "
        "3 s after it had none to four rows. Exit code 0 or 3: it was over."
    )
    yield ""
    heads = "signal | command | times | exit codes | rows in the journals | left or torn"
    yield from table(heads, (_struck_line(name, command, blows) for name in SIGNALS
                             for command in ("sweep", "check")))  # fmt: skip


def _struck_line(name: str, command: str, blows: list[Blow]) -> tuple[object, ...]:
    some = [blow for blow in blows if (blow.name, blow.command) == (name, command)]
    codes = ", ".join(map(str, sorted({blow.code for blow in some})))
    wrong = "; ".join(text for blow in some for text in blow.wrong) or "nothing"
    counts = " ".join(str(blow.rows) for blow in some) if command == "sweep" else "–"
    return name, command, len(some), codes, counts, wrong


def main() -> None:
    """All trials, then the page."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # shells have them ignored in the background
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    chance = random.Random(12)  # noqa: S311 - no secret
    trials, blows = [], []
    for work in (swept, lambda: checked("--against"), lambda: checked("--baseline")):
        for _ in range(2):
            trials.append(work())
            print(trials[-1].title, trials[-1].code, f"{trials[-1].seconds:.0f} s", flush=True)  # noqa: T201
    for number in range(TIMES):
        for name in SIGNALS:
            blows.append(struck(name, chance, ("sweep", "check")[number % 2]))
            print(blows[-1], flush=True)  # noqa: T201
        text = "\n".join(page(trials, blows)) + "\n"
        (folder / "hostile.md").write_text(text, encoding="utf-8")
