"""The pytest plugin, in test suites of its own: what grew fails by name, and costs nothing else."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnprof.errors import RequestError
from attnprof.gate.baselines import load_baseline
from attnprof.gate.in_tests import place_of, request_for
from tests.gate.samples import PLAIN

TEST = """
def test_mine(attnprof_check):
    attnprof_check("my.py:Attention", seq=32, d_model=16, heads=2, formulas=False)
"""
CASE = "my.py:Attention[forward N=32 d_model=16 h=2]"
FILE = ".attnprof/baseline.json"


@dataclass
class Suite:
    """A folder with a module and a test of it; called with options, it runs them in this process.

    pytest's own way to do that unloads what a run has imported, which torch does not survive.
    """

    path: Path
    capsys: pytest.CaptureFixture

    def __call__(self, *options):
        self.capsys.readouterr()
        before, path = set(sys.modules), list(sys.path)
        code = pytest.main([*OPTIONS, *options, str(self.path)])
        for name in set(sys.modules) - before:
            if str(self.path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        sys.path[:] = path
        return Ended(code, self.capsys.readouterr().out)

    def record(self):
        """Record the test's counts, once for all tests here."""
        path = self.path / FILE
        if FILE not in RECORDED:
            assert self("--attnprof-update").ret == 0
            RECORDED[FILE] = path.read_text()
        path.parent.mkdir(exist_ok=True)
        path.write_text(RECORDED[FILE])

    def apart(self, *options):
        """The same in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, *options],
            capture_output=True, text=True, check=False, timeout=120, cwd=self.path,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout)


@dataclass
class Ended:
    ret: int
    text: str


RECORDED = {}
#: pytest looks five times for what was never freed, which takes a second where torch is loaded
OPTIONS = (
    "-p", "attnprof.gate.plugin", "-p", "no:unraisableexception", "--capture=no", "--color=no",
)  # fmt: skip


@pytest.fixture
def suite(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # there, pytest's summary says every message again
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers -p no:cacheprovider\n"
    )
    (tmp_path / "my.py").write_text(PLAIN)
    (tmp_path / "test_it.py").write_text(TEST)
    return Suite(tmp_path, capsys)


def edit(suite, before, after):
    source = suite.path / "my.py"
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, after))


def recorded(suite, file=FILE):
    return load_baseline(suite.path / file)


def test_a_case_is_recorded_as_its_failure_says_and_passes_then(suite):
    ended = suite()
    assert ended.ret == 1
    assert f"{CASE}: there is no file .attnprof/baseline.json; record it by" in ended.text
    assert "record it by: pytest --attnprof-update\n" in ended.text
    assert not (suite.path / ".attnprof").exists()
    assert suite("--attnprof-update").ret == 0
    assert list(recorded(suite).counted) == [CASE]
    ended = suite()
    assert ended.ret == 0
    assert "= attnprof =" not in ended.text


def test_one_more_operation_in_a_line_fails_by_name(suite):
    suite.record()
    edit(suite, "s.softmax(-1)", "s.double().softmax(-1).float()")
    ended = suite()
    assert ended.ret == 1
    assert f"{CASE} got worse than" in ended.text
    assert re.search(r"regressed my.py:19 .*float64.* → .*bytes moved [0-9.]+×", ended.text)
    assert ended.text.count("regressed") == 1  # a cause is told once, however many metrics see it
    assert "accept it by: pytest --attnprof-update" in ended.text
    assert "in_tests.py" not in ended.text


def test_closed_forms_name_what_grew(suite):
    (suite.path / "test_it.py").write_text(TEST.replace(", formulas=False", ""))
    suite("--attnprof-update")
    assert "N**2" in recorded(suite).counted[CASE].formulas["flops"]
    edit(suite, "w = s.", "w = (s + 1).")
    assert "my.py:19 +add → bytes moved" in (text := suite().text)
    assert "+ B·N²·h additions" in text


def test_what_is_accepted_passes_and_less_is_told(suite):
    suite.record()
    edit(suite, "s.softmax(-1)", "s.exp()")
    ended = suite()
    assert ended.ret == 0
    assert f"{CASE} got better than" in ended.text
    suite("--attnprof-update")
    assert "got better" not in suite().text


def test_an_update_keeps_what_was_not_run(suite):
    suite.record()
    path = suite.path / FILE
    data = json.loads(path.read_text())
    data["records"][0]["times_s"] = [[0.5]]
    data["summary"]["fingerprint"]["device_name"] = "another one"
    path.write_text(json.dumps(data))
    (suite.path / "test_it.py").write_text(TEST.replace("seq=32", "seq=16"))
    assert "1 of them new" in suite("--attnprof-update").text
    cases = recorded(suite)
    assert list(cases.counted) == [CASE, CASE.replace("32", "16")]
    assert cases.times_s[CASE] == [[0.5]]
    assert cases.fingerprint["device_name"] == "another one"


def test_the_marker_checks_without_a_body(suite):
    (suite.path / "test_it.py").write_text("""
