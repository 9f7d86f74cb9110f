"""The page on replaying another paper: its commands give what it shows, its lists are complete."""

import re
import shlex
from pathlib import Path

import pytest

from attnprof.closed_form.cost_records import QUANTITIES
from attnprof.verify.own_formulas import MACS
from attnprof.verify.printed import COLUMNS, FUNCTIONS, PHASES

PAGE = (Path(__file__).parents[2] / "docs" / "replaying.md").read_text(encoding="utf-8")
FILES = re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(
    r"<!-- command -->\n```\n(.*?)```\n<!-- output (\d) -->\n```text\n(.*?)\n```", PAGE, re.DOTALL
)
RULES = PAGE.split("## How formulas are read and compared")[1]


@pytest.mark.parametrize(("command", "code", "shown"), EXAMPLES)
def test_a_command_gives_what_the_page_shows(attnprof, command, code, shown, tmp_path, monkeypatch):
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "100")
    program, *words = shlex.split(command)
    ended = attnprof(tuple(words))
    assert (program, ended.code) == ("attnprof", int(code))
    assert [line.rstrip() for line in ended.out.strip().splitlines()] == shown.splitlines()


def test_the_page_has_a_match_and_an_erratum_and_every_file_it_uses():
    assert {code for _, code, _ in EXAMPLES} == {"0", "1"}
    assert {name for name, _ in FILES} == {"linformer.py", "linformer.csv", "table1.csv"}


def test_the_lists_of_the_page_are_complete():
    for name in (*QUANTITIES, MACS, *COLUMNS, *PHASES):
        assert f"`{name}`" in RULES or f"--phase {name}" in RULES, name
    assert " ".join(FUNCTIONS) in RULES


def test_the_python_of_the_page_runs(capsys):
    exec(re.findall(r"```python\n(from attnprof.*?)```", PAGE, re.DOTALL)[0], {})
    assert capsys.readouterr().out.startswith("match ")
