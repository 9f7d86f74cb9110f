"""baseline and check from the command line: a regression shows alike everywhere, and only then."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

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


def attnprof(folder, *arguments, **environment):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "attnprof", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**plain, **environment},
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with modules, a suite and its baseline, which is only read."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "own.py").write_text(MODULE)
    (folder / "bench.toml").write_text(SUITE)
    done = attnprof(folder, "baseline", "--suite", "bench.toml", "-o", "baseline.json")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def changed(project, tmp_path):
    """A copy of the project with a line of its module replaced."""

    def change(old, new):
        assert old in MODULE
        (tmp_path / "own.py").write_text(MODULE.replace(old, new))
        for name in ("bench.toml", "baseline.json"):
            (tmp_path / name).write_text((project / name).read_text())
        return tmp_path

    return change


def test_unchanged_code_is_fine_in_both_ways(project):
    done = attnprof(
        project, "check", "--baseline", "baseline.json", "--against", ".", "--budget", "2",
        "--inconclusive", "pass", "--format", "json",
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.returncode == report["summary"]["exit_code"] == 0, done.stderr
    assert {r["verdict"] for r in report["records"]} <= {"ok", "inconclusive"}
    times = [r for r in report["records"] if r["metric"] == "time"]
    assert len(times) == 2  # the third case is not timed
    assert all(r["pairs"] == len(r["log_ratios"]) >= 5 for r in times)


def test_a_regression_shows_alike_everywhere(changed, tmp_path):
    folder = changed("scores.softmax(-1) @ v", "scores.softmax(-1) @ (v * 1.0)")
    step = tmp_path / "step.md"
    done = attnprof(
        folder, "check", "--baseline", "baseline.json", "--no-time", "--format", "json",
        "--junit", "junit.xml", "--summary", "page.md",
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(step),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    worse = {r["case"] for r in report["records"] if r["verdict"] == "regressed"}
    assert len(worse) == 2
    assert report["summary"]["exit_code"] == 1
    junit = ET.parse(folder / "junit.xml").getroot()
    failed = [case for case in junit.iter("testcase") if case.find("failure") is not None]
    assert len(failed) >= 2
    assert not list(junit.iter("error"))
    for text in ((folder / "page.md").read_text(), step.read_text(), done.stderr):
        assert "aten.mul" in text
        assert "own.py" in text
    assert done.stderr.count("::error ") == 2


@pytest.mark.parametrize(("old", "new", "verdict", "said"), [
    ("return q + k", "raise ValueError('broken today')", "error", "broken today"),
    ("class Fragile", "class Renamed", "missing", "Fragile"),
])  # fmt: skip
def test_what_cannot_be_measured_is_never_a_regression(changed, old, new, verdict, said):
    folder = changed(old, new)
    done = attnprof(
        folder, "check", "--baseline", "baseline.json", "--no-time", "--format", "json",
        "--junit", "junit.xml",
    )  # fmt: skip
    assert done.returncode == 3, done.stdout
    found = [r for r in json.loads(done.stdout)["records"] if r["verdict"] != "ok"]
    assert {r["verdict"] for r in found} == {verdict}
    assert said in found[0]["why"]
    junit = ET.parse(folder / "junit.xml").getroot()
    assert list(junit.iter("error"))
    assert not list(junit.iter("failure"))


def test_times_of_another_machine_never_fail(project, changed):
    folder = changed("scores", "scores")
    data = json.loads((project / "baseline.json").read_text())
    data["summary"]["fingerprint"]["instructions"] = "another"
    for record in data["records"]:
        record["times_s"] = [[x / 10 for x in process] for process in record["times_s"]]
    (folder / "baseline.json").write_text(json.dumps(data))
    done = attnprof(
        folder, "check", "--baseline", "baseline.json", "--stored-times", "fail",
        "--format", "json",
    )  # fmt: skip
    report = json.loads(done.stdout)
    times = [r for r in report["records"] if r["metric"] == "time"]
    assert done.returncode == 0, done.stderr
    assert {r["verdict"] for r in times} == {"not-comparable"}
    assert "another" in times[0]["why"]
    assert "another" in report["summary"]["not_comparable"]


@pytest.mark.parametrize(("doctor", "said"), [
    (lambda text: text.replace("attnprof/1", "attnprof/9"), "attnprof/9"),
    (lambda text: text[: len(text) // 2], "no whole JSON"),
    (lambda text: text.replace('"flops": ', '"flops": NaN, "was": ', 1), "NaN"),
    (lambda _text: '{"schema": "attnprof/1", "command": "profile"}', "profile"),
])  # fmt: skip
def test_a_doctored_baseline_is_refused_with_a_message(project, tmp_path, doctor, said):
    (tmp_path / "baseline.json").write_text(doctor((project / "baseline.json").read_text()))
    done = attnprof(tmp_path, "check", "--baseline", "baseline.json")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_change_can_be_accepted(changed):
    folder = changed("scores.softmax(-1) @ v", "scores.softmax(-1) @ (v * 1.0)")
    accept = attnprof(folder, "check", "--baseline", "baseline.json", "--no-time", "--update")
    assert accept.returncode == 0, accept.stderr
    again = attnprof(folder, "check", "--baseline", "baseline.json", "--no-time")
    assert again.returncode == 0, again.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "--against or --baseline"),
    (["--update", "--against", "."], "--baseline FILE"),
    (["--against", "no-such-ref"], "no-such-ref"),
    (["--baseline", "nowhere.json"], "nowhere.json"),
    (["--against", ".", "--rule", "sensitiv"], "sensitive"),
    (["--against", ".", "--inconclusive", "maybe"], "retry"),
    (["--against", ".", "--budget", "0"], "--budget"),
    (["--against", ".", "--suite", "nowhere.toml"], "nowhere.toml"),
    (["--against", ".", "--attention", "standard"], "--seq"),
    (["--against", ".", "--junit", "no/such/folder.xml"], "no/such"),
])  # fmt: skip
def test_wrong_requests_are_told_what_to_type(tmp_path, arguments, said):
    done = attnprof(tmp_path, "check", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3
