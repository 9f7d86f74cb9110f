"""The page on the house names files that are there, in the order in which commands run them."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import attnprof
from attnprof.cli.app import main

ROOT = Path(attnprof.__file__).parent
PAGE = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
#: Files of each command's steps, in their order.
STEPS = {
    title: re.findall(r"`(\w+(?:/\w+)+\.py)`", text)
    for title, text in re.findall(r"### `attnprof ([^`]+)`\n(.*?)(?=\n##)", PAGE, flags=re.DOTALL)
}
CODE = """
import torch


class Mix(torch.nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v
"""


def entered(run):
    """Files of the package in the order in which a second call of ``run`` enters them."""
    run()
    files = {}

    def note(frame, event, _):
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            files.setdefault(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [str(Path(name).relative_to(ROOT)) for name in files if name.startswith(str(ROOT))]


def in_order(steps, files):
    """Steps that did not run, and pairs that ran the other way round."""
    places = {name: place for place, name in enumerate(files)}
    missing = [name for name in steps if name not in places]
    known = [name for name in steps if name in places]
    return missing, [(a, b) for a, b in pairwise(known) if places[a] > places[b]]


def test_each_command_has_a_way_of_about_ten_steps_through_files_that_are_there():
    assert [title.split()[0] for title in STEPS] == ["crossover", "derive", "model", "check"]
    for files in STEPS.values():
        assert 8 <= len(files) == len(set(files)) <= 16, files
        assert [name for name in files if not (ROOT / name).is_file()] == []


def test_every_room_is_on_the_page():
    picture = PAGE.partition("```\n")[2].partition("```")[0]
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(re.findall(r"\w+", picture))


def test_a_crossover_goes_its_way(monkeypatch, capsys):
    def run():
        monkeypatch.setattr(sys, "argv", ["attnprof", "crossover", "--d", "64"])
        with pytest.raises(SystemExit):
            main()
        capsys.readouterr()

    title = next(name for name in STEPS if name.startswith("crossover"))
    assert in_order(STEPS[title], entered(run)) == ([], [])


def test_a_derivation_goes_its_way(tmp_path):
    (tmp_path / "mix.py").write_text(CODE)
    title = next(name for name in STEPS if name.startswith("derive"))
    steps = [name for name in STEPS[title] if name.startswith("trace/")]
    inputs = [f"{name}: B, h, N, d" for name in "qkv"]

    def run():
        made = attnprof.derive(
            f"{tmp_path}/mix.py:Mix", inputs=inputs, at={"N": 16}, phases=["forward"]
        )
        made.report()

    files = entered(run)
    missing, wrong = in_order(steps, files)
    assert (missing, wrong) == ([], [])
