"""The documentation site builds without a warning, and is whole; the tutorial's commands run."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import attnprof as package
from attnprof.processes import pool
from tests.browser import expect_accessible, needs_browser, open_page

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_the_commands_of_the_tutorial_run_in_its_order(attnprof, tmp_path):
    (module,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "my.py").write_text(module, encoding="utf-8")
    blocks = re.findall(r"```\n(attnprof .*?)```", TUTORIAL, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 8
    for command in commands:
        ended = attnprof(tuple(shlex.split(command)[1:]))
        assert not ended.code, command
        assert ended.out or "--output" in command
    (tmp_path / "my.py").write_text(module.replace(", D))", ", D).clone())"), encoding="utf-8")
    ended = attnprof(tuple(shlex.split(commands[-1])[1:]))
    assert ended.code == 1
    assert "my.py:16 added clone" in " ".join(ended.out.split())
    assert (tmp_path / "cost.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_every_page_and_every_public_name_is_on_the_site():
    index = (DOCS / "index.rst").read_text(encoding="utf-8").split()
    pages = {path.stem for path in DOCS.glob("*.md")} - {"commands"}
    assert pages <= {*index}
    named = set(re.findall(r"attnprof\.(\w+)$", (DOCS / "api.rst").read_text(), re.MULTILINE))
    assert named == set(package.__all__) - {"__version__"}


#: A page of each kind: figure, prose, formulas and tables, commands, signatures, a page in a page.
KINDS = ("index", "tutorial", "counting", "mechanisms", "commands", "api", "gallery", "explorer")
#: By how much a page is wider than its window.
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site's folder, and what Sphinx said of it, as a fork of what has imported torch."""
    if find_spec("sphinx") is None:
        pytest.skip("no Sphinx: pip install 'attnprof[docs]'")
    folder = tmp_path_factory.mktemp("site")
    program, said = Path(sys.executable).with_name("sphinx-build"), tmp_path_factory.mktemp("said")
    words = [sys.executable, program, "-q", "-W", "--keep-going", DOCS, folder]
    with (said / "stderr").open("w") as stderr:
        build = pool.subprocess.Popen(
            [*map(str, words)], env=dict(os.environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        code = build.wait()
    return folder, code, (said / "stderr").read_text(encoding="utf-8")


def test_the_site_builds_without_a_warning(site):
    folder, code, complaints = site
    assert code == 0, complaints
    assert (folder / "commands.html").is_file()
    assert 'src="explore.html"' in (folder / "explorer.html").read_text(encoding="utf-8")
    assert (folder / "explore.html").is_file(), complaints


def links_of(path):
    """The addresses that a page links to or shows, and the ids that it has."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r'(?:href|src)="([^"]*)"', text), {*re.findall(r'id="([^"]*)"', text)}


def test_every_link_of_the_site_leads_somewhere(site):
    folder, *_ = site
    pages = {path: links_of(path) for path in folder.glob("*.html")}
    for path, (links, _) in pages.items():
        for link in links:
            name, _, place = unquote(link).partition("#")
            if urlsplit(link).scheme:
                continue
            aim = path.parent / name.partition("?")[0] if name else path
            assert aim.exists(), f"{path.name}: {link}"
            assert not place or aim not in pages or place in pages[aim][1], f"{path.name}: {link}"


@needs_browser
def test_a_page_of_each_kind_has_no_serious_finding_and_fits_its_window(site):
    folder, *_ = site
    views = []
    for place, name in enumerate(KINDS):
        how = {"width": 390, "dark": True} if place % 2 else {"width": 1280}
        seen = open_page(folder / f"{name}.html", scripts=[WIDE], audit=True, **how)
        assert all(url.startswith(("file:", "data:")) for url in seen.requests), name
        assert (name, seen.values) == (name, [0])
        views.append(seen)
    expect_accessible(*views)
