"""Only what names code starts a supervising process; shipped mechanisms run in our own."""

import shlex
import subprocess
import sys

import pytest

from attnprof.cli.program import foreign_code

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


@pytest.mark.parametrize("command", OURS)
def test_options_and_shipped_names_are_no_foreign_code(command):
    assert foreign_code(command, OURS[command]) is None


@pytest.mark.parametrize("subject", FOREIGN)
def test_mechanisms_and_targets_that_are_not_shipped_are(subject):
    assert foreign_code(*FOREIGN[subject]) == subject


SHIPPED = (
    "cost --phase train --scope core --dtype bfloat16 --seq 8", "crossover standard efficient",
    "compare --attention standard --seq 8", "heads --d-model 8 --seq 8",
)  # fmt: skip


def test_commands_on_shipped_mechanisms_start_no_other_process_and_no_torch():
    script = (
        "import os, sys\nfrom attnprof.cli.app import main\nos.fork = None\n"
        f"for words in {[shlex.split(command) for command in SHIPPED]!r}:\n"
        "    sys.argv[1:] = words\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code, (words, end.code)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
