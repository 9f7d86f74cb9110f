"""Whoever waits for long work is told what it does, how much of it, and for how long."""

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attnprof.cli.options import working
from attnprof.processes import progress
from attnprof.processes.pool import run_apart
from attnprof.processes.progress import TEXT, Progress, Step, tell, waiting
from attnprof.render import progress as lines


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def work(clock):
    return Progress(Step("measuring"), clock=lambda: clock[0])


def test_the_time_left_follows_from_the_pace_since_the_count_began(work, clock):
    work.tell("timing", 10, 30)  # ten were there before: they took no time
    clock[0] += 20
    work.tell("timing", 14, 30)
    assert work.sentence() == "timing: 14 of 30 done, 20 s so far, about 80 s left"
    clock[0] += 30
    assert work.sentence() == "timing: 14 of 30 done, 50 s so far, about 50 s left"


def test_another_total_begins_a_new_count(work, clock):
    work.tell("counting", 0, 2)
    clock[0] += 50
    work.tell("counting", 1, 2)
    work.tell("timing", 0, 40)
    assert work.sentence() == "timing: 0 of 40 done, 50 s so far"
    clock[0] += 1
    work.tell("timing", 1, 40)
    assert "about 39 s left" in work.sentence()


def test_a_forecast_runs_down_and_ends_at_nothing(work, clock):
    work.tell("timing", left_s=300)
    assert work.news.get(timeout=0) == work.sentence()  # worth a line at once
    clock[0] += 60
    assert "about 4 min left" in work.sentence()
    work.tell("building")
    work.tell("timing", left_s=240)
    assert work.news.empty()  # once is enough
    clock[0] += 600
    assert work.sentence().endswith("so far")  # a forecast that has run out says nothing


def test_an_answer_that_does_not_come_has_its_limit_told(work, clock):
    with waiting(work):
        tell("counting one", 1, 3)
        progress.asking(300)
        assert "given up" not in work.sentence()
        clock[0] += 25
        expected = "counting one: 1 of 3 done, 25 s so far, no answer for 25 s, given up after"
        assert work.sentence() == f"{expected} 5 min more"
        tell("counting two", 2, 3)
        assert "given up" not in work.sentence()


def test_what_is_told_where_nobody_waits_is_forgotten():
    tell("measuring", 1, 2)
    assert progress.waited_for() is None


def ticking(monkeypatch, **seconds):
    """A log in which lines come as soon as the thread that writes them can."""
    stream, written = io.StringIO(), threading.Event()
    write = stream.write

    def noticed(text):
        write(text)
        written.set()

    stream.write = noticed
    monkeypatch.setattr(sys, "stderr", stream)
    for name, value in seconds.items():
        monkeypatch.setattr(lines, name, value)
    return stream, written


def test_a_log_has_a_line_of_what_takes_long(monkeypatch):
    stream, written = ticking(monkeypatch, FIRST_LINE_S=0.01, EVERY_S=60.0)
    with working("counting"):
        tell("counting this one", 1, 4)
        assert written.wait(10)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("attnprof: counting")


def test_a_forecast_is_a_line_before_its_time(monkeypatch):
    stream, written = ticking(monkeypatch, FIRST_LINE_S=60.0, EVERY_S=60.0)
    with working("timing"):
        tell("timing at 16 tokens", left_s=90.0)
        assert written.wait(10)
    assert stream.getvalue() == "attnprof: timing at 16 tokens: 0 s so far, about 90 s left\n"


def test_quick_work_and_quick_steps_write_nothing(monkeypatch):
    stream, _ = ticking(monkeypatch)
    with working("counting"):
        for done in range(1000):
            tell("counting", done, 1000)
    assert stream.getvalue() == ""


def test_work_inside_of_work_is_a_step_of_it(monkeypatch):
    ticking(monkeypatch)
    with working("checking") as outer:
        with working("drawing") as inner:
            assert inner is outer
            assert outer.step.text == "drawing"
        assert outer.step.text == "checking"


def test_of_a_child_the_parent_tells(monkeypatch):
    stream, written = ticking(monkeypatch, FIRST_LINE_S=0.01, EVERY_S=60.0)

    def child():
        tell("a child's own step")
        return 5

    with working("measuring apart"):
        assert run_apart(child, 20.0).value == 5
        assert written.wait(10)
    assert stream.getvalue().startswith("attnprof: measuring apart: ")
    assert "child" not in stream.getvalue()


SCRIPT = """
import sys, time
from attnprof.cli.options import working
from attnprof.render import progress
progress.SHOWN_AFTER_S = {after}
with working("counting") as work:
    work.tell("counting cases", 3, 7)
    time.sleep(1.2)
    progress.note("a note")
sys.stdout.write("data")
"""


@pytest.mark.parametrize(("after", "shown"), [(0.0, True), (60.0, False)])
def test_a_terminal_shows_a_line_for_a_while_and_stdout_is_the_same(after, shown):
    reader, writer = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(after=after)], stderr=writer, stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"}, check=True,
    )  # fmt: skip
    written = os.read(reader, 1 << 16).decode()
    assert process.stdout == b"data"
    assert ("counting cases: 3 of 7 done" in written) == shown
    assert "a note" in written


STUB = "import sys\nsys.stderr.write('torch runs;')\nsys.stderr.flush()\n"
IMPORTING = "from attnprof.processes.progress import announce\nannounce()\nimport torch, torch\n"


@pytest.fixture
def stub(tmp_path):
    """A folder with a torch that says when it is imported."""
    (tmp_path / "torch.py").write_text(STUB)
    return tmp_path


def started(stub, *arguments, **streams):
    path = os.pathsep.join([str(stub), str(Path.cwd())])
    return subprocess.Popen(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, **streams
    )


def test_a_pipe_gets_one_line_before_torch_is_imported(stub):
    process = started(stub, "-c", IMPORTING, stderr=subprocess.PIPE, text=True)
    assert process.communicate()[1] == f"{TEXT}\ntorch runs;"


def test_a_terminal_is_as_it_was_afterwards(stub):
    reader, writer = pty.openpty()
    process = started(stub, "-c", IMPORTING, stderr=writer)
    assert process.wait() == 0
    written = os.read(reader, 4096).decode()
    assert written == f"{TEXT}torch runs;\r{' ' * len(TEXT)}\r"


def test_a_command_says_so_before_anything_else(stub):
    with (stub / "torch.py").open("a") as file:
        file.write("raise ModuleNotFoundError(name='torch')\n")
    process = started(
        stub, "-m", "attnprof", "list", "--verify", "--format", "json",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, err = process.communicate()
    assert (process.returncode, out) == (3, "")
    assert err.startswith(f"{TEXT}\ntorch runs;attnprof: this command needs torch")
