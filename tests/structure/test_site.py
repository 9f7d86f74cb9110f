"""The documentation site: it builds without a warning, and the tutorial's commands run."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import attnprof
from attnprof.cli.app import main

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_the_commands_of_the_tutorial_run_in_its_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (module,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "my.py").write_text(module, encoding="utf-8")
    blocks = re.findall(r"```\n(attnprof .*?)```", TUTORIAL, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 8
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        assert not ended.value.code, command
        assert capsys.readouterr().out or "--output" in command
    (tmp_path / "my.py").write_text(module.replace(", D))", ", D).clone())"), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(commands[-1])[1:])
    assert ended.value.code == 1
    assert "my.py:16 added clone" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "cost.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_every_page_and_every_public_name_is_on_the_site():
    index = (DOCS / "index.rst").read_text(encoding="utf-8").split()
    pages = {path.stem for path in DOCS.glob("*.md")} - {"commands"}
    assert pages <= {*index}
    named = set(re.findall(r"attnprof\.(\w+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
    assert named == set(attnprof.__all__) - {"__version__"}


@pytest.mark.skipif(find_spec("sphinx") is None, reason="no Sphinx: pip install 'attnprof[docs]'")
def test_the_site_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "commands.html").is_file()
    page = (tmp_path / "explorer.html").read_text(encoding="utf-8")
    assert 'src="explore.html"' in page
    assert (tmp_path / "explore.html").is_file()
