"""A server that imports torch once and forks a fresh process for every point.

A process of its own costs seconds of imports; a fork of one that has imported everything and has
run nothing costs milliseconds, and its death is as harmless. Requests and answers are lines of
JSON over pipes; the server itself never measures.
"""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import attnprof
from attnprof import registry

#: What a child needs of what is slow to import.
PRELOAD = ("torch", "numpy", "fvcore.nn", "psutil", "attnprof.measure.point")
#: Seconds between two looks at a running child.
_LOOK_S = 0.02


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (negative: the signal), or that its time was up."""

    code: int
    timed_out: bool = False
    message: str = ""


class ForkServer:
    """Forks a child for each call of :meth:`run`; started when first needed, again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, request: Mapping[str, Any], answer: Path, limit_s: float, memory_limit: int | None
    ) -> Ended:
        """Measure a request in a child, which writes its record to ``answer``."""
        server = self._started()
        order = {
            "request": dict(request), "answer": str(answer), "limit_s": limit_s,
            "memory_limit": memory_limit,
        }  # fmt: skip
        try:
            assert server.stdin is not None and server.stdout is not None  # noqa: PT018 - pipes
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            line = server.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self.close()
            return Ended(-signal.SIGKILL, message="the server of processes died with it")
        return Ended(**json.loads(line))

    def close(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            here = str(Path(attnprof.__file__).parents[1])
            paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "attnprof.measure.forks"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ,
                     "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        return self._process


def serve() -> None:
    """Read orders from stdin until it closes; fork, wait, answer.

    Every shipped mechanism's costs are loaded before, so that no child has to.
    """
    from importlib import import_module

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a child prints is no answer
    for name in PRELOAD:
        import_module(name)
    registry.names()
    for line in sys.stdin:
        order = json.loads(line)
        if order["request"].get("compiled"):
            import_module("torch._inductor.compile_fx")
        answers.write(json.dumps(vars(_answered(order))) + "\n")
        answers.flush()


def _answered(order: dict[str, Any]) -> Ended:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(write, 2)
        os._exit(_child(order))
    os.close(write)
    try:
        return _waited(child, read, order["limit_s"])
    finally:
        os.close(read)


def _child(order: dict[str, Any]) -> int:
    from attnprof.measure.isolation import answer_to

    try:
        return answer_to(order["request"], Path(order["answer"]), order["memory_limit"])
    except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it was
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        return 70


def _waited(child: int, stderr: int, limit_s: float) -> Ended:
    """The child's end; it is killed when its time is up. Only the end of its stderr is kept."""
    end, said = time.monotonic() + limit_s, b""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(-signal.SIGKILL, timed_out=True)
        if select.select([stderr], [], [], _LOOK_S)[0]:
            said = (said + os.read(stderr, 65536))[-65536:]
            time.sleep(0 if said else _LOOK_S)
    while select.select([stderr], [], [], 0)[0] and (more := os.read(stderr, 65536)):
        said = (said + more)[-65536:]
    return Ended(os.waitstatus_to_exitcode(status), message=said.decode(errors="replace"))


if __name__ == "__main__":
    serve()
