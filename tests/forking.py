"""What starts Python as forks of a process that has imported torch, which takes seconds, once."""

import atexit
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

_CHILD_SUBREAPER = 36


def become(arguments, folder, environment, files):
    """Be what ``python ARGUMENTS`` is, in this folder, with these three files. Never returns."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 4096)
        os.chdir(folder or Path.cwd())
        os.environ.clear()
        os.environ.update(environment)
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        sys.argv[:] = arguments[1:]
        given = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [str(Path(sys.argv[0]).parent), *filter(None, given), *sys.path[1:]]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ended.code is not None
    except BaseException:  # noqa: BLE001 - whatever it was: an interpreter would print it and end
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_here(*what):
    """The id of a fork of this process."""
    return os.fork() or become(*what)


class Zygote:
    """A process that has imported torch and runs nothing; its forks become children of this one."""

    def __init__(self):
        self._owner, self._channel = os.getpid(), None

    def fork(self, arguments, folder, environment, files):
        """The id of a fork; None where this process cannot have it as its child."""
        if os.getpid() != self._owner or sys.platform != "linux":
            return None
        if self._channel is None:
            self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                process = subprocess.Popen(
                    [sys.executable, __file__, str(other.fileno())], pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
            atexit.register(process.wait)
            atexit.register(self._channel.close)  # by which it ends, and before that
        order = json.dumps([arguments, str(folder or Path.cwd()), dict(environment)]).encode()
        prctl = ctypes.CDLL(None).prctl
        prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._channel, [order], files)
            return int(self._channel.recv(100))
        finally:
            prctl(_CHILD_SUBREAPER, 0, 0, 0, 0)


def serve(channel):
    """Fork for each order, by a child that ends at once: who asked adopts what it has forked."""
    gc.freeze()
    while True:
        order, files, *_ = socket.recv_fds(channel, 1 << 20, 3)
        if not order:
            return
        if (between := os.fork()) == 0:
            between = os.getpid()
            if os.fork() == 0:
                while os.getppid() == between:
                    time.sleep(0.0005)
                channel.send(str(os.getpid()).encode())
                become(*json.loads(order), files)
            os._exit(0)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def forking(fork):
    """In the place of :mod:`subprocess`: it starts what ``fork`` gives the ids of."""

    class Forked(subprocess.Popen):
        def _execute_child(self, args, *given):
            cwd, env, pipes = given[4], given[5], given[9:15]
            pid = fork(args, cwd, env, (pipes[0], pipes[3], pipes[5]))
            if pid is None:
                super()._execute_child(args, *given)
                return
            self.pid, self._child_created = pid, True
            self._close_pipe_fds(*pipes)

    return SimpleNamespace(
        Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )


if __name__ == "__main__":
    for name in ("torch._dynamo", "numpy", "psutil"):
        import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
