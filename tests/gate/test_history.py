"""Levels of saved results are found where they begin, and nowhere else."""

import json
import math
import os
import random
import re

import pytest

from attnprof.errors import RequestError
from attnprof.gate.history import count_changes, history_report, time_changes
from attnprof.record import BaselineRecord, CheckRecord, Report
from attnprof.render.formats import render

HERE = {"device": "cpu", "device_name": "Fast CPU", "threads": 2, "attnprof": "1"}
THERE = {**HERE, "device_name": "Slow CPU"}


def times(seed, runs, at=None, step=0.1, noise=0.02, slow=0.0):
    """Seconds of ``runs`` runs, longer by ``step`` from run ``at`` on; a share of them slow."""
    chance, history = random.Random(seed), []
    for run in range(runs):
        level = 0.01 * (1 + step) if at is not None and run >= at else 0.01
        pause = 0.4 * chance.random() if chance.random() < slow else 0.0
        history.append(level * math.exp(chance.gauss(0, noise) + pause))
    return history


@pytest.mark.parametrize(
    ("runs", "at", "slow"), [(16, 8, 0.05), (30, 15, 0.0), (30, 25, 0.05), (50, 40, 0.0)]
)
def test_a_step_of_a_tenth_is_found_within_two_runs(runs, at, slow):
    hits = 0
    for seed in range(30):
        changes = time_changes(times(seed, runs, at, slow=slow))
        hits += len(changes) == 1 and abs(changes[0] - at) <= 2
    assert hits >= 27


@pytest.mark.parametrize(("runs", "slow"), [(5, 0.05), (10, 0.0), (40, 0.05)])
def test_flat_noise_has_no_change_point(runs, slow):
    assert sum(bool(time_changes(times(seed, runs, slow=slow))) for seed in range(40)) <= 2


def test_up_and_down_again_are_two_changes_and_one_slow_run_is_none():
    values = [*times(1, 15), *times(2, 15, 0, 0.2), *times(3, 15)]
    assert [round(place / 15) for place in time_changes(values)] == [1, 2]
    values = times(4, 30)
    values[12] *= 3
    assert time_changes(values) == []
    assert count_changes([5, 5, 6, 6, 6, 5]) == [2, 5]  # counts have no noise
    assert count_changes([5]) == []


def save(folder, name, value, flops=100, fingerprint=HERE, **environment):
    records = [
        CheckRecord(case="a[forward]", metric="time", current=value, verdict="ok"),
        CheckRecord(case="a[forward]", metric="flops", current=flops, verdict="ok"),
        CheckRecord(case="a[forward]", metric="formula:flops", current="2*N", verdict="ok"),
        CheckRecord(case="b[forward]", metric="case", current=None, verdict="error"),
    ]
    report = Report("check", records, {"fingerprint": fingerprint}, environment)
    report.save(folder / name)


def series(report, metric):
    levels = {}
    for record in report.records:
        if record.metric == metric:
            levels.setdefault(record.machine, []).append(record)
    return list(levels.values())


def test_a_step_is_told_with_its_run_commit_and_ratio(tmp_path):
    for run, value in enumerate(times(5, 24, 12)):
        save(tmp_path, f"run{run}.json", value, 100 if run < 20 else 110, git=f"commit{run}")
    report = history_report(tmp_path)
    (timed,), (counted,) = series(report, "time"), series(report, "flops")
    (change,) = [record for record in timed if record.change_point]
    assert abs(change.run - 13) <= 1
    assert change.commit == f"commit{change.run - 1}"
    assert change.ratio == pytest.approx(1.1, abs=0.02)
    assert change.level == pytest.approx(0.011, rel=0.02)
    assert [(r.commit, r.ratio) for r in counted if r.change_point] == [("commit20", 1.1)]
    assert report.summary["change_points"] == 2
    assert {record.metric for record in report.records} == {"time", "flops"}


