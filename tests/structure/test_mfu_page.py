"""The page on FLOPs a token names what is there, and its commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest

from attnprof.cli.app import main
from attnprof.models.conventions import NAMES_OF_CONVENTIONS
from tests.models.test_mfu import DENSE

pytest.importorskip("transformers")

PAGE = (Path(__file__).parents[2] / "docs" / "mfu.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^attnprof .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert (ended.value.code or 0) == ("verify-formula" in command)
    assert "FLOPs" in capsys.readouterr().out


def test_the_page_has_a_row_for_each_convention():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(rows) == {*NAMES_OF_CONVENTIONS}


def test_the_python_of_the_page_gives_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    *setup, call = code.strip().splitlines()
    scope: dict = {}
    exec("\n".join(setup), scope)
    assert eval(call, scope) > 0
