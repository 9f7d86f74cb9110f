"""The page on FLOPs a token names what is there, and its commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from attnprof.models.conventions import NAMES_OF_CONVENTIONS
from tests.models.test_mfu import DENSE

pytest.importorskip("transformers")

PAGE = (Path(__file__).parents[2] / "docs" / "mfu.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^attnprof .*$", PAGE, re.MULTILINE)


@pytest.fixture(autouse=True)
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(attnprof, command):
    ended = attnprof(tuple(shlex.split(command)[1:]))
    assert ended.code == ("verify-formula" in command)
    assert "FLOPs" in ended.out


def test_the_page_has_a_row_for_each_convention_and_its_python_gives_a_number(
    tmp_path, monkeypatch
):
    assert {*re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)} == {*NAMES_OF_CONVENTIONS}
    monkeypatch.chdir(tmp_path)
    *setup, call = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1].strip().splitlines()
    scope: dict = {}
    exec("\n".join(setup), scope)
    assert eval(call, scope) > 0
