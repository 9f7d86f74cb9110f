"""Derivations that took long are read again, unless something they depend on has changed."""

import json
import sys

import pytest

from attnprof.cli import kept
from attnprof.record.report import Report


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A file that a kept derivation depends on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_LONG", 0.0)
    file = tmp_path / "config.json"
    file.write_text("{}")
    once = kept.KeptReport("my.py:Mine", ["d=64"])
    once.notes = ["guessed: nothing"]
    once.write(Report("derive", [], {"phases": ["forward"]}), file)
    return file


def read(*request):
    """What is kept of a request, and its notes."""
    once = kept.KeptReport(*request)
    return once.read(), once.notes


def test_a_request_is_read_again_where_file_and_version_are_the_same(config, monkeypatch):
    report, notes = read("my.py:Mine", ["d=64"])
    assert (report.summary, notes) == ({"phases": ["forward"]}, ["guessed: nothing"])
    assert read("my.py:Mine", ["d=32"]) == (None, [])
    monkeypatch.setattr(kept, "version", lambda name: f"another {name}")
    assert read("my.py:Mine", ["d=64"])[0] is None
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(config.parent))
    assert read("my.py:Mine", ["d=64"])[0] is not None
    config.write_text('{"heads": 8}')
    assert read("my.py:Mine", ["d=64"])[0] is None


@pytest.mark.usefixtures("config")
def test_the_oldest_make_room(monkeypatch):
    def write(name):
        kept.KeptReport(name).write(Report("derive", [], {"name": name}))

    write("second")
    files = sum(path.stat().st_size for path in kept.KeptReport("").path.parent.iterdir())
    monkeypatch.setattr(kept, "_MOST", files)
    write("third")
    assert read("my.py:Mine", ["d=64"])[0] is None
    assert [read(name)[0].summary["name"] for name in ("second", "third")] == ["second", "third"]


def test_code_that_changed_is_derived_again(attnprof, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_LONG", 0.0)
    code = "def mine(x):\n    return x @ x.mT"
    for lines, flops in ((code, "2*B*N**2*d"), (f"{code} + x @ x.mT", "4*B*N**2*d")):
        (tmp_path / "mine.py").write_text(lines)
        place = f"{tmp_path / 'mine.py'}:mine"
        command = ("derive", (place, "--input", "x: B, N, d"), "--phase forward --format json")
        for _ in range(2):
            rows = json.loads(attnprof(*command).out)["records"]
            products = next(row for row in rows if row["quantity"] == "matmul_flops")
            assert products["expression"] == flops
        for name in [name for name in sys.modules if name.startswith("attnprof_file_mine_")]:
            del sys.modules[name]  # the next command is another process
