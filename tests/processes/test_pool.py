"""Work that dies, hangs or forks on: the process that asked gets an answer, and nothing is left."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from attnprof.processes import folders, forks
from attnprof.processes.pool import run_apart
from tests.hostile import marked


def exits():
    sys.exit(5)


def vanishes():
    os._exit(0)


def crashes():
    ctypes.string_at(0)


def overflows():
    """Python's own calls would end with an exception; a tuple asks its entries in C."""
    nested = ()
    for _ in range(10**6):
        nested = (nested,)
    return hash(nested)


def stops():
    os.kill(os.getpid(), signal.SIGSTOP)


def kills_its_parent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10)


def closes():
    os.closerange(0, 4096)
    raise ValueError("nobody hears this")


@pytest.mark.parametrize(("work", "how"), [
    (exits, "exit status 70"),
    (vanishes, "exit status 0"),
    (crashes, "signal 11 (SIGSEGV, segmentation fault)"),
    (overflows, "SIGSEGV"),
    (stops, "stopped itself"),
    (kills_its_parent, "signal 9"),
    (closes, "exit status 70"),
])  # fmt: skip
def test_work_that_ends_its_process_has_no_answer_but_a_reason(work, how):
    answer = run_apart(work, 20)
    assert not answer.has_value
    assert how in answer.ended.how


@pytest.mark.parametrize("number", ["TERM", "INT", "HUP", "USR1", "STOP"])
def test_signals_to_the_parent_do_not_reach_the_answer(number):
    def work():
        os.kill(os.getppid(), signal.Signals[f"SIG{number}"])
        return {"a": [1, None]}

    assert run_apart(work, 20).value == {"a": [1, None]}
    assert run_apart(lambda: None).has_value


def test_the_last_line_of_stderr_is_told():
    def work():
        os.write(2, b"x" * (1 << 22) + b"\nthe last\n")
        raise ValueError("no such luck")

    ended = run_apart(work, 20).ended
    assert ended.last_line == "ValueError: no such luck"
    assert len(ended.stderr) <= forks.KEPT


def test_what_hangs_with_all_signals_blocked_is_ended():
    def work():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).sleep(1000)

    start = time.monotonic()
    ended = run_apart(work, 0.3).ended
    assert ended.timed_out
    assert time.monotonic() - start < 20


def test_threads_functions_for_the_end_and_replaced_ones_do_not_hold_it_up():
    def work():
        threading.Thread(target=threading.Event().wait).start()
        os._exit = sys.exit = os.kill = print
        return 1

    assert run_apart(work, 20).value == 1


def test_forks_and_daemons_are_ended():
    mark = f"ATTNPROF_MARK={os.getpid()}"

    def work():
        program = [sys.executable, "-c", "import time; time.sleep(1000)"]
        for steps in range(3):
            if os.fork() == 0:
                for _ in range(steps):
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                os.execve(sys.executable, program, dict([mark.split("=")]))
        time.sleep(0.3)
        return 1

    assert run_apart(work, 20).value == 1
    assert marked(mark, 5) == []


def test_memory_without_end_is_refused():
    def work():
        forks.limit_memory(1 << 32)
        held = []
        while True:
            held.append(bytes(1 << 28))

    assert "MemoryError" in run_apart(work, 30).ended.stderr


MAKE = """
import sys, time
from attnprof.processes.folders import temporary_folder
with temporary_folder() as place:
    (place / "held").mkdir(mode=0o000)
    print(place, flush=True)
    {then}
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An empty folder in the place of the system's temporary one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_RUN", [])
    yield tmp_path
    folders.close_run()


def started(then):
    child = subprocess.Popen(
        [sys.executable, "-c", MAKE.format(then=then)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    child.stdout.readline()
    return child


@pytest.mark.parametrize("then", ["pass", "sys.exit(3)", "1 / 0"])
def test_a_folder_is_gone_at_the_end(temporary, then):
    with started(then) as child:
        child.wait()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_at_the_next_start_and_nothing_else(temporary):
    with started("time.sleep(100)") as killed, started("time.sleep(100)") as living:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        (temporary / "attnprof-of-somebody-else").mkdir()
        before = set(temporary.iterdir())
        folder = folders.run_folder()
        assert len(before - set(temporary.iterdir())) == 1
        assert folder.is_dir()
        with folders.temporary_folder() as place:
            assert place.parent == folder
        assert not place.exists()
        living.send_signal(signal.SIGKILL)
    folders.remove_left_over()
    assert set(temporary.iterdir()) == {folder, temporary / "attnprof-of-somebody-else"}


def test_a_fork_keeps_the_folder_and_does_not_remove_it(temporary):
    folder = folders.run_folder()
    assert folder.parent == temporary
    if (child := os.fork()) == 0:
        folders.close_run()
        os._exit(0)
    os.waitpid(child, 0)
    folders.remove_left_over()
    assert folder.is_dir()
