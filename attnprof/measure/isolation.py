"""Run a point in a process of its own, so that its death is a row and not ours."""

from __future__ import annotations

import atexit
import json
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.correctness import check_key
from attnprof.measure.forks import ForkServer
from attnprof.measure.point import blank, describe_need, measure_point, spent_s
from attnprof.measure.request import PointRequest
from attnprof.record import ProfileRecord

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


def measure_apart(
    request: PointRequest, limit_s: float | None = None, memory_limit: int | None = None
) -> ProfileRecord:
    """The point's record from a child process; its death or silence is a ``skipped`` reason.

    ``memory_limit`` is how many bytes of data the child may map.
    """
    start = time.perf_counter()
    patience = SETUP_S + PATIENCE * request.budget.max_time_s
    patience += COMPILING_S if request.compiled else 0.0
    limit = patience if limit_s is None else limit_s
    key = check_key(request)
    asked = replace(request, check=request.check and key not in _CHECKED)
    with tempfile.TemporaryDirectory(prefix="attnprof-") as folder:
        answer = Path(folder) / "record.json"
        ended = _SERVER.run(asked.to_dict(), answer, limit, memory_limit)
        if ended.timed_out:
            return blank(request, f"stopped: no result after {limit:g} s in a process of its own")
        if ended.code == 0 and answer.exists():
            record = ProfileRecord(**json.loads(answer.read_text(encoding="utf-8")))
            return _completed(request, record, time.perf_counter() - start)
    return blank(request, _cause_of_death(request, ended.code, ended.message))


def _completed(request: PointRequest, record: ProfileRecord, spent: float) -> ProfileRecord:
    """With the time of the process's start, and with the check of an earlier process."""
    record = replace(record, start_s=spent - spent_s(record))
    if not request.check:
        return record
    if record.checked and record.skipped is None:
        _CHECKED[check_key(request)] = record.checked
    return replace(record, checked=record.checked or _CHECKED.get(check_key(request)))


def _cause_of_death(request: PointRequest, code: int, stderr: str) -> str:
    if code == CannotRunError.exit_code:
        return stderr.strip().splitlines()[-1] if stderr.strip() else "cannot run here"
    if code < 0:
        name = signal.Signals(-code).name
        cause = ", most likely out of memory" if code == -signal.SIGKILL else ""
        return f"the process that measured it was killed by {name}{cause}: {describe_need(request)}"
    last = stderr.strip().splitlines()[-1] if stderr.strip() else "no message"
    return f"the process that measured it ended with code {code}: {last[:200]}"


def _volunteer() -> None:
    """Ask the kernel to kill this process first when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _limit_memory(limit: int) -> None:
    """Let the kernel refuse what is more than the parent allows: an error instead of a kill."""
    with suppress(ImportError):  # no such limits on some systems
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def answer_to(request: dict[str, Any], answer: Path, memory_limit: int | None) -> int:
    """Measure in this process and write the record to a file; the exit code."""
    _volunteer()
    if memory_limit is not None:
        _limit_memory(memory_limit)
    try:
        record = measure_point(PointRequest.from_dict(request))
    except AttnprofError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        return CannotRunError.exit_code
    answer.write_text(json.dumps(asdict(record)), encoding="utf-8")
    return 0
