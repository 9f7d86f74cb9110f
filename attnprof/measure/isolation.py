"""Run a point in a process of its own, so that its death is a row and not ours."""

from __future__ import annotations

import atexit
import json
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from attnprof import registry
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.correctness import check_key
from attnprof.measure.point import blank, needed_bytes, spent_s, tried_point
from attnprof.measure.request import PointRequest
from attnprof.processes import forks
from attnprof.processes.folders import temporary_folder
from attnprof.processes.forks import Ended, signal_name
from attnprof.processes.pool import Pool, PoolError
from attnprof.record import ProfileRecord
from attnprof.units import format_bytes
from attnprof.user_code import error_text

#: Seconds for imports, building and counting, beside what the budget allows.
SETUP_S = 120.0
#: Seconds more for compiling.
COMPILING_S = 480.0
#: A child takes this many times the budget before it counts as stuck.
PATIENCE = 20.0
#: What modules that passed their check were held against; other processes need not do it again.
_CHECKED: dict[tuple[Any, ...], str] = {}
_POOL = Pool("attnprof.measure.isolation")
atexit.register(_POOL.stop)
#: What counting on fake tensors needs; they import ``torch._dynamo``, which takes a second.
COUNTING = (
    "torch._dynamo", "attnprof.trace.request.lookup", "attnprof.trace.run.runs",
    "attnprof.trace.events",
)  # fmt: skip
#: What a process needs of what is slow to import.
PRELOAD = ("torch", "numpy", "fvcore.nn", "psutil", "attnprof.measure.point", *COUNTING)
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
    if limit_s is None:
        limit_s = SETUP_S + PATIENCE * request.budget.max_time_s
        limit_s += COMPILING_S if request.compiled else 0.0
    asked = replace(request, check=request.check and check_key(request) not in _CHECKED)
    order = {"do": "measure", "request": asked.to_dict(), "memory_limit": memory_limit,
             "try_all": try_all}  # fmt: skip
    with temporary_folder() as folder:
        order["folder"] = str(folder)
        try:
            ended = _POOL.run(order, limit_s, memory=request.device == "cpu")
        except (PoolError, TimeoutError):
            _POOL.stop()
            vanished = "the process that measured it vanished: the process that kept it was ended"
            return blank(request, f"{vanished}, too")
        if ended.timed_out:
            return blank(request, f"stopped: no result after {limit_s:g} s in a process of its own")
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
    who, need = "the process that measured it", _read(folder / _NEED)
    if ended.code < 0 and not ended.stopped:
        cause = ", most likely out of memory" if ended.code == -signal.SIGKILL else ""
        return f"{who} was killed by {signal_name(-ended.code)}{cause}" + (need and f": {need}")
    said = f": {ended.last_line}" if ended.last_line else ""
    return f"{who} {ended.how} and gave no record{said}"


def preload(order: Mapping[str, Any]) -> None:
    """In the pool's server: import what an order needs, and load every mechanism's costs first."""
    if not order:
        registry.names()
        needed: tuple[str, ...] = PRELOAD
    else:
        needed = ("torch._inductor.compile_fx",) if order["request"]["compiled"] else ()
    for name in needed:
        import_module(name)


def measure(order: Mapping[str, Any], _say: object, _more: object) -> int:
    """In a process of the pool: measure a request, write the record into a folder."""
    folder, limit = Path(order["folder"]), order["memory_limit"]
    request = PointRequest.from_dict(order["request"])

    def before() -> None:
        need = f"needs {format_bytes(needed_bytes(request))} by the closed form"
        (folder / _NEED).write_text(need, encoding="utf-8")
        if limit is not None:
            forks.limit_memory(limit)

    try:
        record = tried_point(request, limit, try_all=order["try_all"], before=before)
    except BaseException as error:  # noqa: BLE001 - somebody's code may raise anything
        ours = isinstance(error, AttnprofError)
        reason = str(error) if ours else f"it raised {error_text(error)}"
        (folder / _REASON).write_text(reason, encoding="utf-8")
        return CannotRunError.exit_code
    (folder / _RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
    return 0
