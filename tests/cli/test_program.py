"""What a shell and ``--help`` show of commands, and which of them run somebody's code."""

import inspect
import json
import re
import subprocess
import sys

import pytest

from attnprof.cli.parameters import OUTPUT, PANELS
from attnprof.cli.program import COMMANDS, SECTIONS, command_function, foreign_code
from tests.structure.command_flags import parser_of


def examples_of(command):
    examples = inspect.getdoc(command_function(command)).partition("Examples:\n")[2]
    return [line.strip() for line in examples.splitlines()]


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
            typed = [*parameter.opts[:1], *parameter.secondary_opts]
            assert all(name in out for name in typed if name.startswith("-"))
    assert 2 <= len(examples_of(command)) <= 4
    for line in examples_of(command):
        assert line in out


def test_commands_are_shown_by_what_they_are_for(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = attnprof()
    assert ended.code == 2
    assert re.findall("╭─ (.+?) ─", ended.out) == ["Options", *SECTIONS]
    for command, summary in COMMANDS.items():
        assert re.search(rf"│ {command} +{re.escape(summary)} +│", ended.out)


# -- the Tab key, asked for as a shell's completion script asks -----------------------------
OFFERED = {
    "attnprof cro": ["crossover"],
    "attnprof check --no": ["--no-time", "--no-formula"],
    "attnprof compare -a standard,lin": ["standard,linear", "standard,linformer"],
    "attnprof compare -a linear,lin": ["linear,linformer"],
    "attnprof heads taylor-": ["taylor-direct", "taylor-efficient"],
    "attnprof crossover linear taylor-e": ["taylor-efficient"],
    "attnprof derive sd": ["sdpa"],
    "attnprof cost --phase pre": ["prefill"],
    "attnprof sweep --phase forward,tr": ["forward,train"],
    "attnprof cost --dtype b": ["bfloat16"],
    "attnprof cost --scope=la": ["layer"],
    "attnprof crossover --kind published,d": ["published,derived"],
    "attnprof heads --kind d": [],
    "attnprof cost --quantity peak": ["peak_bytes", "peak_entries"],
    "attnprof derive x.py:A --quantity peak": ["peak_bytes"],
    "attnprof crossover --metric m": ["memory", "matmul"],
    "attnprof history results --metric time,f": ["time,flops"],
    "attnprof compare -a longformer --set w": ["window="],
    "attnprof compare -a linear --set w": [],
    "attnprof compare --set num_l": ["num_landmarks="],
    "attnprof reproduce --claim 004-EQ6,004-EQ5": ["004-EQ6,004-EQ5"],
    "attnprof reproduce 00": ["000", "001", "002", "003", "004"],
    "attnprof reproduce taylorshift --table=": ["1", "2", "3", "4", "5", "6", "7"],
    "attnprof reproduce 004 --claim 004-EQ6 --figure 4": ["4"],
    "attnprof reproduce --figure 4": [],
    "attnprof verify-formula --table fig": [],
    "attnprof reproduce --verdict e": ["erratum"],
    "attnprof plot x.jsonl --kind p": ["pareto"],
    "attnprof check --rule s": ["sensitive"],
    "attnprof cost --format j": ["json"],
    "attnprof verify-formula N^2 linear --up-to o": ["order"],
}


@pytest.mark.parametrize("typed", OFFERED)
def test_the_last_name_is_completed(attnprof, monkeypatch, typed):
    monkeypatch.setenv("_ATTNPROF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    ended = attnprof()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.split() == OFFERED[typed]


def test_a_shell_gets_its_script(attnprof, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    ended = attnprof("--show-completion")
    assert ended.code == 0
    assert "_ATTNPROF_COMPLETE=complete_bash" in ended.out


def test_completing_imports_nothing_heavy():
    code = (
        "import json, os, sys\nfrom attnprof.cli.app import main\n"
        "os.environ |= {'_ATTNPROF_COMPLETE': 'complete_zsh'}\n"
        "os.environ['_TYPER_COMPLETE_ARGS'] = 'attnprof crossover --quantity '\n"
        "try:\n    main([])\nfinally:\n"
        "    print('@' + json.dumps([*{'torch', 'sympy', 'numpy'} & {*sys.modules}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    candidates, _, loaded = ended.stdout.partition("@")
    assert '"flops"' in candidates
    assert json.loads(loaded) == []


# -- only what names code starts a supervising process ----------------------------------
OURS = {
    "cost": {"attention": "standard,efficient", "phase": "train", "scope": "core"},
    "compare": {"attention": None, "kind": "formula", "settings": ["window=256"]},
    "crossover": {"mechanism_a": "standard", "mechanism_b": "efficient", "plot": "my.py:A.png"},
    "heads": {"mechanisms": ["standard", "efficient"], "quantity": "flops"},
    "heatmap": {"pair": ["standard", "efficient"], "seq": "1:64:x2", "output": "my.py:x"},
    "derive": {"target": "standard", "inputs": ["x: B, N, d"]},
    "profile": {"attention": "standard", "device": "cuda:1"},
    "verify-formula": {"formula": "4*N**2", "target": "standard", "where": ["h=1"]},
    "reproduce": {"documents": ["004"], "table": "2"},
    "doctor": {},
}
FOREIGN = {
    "my.py:A": ("cost", {"attention": "standard,my.py:A"}),
    "torch.nn:Linear": ("derive", {"target": "torch.nn:Linear"}),
    "my.py:B": ("crossover", {"mechanism_a": "standard", "mechanism_b": "my.py:B"}),
    "my.py:C": ("verify-formula", {"table": "t.csv", "formula": "my.py:C", "target": None}),
    "attnprof cost": ("cost", {"attention": "a-plug-in"}),
    "attnprof verify-formula": ("verify-formula", {"table": "t.csv", "formula": None}),
    "attnprof sweep": ("sweep", {"attention": "standard"}),
    "attnprof check": ("check", {}),
}


def test_what_names_code_is_told_from_options_and_shipped_names():
    assert [typed for typed in OURS.items() if foreign_code(*typed)] == []
    assert [foreign_code(*typed) for typed in FOREIGN.values()] == [*FOREIGN]
