"""Run a point in a process of its own, so that its death is a row and not ours."""

from __future__ import annotations

import atexit
import json
import signal
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.correctness import check_key
from attnprof.measure.forks import KEEPER_DIED, ForkServer
from attnprof.measure.point import (
    blank,
    describe_need,
    fit,
    measure_point,
    predict_point,
    spent_s,
)
from attnprof.measure.request import PointRequest
from attnprof.processes import keeping
from attnprof.processes.folders import temporary_folder
from attnprof.processes.keeping import Ended, signal_name
from attnprof.record import ProfileRecord
from attnprof.trace.loading import told

#: Seconds for imports, building and counting, beside what the budget allows.
SETUP_S = 120.0
#: Seconds more for compiling.
COMPILING_S = 480.0
#: A child takes this many times the budget before it counts as stuck.
PATIENCE = 20.0


#: What modules that passed their check were held against; other processes need not do it again.
_CHECKED: dict[tuple[Any, ...], str] = {}
_SERVER = ForkServer()
atexit.register(_SERVER.close)
#: What a child writes: its record, what a point needs (before it is tried), why it gave up.
_RECORD, _NEED, _REASON = "record.json", "need.txt", "reason.txt"


def measure_apart(
    request: PointRequest,
    limit_s: float | None = None,
    memory_limit: int | None = None,
    *,
    try_all: bool = True,
) -> ProfileRecord:
    """The point's record from a child process; its death or silence is a ``skipped`` reason.

    ``memory_limit`` is how many bytes of data the child may map; without ``try_all`` a point that
    does not fit by the closed form is not tried. Nothing of a module is run here.
    """
    start = time.perf_counter()
    patience = SETUP_S + PATIENCE * request.budget.max_time_s
    patience += COMPILING_S if request.compiled else 0.0
    limit = patience if limit_s is None else limit_s
    key = check_key(request)
    asked = replace(request, check=request.check and key not in _CHECKED)
    terms = {"memory_limit": memory_limit, "try_all": try_all}
    with temporary_folder() as folder:
        ended = _SERVER.run(asked.to_dict(), folder, limit, terms)
        if ended.timed_out:
            return blank(request, f"stopped: no result after {limit:g} s in a process of its own")
        if ended.code == 0 and (answer := _read(folder / _RECORD)):
            record = ProfileRecord(**json.loads(answer))
            return _completed(request, record, time.perf_counter() - start)
        return blank(request, _read(folder / _REASON) or _cause_of_death(ended, folder))


def _read(file: Path) -> str:
    """What a child wrote, as far as it came."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _completed(request: PointRequest, record: ProfileRecord, spent: float) -> ProfileRecord:
    """With the time of the process's start, and with the check of an earlier process."""
    record = replace(record, start_s=spent - spent_s(record))
    if not request.check:
        return record
    if record.checked and record.skipped is None:
        _CHECKED[check_key(request)] = record.checked
    return replace(record, checked=record.checked or _CHECKED.get(check_key(request)))


def _cause_of_death(ended: Ended, folder: Path) -> str:
    if ended.said == KEEPER_DIED:
        return f"the process that measured it vanished: {KEEPER_DIED}, too"
    who, need = "the process that measured it", _read(folder / _NEED)
    if ended.code < 0 and not ended.stopped:
        cause = ", most likely out of memory" if ended.code == -signal.SIGKILL else ""
        return f"{who} was killed by {signal_name(-ended.code)}{cause}" + (need and f": {need}")
    said = f": {ended.last_line}" if ended.last_line else ""
    return f"{who} {ended.how} and gave no record{said}"


def answer_to(
    request: dict[str, Any], folder: Path, memory_limit: int | None, *, try_all: bool
) -> int:
    """Measure in this process and write the record into a folder; the exit code."""
    try:
        record = _record(PointRequest.from_dict(request), folder, memory_limit, try_all=try_all)
    except AttnprofError as error:
        (folder / _REASON).write_text(str(error), encoding="utf-8")
        return CannotRunError.exit_code
    except BaseException as error:  # noqa: BLE001 - somebody's code may raise anything
        (folder / _REASON).write_text(f"it raised {told(error)}", encoding="utf-8")
        return CannotRunError.exit_code
    (folder / _RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
    return 0


def _record(
    request: PointRequest, folder: Path, memory_limit: int | None, *, try_all: bool
) -> ProfileRecord:
    if request.device == "cpu":
        keeping.limit_memory()
    reason, _ = fit(request, memory_limit)
    if reason and not try_all:
        return replace(predict_point(request), skipped=reason)
    (folder / _NEED).write_text(describe_need(request), encoding="utf-8")
    if memory_limit is not None:
        keeping.limit_memory(memory_limit)
    return measure_point(request)
