"""What ``--help`` shows at 80 columns: panels, whole words, examples that run."""

import inspect
import re
import shlex

import pytest

from attnprof.cli.parameters import OUTPUT, PANELS
from attnprof.cli.program import COMMANDS, SECTIONS, command_function
from tests.structure.command_flags import parser_of

#: Commands of which examples without files of one's own are done in a moment.
QUICK = ("cost", "compare", "heads", "verify-formula")


def examples_of(command: str) -> list[str]:
    told = inspect.getdoc(command_function(command)).partition("Examples:\n")[2]
    return [line.strip() for line in told.splitlines()]


EXAMPLES = [(name, line) for name in COMMANDS for line in examples_of(name)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_80_columns(attnprof, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    out = attnprof(f"{command} --help").out
    assert COMMANDS[command] in out
    assert max(map(len, out.splitlines())) <= 80
    assert "<=" not in out
    assert ">=" not in out
    titles = re.findall("╭─ (.+?) ─", out)
    in_order = ["Arguments", *PANELS, OUTPUT]
    assert titles == [title for title in in_order if title in titles]
    words = set(out.replace("│", " ").split())
    for parameter in parser_of(command).params:
        if not getattr(parameter, "hidden", False) and parameter.name != "help":
            assert {*(parameter.help or "").replace("\\", "").split()} <= words, parameter.name
            assert not parameter.opts[0].startswith("-") or parameter.opts[0] in out
    assert 2 <= len(examples_of(command)) <= 4
    for line in examples_of(command):
        assert line in out


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_examples_can_be_typed(attnprof, command, line, tmp_path, monkeypatch):
    program, name, *words = shlex.split(line)
    assert (program, name) == ("attnprof", command)
    monkeypatch.chdir(tmp_path)
    if command in QUICK and not re.search("my.py|--table|--plot", line):
        assert attnprof((command, *words)).code <= (command == "verify-formula")  # 1: an erratum
    else:
        for result in ("sweep.jsonl", "laptop.jsonl", "server.jsonl", "results"):
            (tmp_path / result).touch()
        parser_of(command).make_context(command, words)


def test_commands_are_shown_by_what_they_are_for(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = attnprof()
    assert ended.code == 2
    assert re.findall("╭─ (.+?) ─", ended.out) == ["Options", *SECTIONS]
    for command, summary in COMMANDS.items():
        assert re.search(rf"│ {command} +{re.escape(summary)} +│", ended.out)
