"""Temporary folders go with their process, also where that had no time to remove them."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from attnprof.processes import folders

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
        own = folders.run_folder()
        assert len(before - set(temporary.iterdir())) == 1
        assert own.is_dir()
        with folders.temporary_folder() as place:
            assert place.parent == own
        assert not place.exists()
        living.send_signal(signal.SIGKILL)
    folders.remove_left_over()
    assert set(temporary.iterdir()) == {own, temporary / "attnprof-of-somebody-else"}


def test_a_fork_keeps_the_folder_and_does_not_remove_it(temporary):
    own = folders.run_folder()
    assert own.parent == temporary
    if (child := os.fork()) == 0:
        folders.close_run()
        os._exit(0)
    os.waitpid(child, 0)
    folders.remove_left_over()
    assert own.is_dir()
