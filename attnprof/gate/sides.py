"""The two sides of a comparison, seen from the process that judges them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import attnprof
from attnprof.errors import CannotRunError
from attnprof.gate import worker
from attnprof.gate.cases import Counted
from attnprof.measure.request import PointRequest
from attnprof.processes import keeping
from attnprof.processes.folders import temporary_folder
from attnprof.processes.keeping import Ended

#: Seconds after which one order is given up: building, counting or a block of calls.
LIMIT_S = 300.0
#: Bytes of a line that is an answer; what is longer was written by somebody's code.
_LONGEST = 1 << 26
#: Memory that glibc maps and gives back at every call costs page faults that depend on where the
#: process was put: two processes of the same code were seen 17 % apart for all of their life, and
#: less than 2 % with memory kept. The rest keeps a tree as it was found.
_STEADY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class SideError(Exception):
    """What was asked cannot be done on a ``side``; ``missing``: the code does not exist there."""

    def __init__(self, message: str, *, missing: bool = False, side: Side | None = None) -> None:
        super().__init__(message)
        self.missing = missing
        self.side = side


class Side:
    """A tree of code with a process that runs it.

    An order is asked (:meth:`ask`) and its answer taken (:meth:`answer`), so that two sides can
    work at the same time. What fails is a :class:`SideError`; the process survives it.
    """

    def __init__(
        self, tree: Path, label: str, threads: int = 1, limit_s: float | None = None
    ) -> None:
        self.tree = tree.resolve()
        self.label = label
        self._limit_s = limit_s
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._open = self._ready = False
        self._asked = self._run = 0  # numbers of the last order, and of that which has a process
        # both sides see paths of the same length: where a stack starts depends on such things
        self._alias = contextlib.ExitStack()
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def count(self, request: PointRequest, *, formulas: bool) -> Counted:
        """What has no noise; an error is part of the answer."""
        self.ask_count(request, formulas=formulas)
        return self.counted()

    def ask_count(self, request: PointRequest, *, formulas: bool) -> None:
        """Ask for :meth:`counted`."""
        self.ask({"do": "count", "request": request.to_dict(), "formulas": formulas})

    def counted(self) -> Counted:
        """The answer to :meth:`ask_count`."""
        try:
            found = Counted.from_dict(self.answer()["counted"])
            self._ended()
        except SideError as error:
            return Counted(error=str(error), missing=error.missing)
        return found

    def ask_open(self, request: PointRequest) -> None:
        """Ask for a module, built and warm; :meth:`close` ends it, answered or not."""
        self._open = True
        self.ask({"do": "open", "request": request.to_dict()})

    def opened(self) -> float:
        """Seconds of one call of what :meth:`ask_open` asked for."""
        return float(self.answer()["call_s"])

    def block(self, calls: int) -> tuple[float, float]:
        """Processor and wall seconds of so many calls of what is open."""
        self.ask({"do": "block", "calls": calls})
        found = self.answer()
        return float(found["cpu_s"]), float(found["wall_s"])

    def close(self) -> None:
        """End what is open; nothing where nothing is."""
        if self._open:
            self._open = False
            self.ask({"do": "close"})
            self._ended()

    def stop(self) -> None:
        """End the process and all it has started."""
        if self._process is not None:
            keeping.end_family(self._process.pid)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._alias.close()
        self._process, self._rest, self._open, self._ready = None, b"", False, False

    def ask(self, order: Mapping[str, Any]) -> None:
        """Send an order, and start the process where there is none."""
        process = self._started()
        if not self._ready:
            self._wait_ready()
        self._asked += 1
        if order["do"] in ("count", "open"):
            self._run = self._asked
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({**order, "id": self._asked}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise SideError(self._died()) from error

    def answer(self) -> dict[str, Any]:
        """The answer to the last order."""
        found = self._line()
        if "error" in found:
            self._open = False
            self._ended()
            raise SideError(found["error"], missing=found["missing"], side=self)
        if "ended" in found:
            self._open = False
            raise SideError(_death(found))
        return found

    def _ended(self) -> None:
        while "ended" not in (found := self._line()):
            pass
        if found["ended"] < 0:
            raise SideError(_death(found))

    def _line(self, limit_s: float | None = None) -> dict[str, Any]:
        """The next answer of the process that runs; :class:`SideError` where there is none."""
        limit_s = limit_s or self._limit_s or LIMIT_S
        end = time.monotonic() + limit_s
        while True:
            self._read(end, limit_s)
            line, _, self._rest = self._rest.partition(b"\n")
            with contextlib.suppress(ValueError):  # what somebody's code has written there
                found = json.loads(line)
                if isinstance(found, dict) and found.get("id") == (self._run if self._ready else 0):
                    return found

    def _read(self, end: float, limit_s: float) -> None:
        """Read until there is a whole line, and wake the process if somebody put it to sleep."""
        process = self._process
        if process is None or process.stdout is None:
            raise SideError(f"the process of {self.label} died")
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or len(self._rest) > _LONGEST:
                self.stop()
                raise SideError(f"no answer within {limit_s:g} s")
            if not select.select([process.stdout], [], [], min(left, 1.0))[0]:
                os.kill(process.pid, signal.SIGCONT)
                continue
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                raise SideError(self._died())
            self._rest += piece

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            home = str(Path(attnprof.__file__).resolve().parents[1])
            threads = str(self._threads)
            place = self._alias.enter_context(temporary_folder()) / "tree"
            place.symlink_to(self.tree, target_is_directory=True)
            self._errors = self._alias.enter_context((place.parent / "stderr").open("w+b"))
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                [sys.executable, str(Path(worker.__file__).resolve()), str(place), home,
                 str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                cwd=place, start_new_session=True, bufsize=0,
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **_STEADY,
                     "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            )  # fmt: skip
        return self._process

    def _wait_ready(self) -> None:
        """Until everything is imported; :class:`CannotRunError` where that fails at first."""
        try:
            self._line(LIMIT_S)  # imports take their time, whatever limit an order has
        except SideError as error:
            if self._asked:
                raise
            raise CannotRunError(
                f"{self.label}: torch and attnprof cannot be imported there: {error}"
            ) from error
        self._ready = True

    def _died(self) -> str:
        """That the process is gone, and how; nothing of it is left."""
        process, said = self._process, ""
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(keeping.PATIENCE_S)
            if self._errors is not None:
                self._errors.seek(0)
                said = Ended(0, self._errors.read().decode(errors="replace")).last_line
            code = process.returncode
            self.stop()
            if code is not None and code < 0:
                said = f"it {Ended(code).how}"
        return f"the process of {self.label} died{': ' + said if said else ''}"


def _death(found: Mapping[str, Any]) -> str:
    ended = Ended(found["ended"], found["said"])
    how = found["how"] + (" and gave no answer" if ended.code == 0 else "")
    return f"its process {how}{': ' + ended.last_line if ended.last_line else ''}"
