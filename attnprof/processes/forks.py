"""Fork, wait, and report how the child ended; every process that it left behind is killed.

The process that calls :func:`run_forked` is a keeper: it has one thread, runs none of the work
itself, and adopts processes that the work leaves running.

As a script, ``python forks.py SETUP``, this file is the server of a pool: a keeper that imports
slow modules and forks for each order. It uses the standard library alone: a pool of this version
serves a folder that holds another version of the package, or none. A line of JSON on stdin orders a
fresh process, which runs the function named by ``do`` and may read more lines. Lines on stdout are
answers with the ``id`` of their order; the last says how the process ended. By then every process
below it is gone.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from os import write as _write  # user code may replace the module's
from pathlib import Path
from typing import Any

#: Seconds between two checks whether a child was stopped, or died without a signal to us.
LOOK_S = 0.5
#: Last bytes of a child's stderr that are kept.
KEPT = 4000
#: Seconds in which killed processes must be gone.
PATIENCE_S = 5.0
#: Exit code of a child with an uncaught exception.
RAISED = 70
#: Ends the process at once; bound here, since user code may replace ``os._exit``.
leave = os._exit
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36

_Line = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """The end of a child: its exit code (negative: the signal), and the last of its stderr."""

    code: int
    stderr: str = ""
    timed_out: bool = False
    stopped: bool = False

    @property
    def how(self) -> str:
        """Return ``ended with signal 11 (SIGSEGV, segmentation fault)``."""
        if self.stopped:
            return "stopped itself (SIGSTOP)"
        if self.code < 0:
            return f"ended with {signal_text(-self.code)}"
        return f"ended with exit status {self.code}"

    @property
    def last_line(self) -> str:
        """Return the last line it wrote to stderr, or ""."""
        return (self.stderr.strip().splitlines() or [""])[-1][:300]


def signal_text(number: int) -> str:
    """Return ``signal 11 (SIGSEGV, segmentation fault)``."""
    words = (signal.strsignal(number) or "").split(":")[0].lower()
    return f"signal {number} ({signal_name(number)}{', ' + words if words else ''})"


def signal_name(number: int) -> str:
    """Return ``SIGSEGV``; some signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents die (on Linux)."""
    _prctl(_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` dies (on Linux)."""
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        leave(RAISED)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def ignore_signals() -> None:
    """Ignore signals that a child may send to its parent."""
    kept = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}
    for number in signal.valid_signals() - kept:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, zombies included."""
    pids: list[int] = []
    if Path("/proc/thread-self/children").exists():
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="ascii").split())
        return pids
    import psutil  # the kernel has no list of them

    with contextlib.suppress(psutil.Error):
        pids = [child.pid for child in psutil.Process(pid).children()]
    return pids


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one, nearest first."""
    pids = children(pid)
    for child in pids:
        pids += children(child)
    return pids


def kill(pid: int) -> None:
    """Kill a process and its group; nothing where there is none."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)


def end_descendants(keep: Container[int] = ()) -> None:
    """Kill and reap all processes below this one, but for the children in ``keep``."""
    this_process, end = os.getpid(), time.monotonic() + PATIENCE_S
    while left := [child for child in children(this_process) if child not in keep]:
        for pid in [*left, *(below for child in left for below in descendants(child))]:
            kill(pid)
        for child in left:
            with contextlib.suppress(OSError):
                os.waitpid(child, os.WNOHANG)
        if time.monotonic() > end:
            return
        time.sleep(0.001)


def end_family(pid: int) -> None:
    """Kill the processes below a keeper, which reaps them, and then the keeper."""
    end = time.monotonic() + PATIENCE_S
    while (left := descendants(pid)) and time.monotonic() < end:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
        for child in left:
            kill(child)
        time.sleep(0.002)
    kill(pid)


def die_first(score: int = 1000) -> None:
    """Ask the kernel to end this process first when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def limit_memory(limit: int | None = None) -> None:
    """Limit this process's memory, by default to what is free: an error instead of a kill."""
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        import psutil

        if limit is None:
            limit = psutil.Process().memory_info().data + psutil.virtual_memory().available
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def run_forked(work: Callable[[], int], limit_s: float | None) -> Ended:
    """Do the work in a fork of this process, for ``limit_s`` seconds at most; return its end.

    The work returns its exit code. Its stdout is dropped, the last of its stderr is kept;
    afterwards none of its processes is left. To be called by a keeper (see above).
    """
    keep = frozenset(children(os.getpid()))
    read, write = os.pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run_child(work, keeper, write)
    os.close(write)
    try:
        return _wait_for(child, read, limit_s)
    finally:
        os.close(read)
        end_descendants(keep)


