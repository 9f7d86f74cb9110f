"""One piece of work in a process that may die, from a process that goes on."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnprof.processes import keeping
from attnprof.processes.folders import temporary_folder
from attnprof.processes.keeping import Ended

#: Seconds a keeper may take longer than the work it keeps.
_GRACE_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What the work gave, or how its process ended before it gave anything."""

    ended: Ended
    value: Any = None
    given: bool = False


def run_apart(work: Callable[[], Any], limit_s: float | None = None) -> Answer:
    """Do the work in a process of its own; its value is what JSON can hold.

    A keeper stands between: what the work does to its parent, it does to that.
    """
    with temporary_folder() as folder:
        value, end = folder / "value.json", folder / "ended.json"

        def answer() -> int:
            value.write_text(json.dumps(work()), encoding="utf-8")
            return 0

        _keep(answer, end, limit_s)
        if not end.exists():
            return Answer(Ended(-signal.SIGKILL, "the process that kept it was killed, too"))
        ended = Ended(**json.loads(end.read_text(encoding="utf-8")))
        if ended.code == 0 and value.exists():
            return Answer(ended, json.loads(value.read_text(encoding="utf-8")), given=True)
        return Answer(ended)


def _keep(work: Callable[[], int], end: Path, limit_s: float | None) -> None:
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        keeper = os.fork()
    if keeper == 0:
        try:
            os.setsid()
            keeping.ignore_signals()
            keeping.die_with_parent(parent)
            keeping.adopt_orphans()
            ended = keeping.run_forked(work, limit_s)
            end.write_text(json.dumps(asdict(ended)), encoding="utf-8")
        finally:
            keeping.leave(0)
    try:
        _wait(keeper, None if limit_s is None else limit_s + _GRACE_S)
    except BaseException:
        keeping.end_family(keeper)
        os.waitpid(keeper, 0)
        raise


def _wait(keeper: int, limit_s: float | None) -> None:
    """Until the keeper is gone; it is woken where somebody put it to sleep."""
    start, pause = time.monotonic(), 0.001
    while not os.waitpid(keeper, os.WNOHANG)[0]:
        if limit_s is not None and time.monotonic() - start > limit_s:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        if pause >= keeping.LOOK_S / 10:
            os.kill(keeper, signal.SIGCONT)
        time.sleep(pause)
        pause = min(2 * pause, keeping.LOOK_S / 10)
