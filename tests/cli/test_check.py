"""baseline, check and history from the command line: a regression shows alike everywhere."""

import contextlib
import json
import os
import xml.etree.ElementTree as ET

import pytest

from attnprof.cli.app import main
from attnprof.record import Report
from attnprof.record.recognition import is_ours
from attnprof.render.tables.check import check_tables
from attnprof.render.terminal import render_text
from tests.gate.test_history import save, times

MODULE = """
import torch
from torch import nn


class Scores(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2)
        return scores.softmax(-1) @ v


class Fragile(nn.Module):
    def forward(self, q, k, v):
        return q + k
"""
#: A line with a needless copy.
SLOWER = ("scores.softmax(-1) @ v", "scores.softmax(-1) @ (v * 1.0)")
UPCAST_AND_COPY = (
    ("k.transpose(-1, -2)\n", "k.transpose(-1, -2)\n        scores = scores.double()\n"),
    ("scores.softmax(-1) @ v", "scores.softmax(-1).to(v.dtype).clone() @ v"),
)
SUITE = """
[[case]]
attention = "own.py:Scores"
input = ["q: B, h, N, d", "k: B, h, N, d", "v: B, h, N, d"]
seq = 96
d_model = 32
heads = 2
phase = ["forward", "train"]
formula = false

[[case]]
attention = "own.py:Fragile"
input = ["q: B, h, N, d", "k: B, h, N, d", "v: B, h, N, d"]
seq = 64
d_model = 16
heads = 2
time = false
formula = false
"""


@pytest.fixture(autouse=True)
def elsewhere_than_in_a_workflow(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GITHUB_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with modules, a suite and its baseline, which is only read."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "own.py").write_text(MODULE)
    (folder / "bench.toml").write_text(SUITE)
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(["baseline", "--suite", "bench.toml", "-o", "baseline.json"])
    assert ended.value.code == 0
    return folder


@pytest.fixture
def changed(project, tmp_path):
    """A copy of the project with lines of its module replaced, and where we are."""

    def change(*lines):
        text = MODULE
        for old, new in lines:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "own.py").write_text(text)
        for name in ("bench.toml", "baseline.json"):
            (tmp_path / name).write_text((project / name).read_text())
        return tmp_path

    return change


def test_unchanged_code_is_fine_in_both_ways(attnprof, project, monkeypatch):
    monkeypatch.chdir(project)
    done = attnprof(
        "check --baseline baseline.json --against . --budget 1 --inconclusive pass --format json"
    )
    report = done.json
    assert done.code == report["summary"]["exit_code"] == 0, done.err
    assert {r["verdict"] for r in report["records"]} <= {"ok", "inconclusive"}
    times = [r for r in report["records"] if r["metric"] == "time"]
    assert len(times) == 2  # the third case is not timed
    assert all(r["pairs"] == len(r["log_ratios"]) >= 5 for r in times)


def test_a_regression_shows_alike_everywhere(attnprof, changed, tmp_path, monkeypatch):
    folder = changed(*UPCAST_AND_COPY)
    step = tmp_path / "step.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    done = attnprof(
        "check --baseline baseline.json --no-time --format json",
        "--junit junit.xml --summary page.md --badge badge.json",
    )
    assert done.code == 1, done.err
    report = done.json
    worse = {r["case"] for r in report["records"] if r["verdict"] == "regressed"}
    assert len(worse) == 2
    assert report["summary"]["exit_code"] == 1
    junit = ET.parse(folder / "junit.xml").getroot()
    failed = [case for case in junit.iter("testcase") if case.find("failure") is not None]
    assert len(failed) >= 2
    assert not list(junit.iter("error"))
    for text in ((folder / "page.md").read_text(), step.read_text(), done.err.replace("%3A", ":")):
        assert "own.py:9" in text
        assert "own.py:10" in text
    assert done.err.count("::error ") == done.err.count("::error file=own.py,line=") == 2
    assert json.loads((folder / "badge.json").read_text())["message"] == "2 regressions"
    assert is_ours(folder / "badge.json")
    shown = render_text(check_tables(Report.from_json(report, "")), 80).splitlines()
    assert len(shown) <= 12
    assert max(map(len, shown)) <= 80
    for place, what in {"own.py:9": "+cast to float64", "own.py:10": "+clone"}.items():
        assert sum(f"{place} {what}" in line for line in shown) == 1
    assert shown[0].startswith("2 of 3 cases (own.py:Scores) got worse: own.py:9 added cast to f")
    assert "FLOPs are unchanged" in " ".join(shown)


