"""Commands as forks of a process that has imported what they need, which takes seconds, once."""

import json
import os
import subprocess
import sys

#: Forks for each line, which has a folder, one for what is printed, arguments and an environment,
#: and says the exit code.
PROGRAM = """
import atexit, gc, json, os, signal, sys, tempfile
import torch, torch._dynamo, fvcore.nn
import attnprof.gate.check, attnprof.measure.batch, attnprof.trace.solve.derive
from attnprof.cli.app import main
from attnprof.processes import pool
from tests.forking import fork_here, forking

pool.subprocess = forking(fork_here)
gc.freeze()  # what forks share is never looked through again, and so never copied
for line in sys.stdin:
    folder, outputs, arguments, environment = json.loads(line)
    if (child := os.fork()) == 0:
        signal.alarm(240)
        os.chdir(folder)
        for number, name in enumerate((os.devnull, f"{outputs}/stdout", f"{outputs}/stderr")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
            os.dup2(os.open(name, flags), number)
        os.environ.update(environment)
        tempfile.tempdir, sys.argv[1:] = None, arguments
        sys.path.insert(0, folder)
        try:
            main()
        except SystemExit as ended:  # no interpreter is taken apart, in each of three processes
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(ended.code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forking:
    """The process that forks."""

    def __init__(self, **environment):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **environment},
        )  # fmt: skip
        self.pid = self._process.pid

    def run(self, arguments, folder, outputs, **environment):
        """The command's end, as :func:`subprocess.run` gives it."""
        order = [str(folder), str(outputs), [*arguments], environment]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err = ((outputs / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(arguments, code, out, err)

    def stop(self):
        self._process.kill()
        self._process.communicate()