def _run_child(work: Callable[[], int], keeper: int, stderr: int) -> None:
    """Run the work and end this process, whatever the work does to the interpreter."""
    write, code = os.write, RAISED
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGPIPE}:  # as in a new process
            with contextlib.suppress(OSError, ValueError, TypeError):
                if signal.getsignal(number) is not signal.SIG_DFL:
                    signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with_parent(keeper)
        die_first()
        os.dup2(stderr, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = work()
    except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it was
        with contextlib.suppress(BaseException):
            write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        leave(code if isinstance(code, int) else RAISED)


def _wait_for(child: int, stderr: int, limit_s: float | None) -> Ended:
    """Return how the child ended; kill it when its time is up or when it was stopped."""
    start, tail = time.monotonic(), b""
    files = [stderr]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            files.append(os.pidfd_open(child))  # can be read when the child is dead
            stack.callback(os.close, files[1])
        while True:
            done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            stopped = bool(done) and os.WIFSTOPPED(status)
            if done and not stopped:
                break
            late = limit_s is not None and time.monotonic() - start > limit_s
            if late or stopped:
                kill(child)
                os.waitpid(child, 0)
                text = tail.decode(errors="replace")
                return Ended(-signal.SIGKILL, text, late and not stopped, stopped)
            left = LOOK_S if limit_s is None else min(LOOK_S, start + limit_s - time.monotonic())
            if stderr in select.select(files, [], [], max(0.0, left))[0]:
                piece = os.read(stderr, 1 << 16)
                tail = (tail + piece)[-KEPT:]
                if not piece:
                    files.remove(stderr)
    while select.select([stderr], [], [], 0)[0] and (piece := os.read(stderr, 1 << 16)):
        tail = (tail + piece)[-KEPT:]
        if time.monotonic() - start > (limit_s or 0) + PATIENCE_S:
            break  # somebody it forked writes on
    return Ended(os.waitstatus_to_exitcode(status), tail.decode(errors="replace"))


def main() -> None:
    """Serve orders until stdin ends."""
    setup, folder = json.loads(sys.argv[1]), Path(__file__).resolve().parent
    die_with_parent(setup["parent"])
    ignore_signals()
    adopt_orphans()
    paths = [*setup["first"], *(path for path in sys.path if path != str(folder))]
    home = str(folder.parents[1])
    sys.path[:] = paths if home in paths else [*paths, home]
    orders, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # prints of user code are no answer
    name = setup["worker"]
    worker = _from_file("attnprof_worker", Path(name)) if "/" in name else import_module(name)
    gc.disable()  # imported modules stay
    worker.preload({})
    gc.freeze()  # objects that forks share are never collected, and so never copied
    gc.enable()
    _say(answers, 0, {"ready": True})
    while (order := _next(orders)) is not None:
        if "do" not in order:  # for a process that is gone
            continue
        worker.preload(order)
        work = partial(_work, worker, order, orders, answers)
        ended = run_forked(work, order.get("limit_s"))
        _say(answers, order["id"], {"ended": vars(ended)})


def _work(worker: Any, order: _Line, orders: int, answers: int) -> int:
    """Run an order's function in the fork made for it; return its exit code."""
    if order["memory"]:
        limit_memory()
    say, more = partial(_say, answers, order["id"]), partial(_next, orders)
    code: int = getattr(worker, order["do"])(order, say, more)
    return code


def _from_file(name: str, file: Path) -> Any:
    """Load a module of this version, whatever version can be imported here."""
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _next(orders: int) -> _Line | None:
    """Return the next order; None at the end. The pool sends one only after the last answer."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(orders, 1 << 16)
        if not piece:
            return None
        line += piece
    message: _Line = json.loads(line)
    return message


def _say(answers: int, number: int, answer: _Line) -> None:
    """Write an answer to the order with this number."""
    data = f"\n{json.dumps({'id': number, **answer})}\n".encode()  # a line, whatever was before
    while data:
        data = data[_write(answers, data) :]


if __name__ == "__main__":
    main()
