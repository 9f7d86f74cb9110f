"""Torch is announced before it is imported; on a terminal the line is gone afterwards."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof.processes.notices import TEXT

STUB = "import sys\nsys.stderr.write('torch runs;')\nsys.stderr.flush()\n"
IMPORTING = "from attnprof.processes.notices import announce\nannounce()\nimport torch, torch\n"


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
