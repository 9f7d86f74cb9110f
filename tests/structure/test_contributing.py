"""The worked tasks of CONTRIBUTING.md are part of the tree: lines, commands and tests."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TASKS = {
    title: text.split("\n## ")[0]
    for title, text in re.findall(r"\n### (.+?)\n(.*?)(?=\n### |\Z)", PAGE, flags=re.DOTALL)
}


def fenced(text, language=""):
    """The blocks of a language between fences."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for name, block in blocks if name == language]


def commands(text):
    """The lines to type, as words."""
    return [shlex.split(line) for block in fenced(text) for line in block.splitlines()]


@pytest.mark.parametrize("task", TASKS)
def test_every_line_of_a_worked_task_stands_in_its_file(task):
    (diff,) = fenced(TASKS[task], "diff")
    assert len(diff.splitlines()) < 40
    rooms = set()
    for block in re.split(r"^\+\+\+ ", diff, flags=re.MULTILINE)[1:]:
        name, *added = block.splitlines()
        have = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert added
        assert all(line[0] == "+" and line[1:] in have for line in added), name
        rooms |= {Path(name).parts[1]} if name.startswith("attnprof/") else set()
    assert len(rooms) == 1
    assert f"Room `attnprof/{rooms.pop()}" in TASKS[task]


@pytest.mark.parametrize("task", TASKS)
def test_the_commands_of_a_worked_task_run(attnprof, task):
    typed = [words for words in commands(TASKS[task]) if "pytest" not in words]
    assert typed
    for program, *words in typed:
        if program == "python":
            line = [sys.executable, *words]
            assert subprocess.run(line, cwd=ROOT, check=True, capture_output=True).stdout
            continue
        ended = attnprof(tuple(words))
        assert not ended.code
        assert ended.out
    named = [words for words in commands(TASKS[task]) if "pytest" in words]
    assert named
    for words in named:
        assert (ROOT / words[3]).is_file()
        assert words[4:] in ([], ["-k", "002"])


def test_there_are_three_worked_tasks():
    assert len(TASKS) == 3