def test_what_cannot_be_measured_is_never_a_regression(attnprof, changed):
    broken_today = ("return q + k", "raise ValueError('broken today')")
    folder = changed(broken_today, ("class Scores", "class Renamed"))
    done = attnprof("check --baseline baseline.json --no-time --format json --junit junit.xml")
    assert done.code == 3, done.out
    bad = {r["case"].partition("[")[0]: r for r in done.json["records"] if r["verdict"] != "ok"}
    broken, gone = bad["own.py:Fragile"], bad["own.py:Scores"]
    assert (broken["verdict"], gone["verdict"]) == ("error", "missing")
    assert "broken today" in broken["why"]
    assert "Scores" in gone["why"]
    junit = ET.parse(folder / "junit.xml").getroot()
    assert len(list(junit.iter("error"))) == len(done.json["records"]) == 3
    assert not list(junit.iter("failure"))


def test_times_of_another_machine_never_fail(attnprof, project, changed):
    folder = changed()
    data = json.loads((project / "baseline.json").read_text())
    data["summary"]["fingerprint"]["instructions"] = "another"
    for record in data["records"]:
        record["times_s"] = [[x / 10 for x in process] for process in record["times_s"]]
    (folder / "baseline.json").write_text(json.dumps(data))
    done = attnprof("check --baseline baseline.json --stored-times fail --format json")
    report = done.json
    times = [r for r in report["records"] if r["metric"] == "time"]
    assert done.code == 0, done.err
    assert {r["verdict"] for r in times} == {"not-comparable"}
    assert "another" in times[0]["why"]
    assert "another" in report["summary"]["not_comparable"]


def test_a_change_can_be_accepted(attnprof, changed):
    changed(SLOWER)
    accept = attnprof("check --baseline baseline.json --no-time --update")
    assert accept.code == 0, accept.err
    again = attnprof("check --baseline baseline.json --no-time")
    assert again.code == 0, again.out


# -- history -------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    for run, value in enumerate(times(5, 20, 10)):
        save(results, f"run{run:02}.json", value, 100 if run < 15 else 130, git=f"c{run:06}")
    return results


def test_a_history_has_its_change_points_in_every_format(attnprof, folder):
    (folder / "notes.json").write_text("{}")
    ended = attnprof("history", (str(folder),))
    assert ended.code == 0
    for words in ("c000010", "c000015", "2 change points in 2 series of 20 runs"):
        assert words in ended.out
    assert "left out notes.json" in ended.err
    report = attnprof("history --format json", (str(folder),)).json
    assert (report["command"], len(report["records"])) == ("history", 40)
    page = attnprof("history --format markdown", (str(folder),)).out
    assert len(page.splitlines()) == 2 + 2
    assert len(attnprof("history --format csv --metric time", (str(folder),)).csv) == 20


def test_a_flat_history_says_so_and_a_figure_is_drawn(attnprof, folder, tmp_path):
    words = ("--plot", f"{tmp_path}/history.svg", str(folder))
    ended = attnprof("history --case forward --metric time", words)
    assert "1 change point in 1 series" in ended.out
    assert (tmp_path / "history.svg").stat().st_size > 5000
    for path in sorted(folder.glob("*.json"))[8:]:
        path.unlink()
    flat = attnprof("history", (str(folder),)).out
    assert flat.startswith(
        "Nothing changed: 0 change points in 2 series of 8 runs.\nA series is one"
    )


def test_what_is_not_there_is_a_wrong_request(attnprof, folder, tmp_path):
    for words in (("--metric", "tim"), ("--case", "zzz"), ("--plot", "x.bmp")):
        ended = attnprof("history", (str(folder), *words))
        assert (ended.code, ended.out) == (2, "")
    assert attnprof("history", (str(tmp_path),)).code == 2
