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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import attnprof
from attnprof import registry
from attnprof.processes import keeping
from attnprof.processes.keeping import Ended

#: What a child needs of what is slow to import.
PRELOAD = ("torch", "numpy", "fvcore.nn", "psutil", "attnprof.measure.point")
#: And what of it only modules of somebody's own need, and only compiled ones.
OWN = ("torch._dynamo", "attnprof.trace.finding", "attnprof.trace.runs", "attnprof.trace.totals")
COMPILED = ("torch._inductor.compile_fx",)
#: Seconds the server may take for its imports, beside what a child may.
STARTING_S = 120.0
#: Why there is no answer where the server itself is gone.
KEEPER_DIED = "the process that kept it was ended"


class ForkServer:
    """Forks a child for each call of :meth:`run`; started when first needed, again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, request: Mapping[str, Any], folder: Path, limit_s: float, terms: Mapping[str, Any]
    ) -> Ended:
        """Measure a request in a child, which writes what it finds into the folder."""
        server = self._started()
        order = {"request": dict(request), "folder": str(folder), "limit_s": limit_s, **terms}
        try:
            assert server.stdin is not None
            server.stdin.write(json.dumps(order).encode() + b"\n")
            server.stdin.flush()
            line = self._line(server, limit_s + STARTING_S)
        except OSError:
            line = b""
        try:
            return Ended(**json.loads(line))
        except (ValueError, TypeError):
            self.close()
            return Ended(-signal.SIGKILL, KEEPER_DIED)

    @staticmethod
    def _line(server: subprocess.Popen[bytes], limit_s: float) -> bytes:
        """The server's answer, nothing where it is dead; it is woken if a child put it to sleep."""
        assert server.stdout is not None
        end, found = time.monotonic() + limit_s, b""
        while not found.endswith(b"\n") and time.monotonic() < end:
            if not select.select([server.stdout], [], [], 1.0)[0]:
                os.kill(server.pid, signal.SIGCONT)
                continue
            piece = os.read(server.stdout.fileno(), 1 << 16)
            if not piece:
                return b""
            found += piece
        return found

    def close(self) -> None:
        """End the server, and all it has started."""
        if self._process is not None:
            keeping.end_family(self._process.pid)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            here = str(Path(attnprof.__file__).parents[1])
            paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "attnprof.measure.forks", str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
                env={"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ,
                     "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        return self._process


def serve(parent: int) -> None:
    """Read orders from stdin until it closes; fork, wait, answer.

    Every shipped mechanism's costs are loaded before, so that no child has to.
    """
    from importlib import import_module

    keeping.die_with_parent(parent)
    keeping.ignore_signals()
    keeping.adopt_orphans()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a child prints is no answer
    for name in PRELOAD:
        import_module(name)
    registry.names()
    for line in sys.stdin:
        order = json.loads(line)
        for name in (*(OWN if ":" in order["request"]["mechanism"] else ()),
                     *(COMPILED if order["request"].get("compiled") else ())):  # fmt: skip
            import_module(name)
        ended = keeping.run_forked(partial(_measured, order, answers), order["limit_s"])
        answers.write(json.dumps(asdict(ended)) + "\n")
        answers.flush()


def _measured(order: dict[str, Any], answers: IO[str]) -> int:
    from attnprof.measure.isolation import answer_to

    os.close(answers.fileno())
    os.dup2(1, 0)  # nor does it read orders
    return answer_to(
        order["request"], Path(order["folder"]), order["memory_limit"], try_all=order["try_all"]
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]))