def test_times_of_two_machines_are_two_series_and_counts_one(tmp_path):
    for run in range(10):
        slow = run % 2
        save(tmp_path, f"{run}.json", 0.02 if slow else 0.01, fingerprint=THERE if slow else HERE)
    report = history_report(tmp_path)
    assert [len(records) for records in series(report, "time")] == [5, 5]
    assert {r.machine.partition(" #")[0] for r in report.records} == {"", "Fast CPU", "Slow CPU"}
    assert [len(records) for records in series(report, "flops")] == [10]
    assert report.summary["change_points"] == 0


@pytest.mark.parametrize(("machine", "runs"), [(HERE, [4]), ({}, [1] * 4)])
def test_another_attnprof_is_no_other_machine_and_times_of_unknown_ones_are_never_joined(
    tmp_path, machine, runs
):
    for run in range(4):
        version = {"attnprof": str(run)} if machine else {}
        save(tmp_path, f"{run}.json", 0.01, fingerprint={**machine, **version})
    assert [len(records) for records in series(history_report(tmp_path), "time")] == runs


def test_baselines_are_runs_too(tmp_path):
    record = BaselineRecord(case="a[forward]", metrics={"flops": 7}, times_s=[[2, 3], [5], [1]])
    Report("baseline", [record], {"fingerprint": HERE}).save(tmp_path / "base.json")
    values = {(r.case, r.metric): r.value for r in history_report(tmp_path).records}
    assert values == {("a[forward]", "flops"): 7, ("a[forward]", "time"): 2.5}


def test_runs_come_by_their_own_time_where_all_tell_it_else_by_name_and_files_tell_when(tmp_path):
    (tmp_path / "timed").mkdir()
    save(tmp_path / "timed", "a.json", 0.01, time="2026-02-01T00:00:00+00:00", git="second")
    save(tmp_path / "timed", "b.json", 0.01, time="2026-01-01T00:00:00", git="first")
    (levels,) = series(history_report(tmp_path / "timed"), "flops")
    assert [record.commit for record in levels] == ["first", "second"]
    for name in ("run10.json", "run9.json"):
        save(tmp_path, name, 0.01)
        os.utime(tmp_path / name, (0, 0))
    levels = series(history_report(tmp_path), "flops")[0]
    assert [record.file for record in levels] == ["run9.json", "run10.json"]
    assert levels[0].at == "1970-01-01T00:00:00+00:00"


def test_what_is_no_result_is_left_out_by_name(tmp_path):
    save(tmp_path, "good.json", 0.01)
    rest = {"schema": "attnprof/1", "summary": {}, "environment": {}}
    odd = [[], {}, {"schema": "attnprof/1"}, {**rest, "command": "check", "records": ["odd"]},
           {**rest, "command": "doctor", "records": []}]  # fmt: skip
    for text in ("{", *map(json.dumps, odd)):
        (tmp_path / "odd.json").write_text(text)
        summary = history_report(tmp_path).summary
        assert summary["runs"] == 1
        assert summary["left_out"][0].startswith("odd.json: ")


def test_values_that_are_no_numbers_are_no_points_and_no_results_a_wrong_request(tmp_path):
    with pytest.raises(RequestError, match=r"no \.json files"):
        history_report(tmp_path)
    with pytest.raises(RequestError, match="no folder"):
        history_report(tmp_path / "none")
    save(tmp_path, "0.json", float("nan"), flops=None)
    save(tmp_path, "1.json", 0.01)
    assert len(history_report(tmp_path).records) == 2


@pytest.mark.parametrize(("commits", "column"), [
    (("a1", "b2", "c3"), "commit"), (("", "", ""), "file"), (("a1", "b2", ""), "commit or file"),
])  # fmt: skip
def test_the_table_says_whether_a_level_is_known_by_its_commit_or_its_file(
    tmp_path, commits, column
):
    for run, commit in enumerate(commits):
        save(tmp_path, f"run{run}.json", 0.01, 100 + run, git=commit)
    text = render(history_report(tmp_path, metrics=["flops"]), "table")
    heads = next(line for line in text.splitlines() if line.startswith("metric "))
    assert re.split(r"\s{2,}", heads) == ["metric", "since", column, "level", "ratio"]
    assert all((commit or f"run{run}.json") in text for run, commit in enumerate(commits) if run)
