"""What the Tab key offers, asked for as a shell's completion script asks."""

import json
import subprocess
import sys

import pytest

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
    told, _, loaded = ended.stdout.partition("@")
    assert '"flops"' in told
    assert json.loads(loaded) == []