import pytest

@pytest.mark.attnprof("standard", seq=16, d_model=16, heads=2, formulas=False)
@pytest.mark.attnprof(attention="efficient", seq=16, d_model=16, heads=2, params={"bias": False},
                      formulas=False)
def test_two(): ...
""")
    assert suite("--attnprof-update").ret == 0
    assert list(recorded(suite).counted) == [
        "efficient[forward N=16 d_model=16 h=2 bias=false]",
        "standard[forward N=16 d_model=16 h=2]",
    ]  # fmt: skip
    assert suite().ret == 0


def test_a_class_stands_for_its_place(suite):
    (suite.path / "imported_here.py").write_text(PLAIN)
    (suite.path / "test_it.py").write_text("""
import sys, os
sys.path.insert(0, os.getcwd())
from imported_here import Attention

def test_mine(attnprof_check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = attnprof_check(Attention, seq=16, d_model=16, heads=2, phase="train",
                             args={"d_model": "h*d", "num_heads": "h"}, inputs={"x": "B, N, h*d"},
                             formulas=False)
    assert {"flops", "peak_bytes", "parameters"} <= {record.metric for record in records}
""")
    assert suite("--attnprof-update").ret == 0
    (case,) = recorded(suite).counted
    assert case.startswith("imported_here:Attention[train N=16 d_model=16 h=2")
    assert suite().ret == 0


def test_the_file_is_where_it_is_asked_to_be(suite):
    options = "pytest --attnprof-update --attnprof-baseline given.json\n"
    assert f"record it by: {options}" in suite("--attnprof-baseline", "given.json").text
    assert suite("--attnprof-update", "--attnprof-baseline", "given.json").ret == 0
    assert list(recorded(suite, "given.json").counted) == [CASE]
    with (suite.path / "pytest.ini").open("a") as config:
        config.write("\nattnprof_baseline = configured.json\n")
    suite("--attnprof-update")
    assert list(recorded(suite, "configured.json").counted) == [CASE]


WRONG_CALLS = """
def test_a(attnprof_check): attnprof_check()
def test_b(attnprof_check): attnprof_check("linear", sek=16)
def test_c(attnprof_check): attnprof_check("linear", 16)
@pytest.mark.attnprof(atention="linear", seq=16)
def test_d(): ...
"""


def test_arguments_that_are_none_are_named_beside_the_possible_ones(suite):
    (suite.path / "test_it.py").write_text(f"import pytest\n{WRONG_CALLS}")
    ended = suite()
    assert ended.ret == 1
    assert ended.text.count("; it takes attention, seq, d_model, heads, batch") == 4
    assert "'sek'" in ended.text
    assert "in_tests.py" not in ended.text


def test_a_file_that_is_no_baseline_fails_and_stays(suite):
    text = '{"schema": "attnprof/1"}'
    (suite.path / "odd.json").write_text(text)
    for more in ((), ("--attnprof-update",)):
        ended = suite("--attnprof-baseline", "odd.json", *more)
        assert ended.ret == 1
        assert "odd.json" in ended.text
        assert "Traceback" not in ended.text
    assert (suite.path / "odd.json").read_text() == text


def test_two_cases_of_one_name_are_told_apart_or_refused(suite):
    (suite.path / "test_it.py").write_text("""
def test_two(attnprof_check):
    for dims in ("B, N, h*d", "B, 2*N, h*d"):
        attnprof_check("my.py:Attention", seq=16, d_model=16, heads=2, formulas=False,
                       args={"num_heads": "h", "d_model": "h*d"}, inputs={"x": dims})
""")
    ended = suite("--attnprof-update")
    assert ended.ret == 1
    assert "two tests ask for my.py:Attention[" in ended.text


def test_what_cannot_be_counted_is_not_recorded(suite):
    edit(suite, "s = q", "s = undefined + q")
    ended = suite("--attnprof-update")
    assert ended.ret == 1
    assert "NameError" in ended.text
    assert not (suite.path / FILE).exists()


def test_a_module_that_ends_its_process_fails_its_test_and_no_other(suite):
    edit(suite, "        B, N, C", "        import os; os._exit(0)\n        B, N, C")
    (suite.path / "test_other.py").write_text("def test_other(): ...\n")
    ended = suite("--attnprof-update")
    assert "1 failed, 1 passed" in ended.text
    assert "ended with exit status 0, without an answer" in ended.text


def test_against_a_revision_needs_no_file(suite, monkeypatch):
    monkeypatch.setattr("attnprof.gate.in_tests.LIMIT_S", 2.0)

    def git(*words):
        subprocess.run(["git", *words], cwd=suite.path, check=True, capture_output=True)

    git("init", "-q")
    git("add", "my.py")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    edit(suite, "w = s.", "w = (s + 1).")
    ended = suite("--attnprof-against", "HEAD")
    assert ended.ret == 1
    assert "got worse than HEAD (" in ended.text
    assert re.search(r"regressed my.py:19 .*add.* FLOPs", ended.text)
    assert " time " in ended.text
    assert not (suite.path / ".attnprof").exists()
    assert "usage" not in ended.text.lower()
    assert suite("--attnprof-against", "HEAD", "--attnprof-update").ret == 4


def test_a_file_that_cannot_be_written_is_said(suite):
    (suite.path / "taken").write_text("a file")
    ended = suite("--attnprof-update", "--attnprof-baseline", "taken/baseline.json")
    assert ended.ret == 4
    assert "cannot write" in ended.text
    assert "INTERNALERROR" not in ended.text


def test_processes_of_xdist_record_into_one_file(suite):
    (suite.path / "test_it.py").write_text("".join(
        TEST.replace("32", str(n)).replace("test_mine", f"test_{n}") for n in (8, 16)
    ))  # fmt: skip
    assert suite("-p", "xdist", "-n", "1", "--attnprof-update").ret == 0
    assert len(recorded(suite).counted) == 2
    assert suite().ret == 0


def test_a_suite_that_asks_nothing_imports_nothing_heavy(suite):
    (suite.path / "test_it.py").write_text("""
import sys

def test_light(attnprof_check):
    assert not {"torch", "numpy", "sympy", "pandas", "matplotlib"} & set(sys.modules)
""")
    assert suite.apart().ret == 0


def test_the_plugin_is_registered():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nattnprof = "attnprof.gate.plugin"' in text


def test_what_has_no_name_of_its_own_is_refused():
    class Inner: ...

    for thing in (Inner, lambda x: x, 3):
        with pytest.raises(RequestError, match="has no name"):
            place_of(thing)
    assert place_of(json.JSONDecoder) == "json.decoder:JSONDecoder"


@pytest.mark.parametrize("wrong", [
    {"heads": 3}, {"seq": 0}, {"phase": "sideways"}, {"dtype": "float31"},
    {"args": {"d_model": "h*d"}}, {"params": {"nothing": 1}}, {"scope": "heart"},
])  # fmt: skip
def test_sizes_that_are_none_are_refused(wrong):
    with pytest.raises(RequestError):
        request_for("standard", **wrong)
