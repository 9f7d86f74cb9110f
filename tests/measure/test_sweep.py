"""Sweeps end, account for every point, and are resumed without loss or double."""

import errno
import os
import random
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

import attnprof
from attnprof.cli.app import main
from attnprof.device import calibration
from attnprof.device.calibration import Calibration, with_roofline
from attnprof.device.ceilings import Ceilings
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.environment import command_line, device_name
from attnprof.measure.journal import Journal, read
from attnprof.measure.request import Budget
from attnprof.measure.sweep import (
    Grid,
    SweepOptions,
    joined,
    key_of,
    load_results,
    on_workers,
    points_of,
    report_of,
    sweep,
    tasks_of,
)
from attnprof.record import ProfileRecord
from tests.measure.samples import own_mechanism

QUICK = Budget(samples=3, min_time_s=0.0, max_time_s=0.05, warmup_s=0.0)


def small(names, lengths, **more):
    return points_of([Grid(names, lengths, [16], [2], **more)], QUICK)


def test_points_are_all_combinations_once_whatever_they_are_measured_for():
    points = small(["standard", "linear"], [8, 16], phase=["forward", "train"], batch_size=[1, 2])
    assert len(points) == len({key_of(point) for point in points}) == 16
    assert [p.mechanism for p in points[:4]] == ["standard", "linear"] * 2
    points = small(["longformer"], [64], params={"window": ["8", "16"]})
    assert sorted(p.params["window"] for p in points) == [8, 16]
    one, other = (points_of([Grid(["linear"], [8], [16], [2])], b)[0] for b in (QUICK, Budget()))
    assert key_of(one) == key_of(other) != key_of(one, 1)
    with pytest.raises(RequestError, match="do not divide"):
        points_of([Grid(["linear"], [8], [16], [3])], QUICK)


def test_a_sweep_is_resumed_where_it_stopped(tmp_path):
    path, tasks = tmp_path / "r.jsonl", tasks_of(small(["standard", "linear"], [8, 16]))
    here = SweepOptions(apart=False)
    assert sweep(tasks[:3], path, here) == 3
    assert sweep(tasks, path, here) == 1
    assert sweep(tasks, path, here) == 0
    assert [entry["key"] for entry in read(path)] == [task.key for task in tasks]
    report = load_results(path)
    assert report.summary["measured"] == 4
    assert all(record.median_s for record in report.records)


def test_processes_take_turns_and_are_joined(tmp_path):
    path, points = tmp_path / "r.jsonl", small(["standard", "linear"], [8])
    tasks = tasks_of(points, 3)
    assert [task.point.mechanism for task in tasks] == ["standard", "linear"] * 3
    sweep(tasks, path, SweepOptions(apart=False))
    report = load_results(path)
    assert [record.mechanism for record in report.records] == ["standard", "linear"]
    assert all(len(record.times_s) >= 9 for record in report.records)
    assert all(r.ci_low_s < r.median_s < r.ci_high_s for r in report.records)


def test_one_file_tells_threads_apart_and_each_has_its_own_roofline(tmp_path):
    path, rates = tmp_path / "r.jsonl", {1: 1e9, 2: 3e9}
    for count, rate in rates.items():
        points = points_of([Grid(["standard"], [64], [16], [2])], QUICK, threads=count)
        sweep(tasks_of(points), path, SweepOptions(apart=False))
        ceilings = Ceilings(device_name("cpu"), {"float32": rate}, 1e15, "a test")
        calibration.save(Calibration(ceilings, "cpu", count), tmp_path / "c.json")
    report = with_roofline(load_results(path), tmp_path / "c.json")
    times = [record.roofline_time_s for record in report.records]
    assert times == [report.records[0].flops_formula / rate for rate in rates.values()]
    answer = report.summary["answer"]
    assert "standard threads=2" in answer
    assert "standard threads=1" in answer


def test_processes_of_a_contradicted_point_give_no_rate():
    record = ProfileRecord(mechanism="standard", times_s=[1.0, 1.1, 1.2], flops_formula=8)
    assert joined([record, record]).flops_per_s == pytest.approx(8 / 1.1)
    assert joined([replace(record, contradicted="a difference")] * 2).flops_per_s is None


