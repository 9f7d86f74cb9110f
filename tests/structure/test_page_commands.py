"""Commands that pages and help show are read by the command line, and run where that is short."""

import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from attnprof.models.conventions import NAMES_OF_CONVENTIONS
from tests.gate.test_history import save, times
from tests.models.test_mfu import DENSE
from tests.structure.command_flags import parser_of

ROOT = Path(__file__).parents[2]
#: Pages whose commands are run by a test of that page.
ELSEWHERE = {"choosing", "deriving", "replaying", "tutorial"}
#: A model for the pages' placeholders.
MODELS = {"NAME": "llama-3.2-1b", "OTHER": "qwen3-0.6b"}
MODULES = """from torch import nn


class MyAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out((x @ x.mT).softmax(-1) @ x)


class Net(nn.Module):
    def forward(self, x):
        return x.relu()


def build_model():
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
"""


def commands_of(text):
    """The commands that stand at the beginning of a line."""
    return re.findall(r"^attnprof .*$", text.replace("\\\n", " "), re.MULTILINE)


PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
COMMANDS = [
    command for page in sorted({*PAGES} - ELSEWHERE - {"commands"})
    for command in commands_of(PAGES[page])
]  # fmt: skip


def words_of(command):
    """A command's words after ``attnprof``, with models for the placeholders."""
    return [MODELS.get(word, word) for word in shlex.split(command, comments=True)][1:]


def test_every_command_of_a_page_and_of_help_is_one():
    reference = runpy.run_path(str(ROOT / "docs" / "command_reference.py"))["page"]()
    commands = [*COMMANDS, *commands_of(reference)]
    assert len(commands) > 100
    for name, *words in map(words_of, commands):
        parser_of(name).make_context(name, words)


#: Words of commands that are read here and not run, and why.
NOT_RUN = {
    r"calibrate|--ceilings|predict|recommend|measured|--metric time|--measure": "it times calls",
    r"profile|sweep -|tradeoff": "it measures many points: tests of measure do, at few",
    r"check|baseline": "it needs a repository of two commits: test_action.py has one",
    r"attnprof model (?!.*(--mfu|my\.py))|crossover --model|derive attnprof\.models":
        "it derives whole models for a minute: tests of models do, small ones",
    r"explore .*(-o|--model)": "it writes all mechanisms: test_explorer.py does, of some",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that pages name."""
    made = tmp_path_factory.mktemp("pages")
    (made / "my.py").write_text(MODULES, encoding="utf-8")
    (made / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    shutil.copy(ROOT / "tests" / "render" / "data" / "factorial.jsonl", made / "sweep.jsonl")
    (made / "results").mkdir()
    for run, value in enumerate(times(5, 20, 10)):
        save(made / "results", f"run{run:02}.json", value, 100)
    return made


#: A command of two pages is run once.
RUN = [
    one for one in dict.fromkeys(COMMANDS) if not any(re.search(words, one) for words in NOT_RUN)
]


@pytest.mark.parametrize("command", RUN)
def test_a_command_of_a_page_runs(attnprof, command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    forced = ("--force",) * bool(re.search("-o |--plot|--as-python", command))
    ended = attnprof((*words_of(command), *forced))
    assert ended.code == ("verify-formula" in command), ended.err
    assert "--mfu" not in command or "FLOPs" in ended.out


def test_the_page_on_flops_a_token_has_each_convention_and_its_python_gives_a_number(
    folder, monkeypatch
):
    page = PAGES["mfu"]
    assert {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)} == {*NAMES_OF_CONVENTIONS}
    monkeypatch.chdir(folder)
    *setup, call = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].strip().splitlines()
    scope: dict = {}
    exec("\n".join(setup), scope)
    assert eval(call, scope) > 0
