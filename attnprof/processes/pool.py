"""Run work that may die apart from the caller: in a fork, or in fresh processes of a pool.

:func:`run_apart` forks once. A :class:`Pool` keeps a server that has imported torch, and forks it
for every order. Both return how the process ended (:class:`attnprof.processes.forks.Ended`).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from attnprof.processes import forks
from attnprof.processes.folders import temporary_folder
from attnprof.processes.forks import Ended
from attnprof.processes.progress import asking, loading

#: Seconds that a keeper may take beyond the limit of its work.
_GRACE_S = 10.0
#: Seconds a server may take for its imports.
STARTING_S = 300.0
#: Most bytes of an answer's line; a longer one was written by user code.
_LONGEST = 1 << 26


@dataclass(frozen=True)
class Outcome:
    """The end of a process and, if ``has_value``, the value of its work."""

    ended: Ended
    value: Any = None
    has_value: bool = False


def run_apart(work: Callable[[], Any], limit_s: float | None = None) -> Outcome:
    """Do the work in a process of its own and return its value, which must fit in JSON.

    A keeper process stands between: it takes whatever the work does to its parent.
    """
    with temporary_folder() as folder:
        value, end = folder / "value.json", folder / "ended.json"

        def answer() -> int:
            value.write_text(json.dumps(work()), encoding="utf-8")
            return 0

        _run_keeper(answer, end, limit_s)
        if not end.exists():
            return Outcome(Ended(-signal.SIGKILL, "the process that kept it was killed, too"))
        ended = Ended(**json.loads(end.read_text(encoding="utf-8")))
        has_value = ended.code == 0 and value.exists()
        result = json.loads(value.read_text(encoding="utf-8")) if has_value else None
        return Outcome(ended, result, has_value)


def _run_keeper(work: Callable[[], int], end: Path, limit_s: float | None) -> None:
    """Fork a keeper that runs the work in a fork of its own and writes the end of it to a file."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        keeper = os.fork()
    if keeper == 0:
        try:
            os.setsid()
            forks.ignore_signals()
            forks.die_with_parent(parent)
            forks.adopt_orphans()
            ended = forks.run_forked(work, limit_s)
            end.write_text(json.dumps(asdict(ended)), encoding="utf-8")
        finally:
            forks.leave(0)
    start, pause = time.monotonic(), 0.001
    asking(limit_s)
    try:
        while not os.waitpid(keeper, os.WNOHANG)[0]:
            if limit_s is not None and time.monotonic() - start > limit_s + _GRACE_S:
                raise TimeoutError(f"no answer within {limit_s + _GRACE_S:g} s")  # noqa: TRY301 - it is ended below
            if pause >= forks.LOOK_S / 10:  # somebody may have put it to sleep
                os.kill(keeper, signal.SIGCONT)
            time.sleep(pause)
            pause = min(2 * pause, forks.LOOK_S / 10)
    except BaseException:
        forks.end_family(keeper)
        os.waitpid(keeper, 0)
        raise


class PoolError(Exception):
    """The server of a pool is gone; the message says how."""


class Pool:
    """Fresh processes, forked by a server that has imported slow modules and run no user code.

    Starting Python costs seconds of imports, a fork tens of milliseconds, and its death is as
    harmless. ``worker`` is a module, or the path of one, with ``preload(order)``, called in the
    server, and the functions that orders name, each ``(order, say, more) -> exit code``. It
    runs in ``folder``, with ``first`` before all else on the import path and ``env`` in its
    environment. The server is started when first needed, and again when it died.

    Not :mod:`multiprocessing`'s forkserver: that one runs the caller's script again in every
    process, leaves what a process forked, and does not outlive a child that kills its parent.
    """

    def __init__(
        self, worker: str, folder: Path | None = None, first: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._worker, self._folder, self._first, self._env = worker, folder, first, env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._rest, self._ready = b"", False
        self.runs = 0
        self._errors: IO[bytes] | None = None

    def run(self, order: Mapping[str, Any], limit_s: float, *, memory: bool = True) -> Ended:
        """Run an order to its end, answers ignored; :class:`PoolError` if the server dies."""
        self.ask({**order, "limit_s": limit_s}, memory=memory)
        return self.ended(limit_s + STARTING_S)

    def ask(self, order: Mapping[str, Any], *, memory: bool = True) -> None:
        """Send an order to a fresh process; with ``memory`` it may not take more than is free."""
        self.ready()
        self.runs += 1
        self.send({**order, "id": self.runs, "memory": memory})

    def send(self, order: Mapping[str, Any]) -> None:
        """Send a line to the last order's process, if it is still there."""
        try:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(dict(order)).encode() + b"\n")
        except OSError as error:
            raise PoolError(self._cause_of_death()) from error

    def ended(self, limit_s: float) -> Ended:
        """Wait for the last order's process; return how it ended and drop its answers."""
        while "ended" not in (message := self.answer(limit_s)):
            pass
        return Ended(**message["ended"])

    def answer(self, limit_s: float, number: int | None = None) -> dict[str, Any]:
        """Return the next line of order ``number``, by default of the last one."""
        asking(limit_s)
        end = time.monotonic() + limit_s
        while True:
            self._read(end, limit_s)
            line, _, self._rest = self._rest.partition(b"\n")
            with contextlib.suppress(ValueError):  # user code has written there
                message = json.loads(line)
                if isinstance(message, dict) and message.get("id") == (
                    self.runs if number is None else number
                ):
                    return message

    def _read(self, end: float, limit_s: float) -> None:
        """Read until a line is complete; wake the server if a child stopped it."""
        process = self._process
        if process is None or process.stdout is None:
            raise PoolError("died")
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or len(self._rest) > _LONGEST:
                self.stop()
                raise TimeoutError(f"no answer within {limit_s:g} s")
            if not select.select([process.stdout], [], [], min(left, 1.0))[0]:
                os.kill(process.pid, signal.SIGCONT)
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                raise PoolError(self._cause_of_death())
            self._rest += piece

    def start(self) -> None:
        """Start the server unless it runs; :meth:`ready` waits for its imports."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        folder = Path(__file__).resolve().parent
        usual = [str(Path.cwd()), str(folder.parents[1])]
        first = usual if self._first is None else [*self._first]
        setup = {"parent": os.getpid(), "worker": self._worker, "first": first}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, str(folder / "forks.py"), json.dumps(setup)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            cwd=self._folder, start_new_session=True, bufsize=0, env={**os.environ, **self._env},
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until the server, started if none runs, has done its imports."""
        self.start()
        if not self._ready:
            with loading():
                self.answer(STARTING_S, 0)
            self._ready = True

    def stop(self) -> None:
        """End the server and all processes below it."""
        if self._process is not None:
            forks.end_family(self._process.pid)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
        self._process, self._rest, self._ready = None, b"", False

    def _cause_of_death(self) -> str:
        """Clean up after a dead server and return how it ended."""
        reason = ""
        if self._process is not None and self._errors is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(forks.PATIENCE_S)
            self._errors.seek(0)
            stderr = self._errors.read().decode(errors="replace")
            ended = Ended(self._process.returncode or 0, stderr)
            why = f"it {ended.how}" if ended.code < 0 else ended.last_line
            reason = why and f": {why}"
            self.stop()
        return f"died{reason}"