def test_what_takes_memory_or_does_not_fit_is_a_row_with_its_reason(tmp_path):
    """What hangs or dies is in tests/cli/test_hostile.py."""
    takes_memory = "return v * torch.zeros(1 << 33, dtype=torch.uint8)[0]"  # without saying so
    names = [own_mechanism(tmp_path / "hungry.py", takes_memory), "standard"]
    points = [*small(names, [8]), *small(["standard"], [1 << 20])]
    path = tmp_path / "r.jsonl"
    sweep(tasks_of(points), path, SweepOptions(limit_s=60, memory_limit=2 << 30))
    hungry, standard, large = load_results(path).records
    assert "memory" in hungry.skipped
    assert standard.median_s
    assert "does not fit" in large.skipped


def forked(arguments):
    """A command in a fork of this process, which has imported what takes seconds."""
    if (child := os.fork()) == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - as pytest's are no files
        try:
            main(arguments)
        except SystemExit as end:
            os._exit(end.code or 0)
        finally:
            os._exit(99)
    return child


def ended(child):
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def test_a_killed_sweep_is_resumed_to_the_same_records(tmp_path):
    path = tmp_path / "r.jsonl"
    arguments = [
        "sweep", "--in-process", "--attention", "standard,linear,efficient", "--seq", "8,16,32,64",
        "--d-model", "16", "--heads", "2", "--min-time", "0.1", "--max-time", "0.2",
        "--threads", "1", "-o", str(path),
    ]  # fmt: skip
    chance = random.Random(3)
    for _ in range(5):
        seen = len(read(path)) if path.exists() else 0
        child = forked(arguments)
        while (len(read(path)) if path.exists() else 0) <= seen and not ended(child):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.2)
        if not ended(child):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(forked(arguments), 0)[1]) == 0
    entries = read(path)
    keys = [entry["key"] for entry in entries]
    assert len(keys) == len(set(keys)) == 12
    assert report_of(entries).summary["measured"] == 12


def test_two_workers_give_the_same_records(tmp_path):
    pytest.importorskip("distributed")
    tasks = tasks_of(small(["standard", "linear"], [8, 16]))
    alone, together = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    sweep(tasks, alone, SweepOptions(apart=False))
    sweep(tasks, together, SweepOptions(apart=False), partial(on_workers, workers=2))

    def counted(path):
        return {
            (r.mechanism, r.seq_len, r.flops_formula, r.peak_bytes_measured, r.skipped)
            for r in load_results(path).records
        }

    assert counted(alone) == counted(together)
    commands = [load_results(path).environment["command"] for path in (alone, together)]
    assert commands == [command_line(sys.argv)] * 2
    assert len(read(together)) == 4


@pytest.mark.parametrize("apart", [False, True])
def test_what_a_sweep_spends_is_told_and_adds_up(tmp_path, apart):
    path = tmp_path / "r.jsonl"
    started = time.perf_counter()
    sweep(tasks_of(small(["standard", "linear"], [64])), path, SweepOptions(apart=apart))
    passed = time.perf_counter() - started
    spent = load_results(path).summary["time"]
    whole = spent["measured_s"] + spent["overhead_s"]
    assert 0 < whole <= whole + spent["start_s"] <= passed
    assert spent["overhead_share"] == spent["overhead_s"] / whole
    assert (spent["start_s"] > 0, spent["compile_s"]) == (apart, 0)


def test_a_sweep_from_python_is_the_command_lines(tmp_path):
    path = tmp_path / "r.jsonl"
    how = {"d_model": 16, "num_heads": [1, 2], "samples": 3, "min_time_s": 0.0,
           "max_time_s": 0.05, "isolate": False, "device": "cpu"}  # fmt: skip
    report = attnprof.sweep(["longformer", "linear"], 8, path, window=[2, 4], **how)
    points = [(r.mechanism, r.num_heads, r.params.get("window")) for r in report.records]
    assert sorted(points, key=str) == [
        ("linear", 1, None), ("linear", 2, None),
        ("longformer", 1, 2), ("longformer", 1, 4), ("longformer", 2, 2), ("longformer", 2, 4),
    ]  # fmt: skip
    before = path.read_bytes()
    assert attnprof.sweep("linear", [8], path, **how).records == report.records
    assert path.read_bytes() == before
    assert report.summary["measured"] == 6


