"""A command whose process dies is told and never passes; what is asked by signals is passed on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile import marked

ROOT = Path(__file__).parents[2]
#: A program whose whole work is supervised.
PROGRAM = """
import atexit, ctypes, os, signal, sys, threading, time
from attnprof.processes.folders import temporary_folder
from attnprof.processes import supervision

def fork_on():
    for steps in range(3):
        if os.fork() == 0:
            for _ in range(steps):
                os.setsid()
                if os.fork():
                    os._exit(0)
            time.sleep(1000)

def answer(text):
    with supervision.answering():
        sys.stdout.write(text)

def work():
    with temporary_folder():
        {work}
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has those of its jobs that are
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # in the background ignored
supervision.GRACE_S = {grace}
raise SystemExit(supervision.supervised(work, "my.py:Mine"))
"""


@pytest.fixture
def program(tmp_path):
    """A function that starts it with this work; afterwards nothing may be left of it."""
    mark, temporary = f"ATTNPROF_MARK={tmp_path}", tmp_path / "temporary"
    temporary.mkdir()
    started = []

    def start(work, grace=1.0):
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(work=work, grace=grace)], text=True, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary),
                 "ATTNPROF_MARK": str(tmp_path)},
        )  # fmt: skip
        started.append(child)
        return child

    yield start
    assert marked(mark, 10) == []
    end = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    assert list(temporary.iterdir()) == []
    for child in started:
        child.communicate()


@pytest.mark.parametrize(("work", "said"), [
    ("os._exit(0)", "exit status 0"),
    ("os._exit(2)", "exit status 2"),
    ("ctypes.string_at(0)", "signal 11 (SIGSEGV, segmentation fault)"),
    ("os.kill(os.getpid(), 9)", "signal 9 (SIGKILL, killed)"),
    ("os.kill(os.getppid(), 9); time.sleep(100)", "had its keeper ended by signal 9"),
    ("os.kill(os.getpid(), 2); time.sleep(100)", "ended itself by signal 2"),
    ("os.closerange(0, 4096)", "lost its output"),
    ("os.closerange(3, 4096); os.open(os.devnull, os.O_RDONLY)", "lost its output"),
    ("fork_on(); os._exit(0)", "exit status 0"),
])  # fmt: skip
def test_a_process_that_vanishes_is_told_and_is_no_pass(program, work, said):
    child = program(work)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 3
    assert said in err
    assert "my.py:Mine" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("work", [
    "pass",
    "fork_on()",
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "os.kill(os.getppid(), signal.SIGSTOP)",
    "[os.kill(os.getppid(), n) for n in (1, 2, 3, 10, 15)]",
    "os.killpg(0, signal.SIGURG); os.kill(os.getppid(), signal.SIGCHLD)",
    "threading.Thread(target=threading.Event().wait).start()",
    "atexit.register(time.sleep, 1000)",
    "sys.exit = os._exit = os.kill = print",
])  # fmt: skip
def test_an_answer_is_an_answer_whatever_else_happens(program, work):
    child = program(f"{work}; print('talk', flush=True); answer('data')", 0.3)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "data"), err


@pytest.mark.parametrize(("name", "code"), [
    ("SIGINT", 130), ("SIGTERM", -15), ("SIGHUP", -1), ("SIGKILL", -9),
])  # fmt: skip
@pytest.mark.parametrize("deaf", [False, True])
def test_a_signal_ends_all_of_it(program, name, code, deaf):
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());" if deaf else ""
    child = program(
        f"fork_on(); {block} print(1, flush=True); time.sleep(1000)", 0.1 if deaf else 1.0
    )
    child.stderr.readline()
    start = time.monotonic()
    child.send_signal(signal.Signals[name])
    assert child.wait(60) == code
    assert time.monotonic() - start < 30


def test_a_signal_after_the_answer_leaves_the_answer(program):
    held = "atexit.register(lambda: (print(1, flush=True), time.sleep(1000)))"
    child = program(held, grace=0.3)
    child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


def test_work_that_is_asked_to_end_may_clean_up(program, tmp_path):
    text = "open('half', 'w').close()\n        try: print(1, flush=True); time.sleep(1000)\n"
    child = program(text + "        finally: os.remove('half')")
    child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    child.wait(60)
    assert not (tmp_path / "half").exists()


def test_a_signal_that_a_destructor_swallows_comes_again(program, tmp_path):
    text = """
        class Slow:
            def __del__(self):
                print(1, flush=True)
                time.sleep(1000)
        thing = Slow()
        try:
            del thing
            time.sleep(1000)
        finally:
            open('heard', 'w').close()
"""
    child = program(text, grace=60.0)
    child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=50)
    assert (child.returncode, err) == (-signal.SIGTERM, "")
    assert (tmp_path / "heard").exists()
