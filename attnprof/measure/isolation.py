"""Run a point in a process of its own, so that its death is a row and not ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import attnprof
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.point import blank, describe_need, measure_point
from attnprof.measure.request import PointRequest
from attnprof.record import ProfileRecord

#: Seconds for imports, building and counting, beside what the budget allows.
SETUP_S = 120.0
#: A child takes this many times the budget before it counts as stuck.
PATIENCE = 20.0
#: The variable that tells a child how much memory it may map, in bytes.
_LIMIT = "ATTNPROF_MEMORY_LIMIT"


def measure_apart(
    request: PointRequest, limit_s: float | None = None, memory_limit: int | None = None
) -> ProfileRecord:
    """The point's record from a child process; its death or silence is a ``skipped`` reason.

    ``memory_limit`` is how many bytes of data the child may map.
    """
    limit = SETUP_S + PATIENCE * request.budget.max_time_s if limit_s is None else limit_s
    with tempfile.TemporaryDirectory(prefix="attnprof-") as folder:
        answer = Path(folder) / "record.json"
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", "attnprof.measure.isolation", str(answer)],
                input=json.dumps(request.to_dict()),
                capture_output=True, text=True, check=False, timeout=limit,
                env=_environment(memory_limit),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return blank(request, f"stopped: no result after {limit:.0f} s in a process of its own")
        if done.returncode == 0 and answer.exists():
            return ProfileRecord(**json.loads(answer.read_text(encoding="utf-8")))
    return blank(request, _cause_of_death(request, done.returncode, done.stderr))


def _environment(memory_limit: int | None) -> dict[str, str]:
    """This process's variables, with the place this package was imported from."""
    limit = {} if memory_limit is None else {_LIMIT: str(memory_limit)}
    here = str(Path(attnprof.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **limit, "PYTHONPATH": os.pathsep.join(paths)}


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


def _limit_memory() -> None:
    """Let the kernel refuse what is more than the parent allows: an error instead of a kill."""
    limit = os.environ.get(_LIMIT)
    if limit is None:
        return
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))


def main() -> int:
    """Read a request from stdin, measure, write the record to the file named."""
    _volunteer()
    _limit_memory()
    request = PointRequest.from_dict(json.load(sys.stdin))
    try:
        record = measure_point(request)
    except AttnprofError as error:
        sys.stderr.write(f"{error}\n")
        return CannotRunError.exit_code
    Path(sys.argv[1]).write_text(json.dumps(asdict(record)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