def filled(path, count, start=0):
    with Journal(path) as journal:
        for i in range(start, start + count):
            journal.append(f"p{i}", {"record": {"n": i}})
    return path


def test_every_record_is_a_line_that_comes_back_and_is_written_once(tmp_path):
    path = filled(filled(tmp_path / "r.jsonl", 3), 3)
    assert [entry["key"] for entry in read(path)] == ["p0", "p1", "p2"]
    with Journal(path) as journal:
        assert journal.done == {"p0", "p1", "p2"}


def test_a_torn_last_line_is_kept_beside_and_written_again(tmp_path):
    path = filled(tmp_path / "r.jsonl", 3)
    data = path.read_bytes()
    for number, cut in enumerate(range(1, 60, 7), 1):
        path.write_bytes(data[:-cut])
        assert len(read(path)) == 2
        filled(path, 3)
        stored = tmp_path / f"r.jsonl.torn{number}"
        assert data[:-cut].endswith(b"\n" + stored.read_bytes())
        assert path.read_bytes() == data
    path.write_bytes(data[:10])  # inside its first line
    assert len(read(filled(path, 1))) == 1


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    path = filled(tmp_path / "r.jsonl", 2)
    real = os.write

    def half(handle, data):
        return real(handle, data[: len(data) // 2])

    with Journal(path) as journal:
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(CannotRunError, match="make room"):
            journal.append("p2", {"record": {}})
        monkeypatch.undo()
        journal.append("p3", {"record": {}})
    assert [entry["key"] for entry in read(path)] == ["p0", "p1", "p3"]


def test_a_failing_disk_says_why(tmp_path, monkeypatch):
    def fails(_handle):
        raise OSError(errno.EIO, "Input/output error")

    with Journal(tmp_path / "r.jsonl") as journal:
        with pytest.raises(ValueError, match="JSON"):  # there is no such number
            journal.append("p0", {"x": float("nan")})
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(CannotRunError, match="Input/output"):
            journal.append("p0", {})
    assert read(tmp_path / "r.jsonl") == []


def test_two_writers_exclude_each_other_and_a_folder_that_is_not_there_is_said(tmp_path):
    path = tmp_path / "r.jsonl"
    with Journal(path), pytest.raises(RequestError, match="another process"), Journal(path):
        pass
    with Journal(path):
        pass
    with pytest.raises(RequestError, match="folder"), Journal(tmp_path / "no" / "r.jsonl"):
        pass


PREFIX = '{"schema": "attnprof/1", "key": '


@pytest.mark.parametrize("text", [
    "hello\n", '{"a": 1}\n', "[]\n", "hello", "a,b\n1,2\n",
    '{"a": 1}', '{"schema": "attnprof/1", "command": "cost", "records": []}', "{", '{"schema"',
    '{"a": 1}\n{"schema": "attnprof/1", "key": "x"', PREFIX + "5}\n",
    f'{{"x": 1, {PREFIX[1:]}"k"}}',
    "x\n" + PREFIX + '"k"}\n', PREFIX + '"k"}\n' + '{"a": 1}\nx',
])  # fmt: skip
def test_nothing_is_cut_from_a_file_whose_first_line_is_no_journal_s(tmp_path, text):
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(RequestError), Journal(path):
        pass
    with pytest.raises(RequestError):
        read(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_torn_line_that_cannot_be_kept_is_not_cut(tmp_path, monkeypatch):
    path = filled(tmp_path / "r.jsonl", 2)
    path.write_bytes(path.read_bytes()[:-5])
    data, real = path.read_bytes(), os.open

    def full(name, *how):
        if ".torn" in str(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(name, *how)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(CannotRunError, match="torn"), Journal(path):
        pass
    assert path.read_bytes() == data


def test_a_byte_order_mark_before_a_journal_stays(tmp_path):
    path = filled(tmp_path / "r.jsonl", 1)
    path.write_bytes("\ufeff".encode() + path.read_bytes())
    filled(path, 2)
    assert [entry["key"] for entry in read(path)] == ["p0", "p1"]
    assert path.read_bytes().startswith("\ufeff".encode())
