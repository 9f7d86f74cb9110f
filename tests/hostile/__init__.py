"""Modules that do what modules of attention should not; each file has one, named ``Att``."""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = """
import atexit, contextlib, ctypes, os, pathlib, signal, sys, threading, time
import numpy as np
from torch import nn

{in_import}
class NotAnException(BaseException): ...
class Att(nn.Module):
    def forward(self, x):
        {in_forward}
        return x @ x.transpose(-1, -2) @ x
"""
_IN_IMPORT = {"exits_in_import": "sys.exit(0)", "vanishes_in_import": "os._exit(0)"}
_IN_FORWARD = {
    # takes memory until there is no more; none of it is touched, for others need it
    "allocates": """
        held = []
        while True:
            held.append(np.empty(1 << 30, np.uint8))""",
    "closes_descriptors": "os.closerange(0, 1 << 16)",
    "crashes": "ctypes.string_at(0)",
    # leaves a process behind that has left its session and its parents
    "daemons": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                time.sleep(1000)
            os._exit(0)
        os.wait()""",
    "ends_parent": """
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGPIPE"):
            os.kill(os.getppid(), getattr(signal, name))""",
    "exits": "sys.exit(5)",  # a code that means something else here
    # writes 100 MB to stdout and as much to stderr
    "floods": """
        line = b"x" * (1 << 20)
        for _ in range(100):
            os.write(1, line)
            os.write(2, line)""",
    # leaves three processes behind
    "forks": """
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(1000)
                os._exit(0)""",
    "hangs_at_exit": "atexit.register(time.sleep, 1000)",
    "hangs_in_c": """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(10_000)""",
    "interrupts": "raise KeyboardInterrupt",
    "kills_parent": "os.kill(os.getppid(), signal.SIGKILL)",
    # changes the folder, what files are born with, and removes itself
    "moves_away": """
        pathlib.Path(__file__).unlink(missing_ok=True)
        os.chdir("/")
        os.umask(0o777)""",
    # uses up the stack
    "overflows": """
        sys.setrecursionlimit(10**9)

        def deeper(_):
            return list(map(deeper, [0]))

        deeper(0)""",
    "raises_more": 'raise NotAnException("of no use")',
    "replaces": "os._exit = sys.exit = os.kill = os.write = signal.signal = print",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stops_parent": "os.kill(os.getppid(), signal.SIGSTOP)",
    "thread_stays": "threading.Thread(target=threading.Event().wait).start()",
    "vanishes": "os._exit(0)",
    "writes_everywhere": """
        for handle in range(3, 256):
            with contextlib.suppress(OSError):
                os.write(handle, b"garbage\\n{}\\nmore")""",
}
#: All of them, by the names of their files.
NAMES = sorted({*_IN_IMPORT, *_IN_FORWARD})


def copied(folder: Path, names: list[str] = NAMES) -> list[str]:
    """Copies in a folder, as arguments of a command that is run there."""
    for name in names:
        in_import, in_forward = _IN_IMPORT.get(name, ""), _IN_FORWARD.get(name, "").lstrip()
        text = _FILE.replace("{in_import}", in_import).replace("{in_forward}", in_forward)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [f"{name}.py:Att" for name in names]


def marked(mark: str, wait_s: float = 0.0) -> list[int]:
    """Processes that were started with this text in their environment, after some patience."""
    end = time.monotonic() + wait_s
    while (processes := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return processes


def _marked(mark: str) -> list[int]:
    processes = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            held = mark.encode() in (place / "environ").read_bytes()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if held and state != "Z" and int(place.name) != os.getpid():
            processes.append(int(place.name))
    return processes
