"""How busy the machine was, from fakes; what the environment says of itself."""

import json
import os
import resource
import subprocess
import sys
import time
from statistics import median
from types import SimpleNamespace

import pytest
import torch
from torch.utils.benchmark import Timer

from attnprof.cli.measurement import set_wait_policy
from attnprof.errors import RequestError
from attnprof.measure import environment, memory, point
from attnprof.measure.allocator import KEPT
from attnprof.measure.clocks import Clock, threads
from attnprof.measure.memory import MARK, Event
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject
from tests.measure.samples import QUICK


@pytest.mark.parametrize(("threads", "share", "noisy", "expected"), [
    (1, 0.9, None, None),
    (1, 0.9, "noisy: x", "noisy: x"),
    (1, 0.5, None, "contended: other programs left it a processor for 50% of the time"),
    (1, 0.5, "noisy: x", "noisy: x; contended: "),
    (2, 0.5, None, None),
    (1, None, None, None),
])  # fmt: skip
def test_a_processor_that_others_use_is_said(threads, share, noisy, expected):
    reason = environment.noise(noisy, {"threads": threads, "cpu_share": share})
    assert reason == expected if expected is None else reason.startswith(expected)
    assert environment.cpu_share([2.0, 2.0], [1.5, 0.5]) == 0.5  # processor time over time passed
    assert environment.cpu_share([2.0], []) is None


def test_switches_are_those_of_the_time_watched(monkeypatch):
    counts = iter([10, 17])
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=next(counts)))
    with environment.watched("cpu") as switches:
        pass
    assert switches["involuntary_switches"] == 7
    assert switches["threads"] == torch.get_num_threads()
    assert switches["load_average"] >= 0
    assert "gpu_clock_mhz" not in switches


def test_processes_are_joined_by_the_worst_of_them():
    first = {"threads": 1, "cpu_share": 0.9, "load_average": 1.0, "involuntary_switches": 3}
    other = {"threads": 1, "cpu_share": 0.7, "load_average": 4.0, "involuntary_switches": None}
    assert environment.joined_conditions([first, other]) == {
        "threads": 1, "cpu_share": 0.7, "load_average": 4.0, "involuntary_switches": 3,
    }  # fmt: skip
    assert environment.joined_conditions([{}]) == {
        "cpu_share": None, "load_average": None, "involuntary_switches": None,
    }  # fmt: skip


def test_a_gpu_tells_its_clock_or_nothing(monkeypatch):
    def forbidden(_):
        raise RuntimeError("no permission")

    nvml = SimpleNamespace(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: handle)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    cuda = SimpleNamespace(
        clock_rate=lambda _: 1980, temperature=forbidden, power_draw=lambda _: 512_000,
        _get_pynvml_handler=lambda _: 0x4 | 0x1 | 0x20,
    )  # fmt: skip
    assert environment.gpu_state(SimpleNamespace(cuda=cuda), "cuda") == {
        "gpu_clock_mhz": 1980, "gpu_temperature_c": None, "gpu_power_w": 512.0,
        "gpu_throttled": ["power cap", "software thermal"],
    }  # fmt: skip
    nothing = environment.gpu_state(SimpleNamespace(cuda=SimpleNamespace()), "cuda")
    assert set(nothing.values()) == {None}


def test_launches_are_those_after_the_mark(monkeypatch):
    events = [
        Event("cudaLaunchKernel", 1, 2), Event(MARK, 5, 99), Event("cudaLaunchKernel", 6, 7),
        Event("cudaMemsetAsync", 8, 9), Event("cudaLaunchKernelExC", 10, 11),
        Event("cuLaunchKernelEx", 12, 13), Event("aten::bmm", 6, 8),
    ]  # fmt: skip
    monkeypatch.setattr(memory, "traced", lambda *_: events)
    assert memory.count_launches(None, "cuda", torch) == 3
    assert memory.count_launches(None, "cpu", torch) is None


def test_a_record_says_under_which_conditions_it_was_made():
    point_request = PointRequest("linear", 32, 2, 8, budget=QUICK, counts=False, threads=1)
    row = point.measure_point(point_request)
    assert row.conditions["threads"] == 1
    assert row.conditions["omp_wait_policy"] == os.environ["OMP_WAIT_POLICY"]
    assert 0 < row.conditions["cpu_share"] < 1.5
    assert row.conditions["involuntary_switches"] >= 0
    assert row.launches is None
    assert row.measured_s > sum(row.times_s)
    assert row.overhead_s > 0


def test_times_are_taken_under_the_policy_that_any_program_has():
    """Unless another is asked for: tests/cli/test_profile.py."""
    shape = ("-a", "linear", "--seq", "16", "--d-model", "16", "--heads", "1")
    quick = ("--samples", "3", "--min-time", "0")
    usual = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-m", "attnprof", "profile", *shape, *quick, "--format", "json"],
        env=usual, capture_output=True, text=True, check=True,
    )  # fmt: skip
    conditions = json.loads(done.stdout)["records"][0]["conditions"]
    assert conditions["omp_wait_policy"] == "default"
    assert conditions["allocator"].split()[0] in ("glibc", "musl", "C")
    assert int(conditions["cores"]) >= 1


@pytest.mark.parametrize("name", ["standard", "sdpa", "performer", "taylor-efficient"])
def test_a_profiled_time_is_that_of_torchs_own_benchmark(name):
    request = PointRequest(name, 512, 4, 32, counts=False, check=False, threads=1, budget=QUICK)
    subject = build_subject(request)
    # processor time of the one thread, which other processes disturb least
    timer = Timer("call()", globals={"call": subject.call}, num_threads=1, timer=time.thread_time)
    clock = Clock(now_ns=time.thread_time_ns)
    # freed: what is smaller comes from kept memory from now on
    torch.empty(KEPT, dtype=torch.uint8)
    ours, theirs = [], []
    with threads(1):
        for _ in range(30):  # in turns; both call twice before they time
            taken = clock.times(subject.prepare, subject.call, 3)
            ours.append(taken[-1].wall_s)
            theirs.append(timer.timeit(1).mean)
    assert 0.75 <= median(ours) / median(theirs) <= 1.25


def test_the_environment_has_what_can_change_a_number():
    recorded = environment.describe_environment("cpu", seed=3)
    for name in ("torch", "threads", "blas", "instructions", "float32_matmul_precision",
                 "bfloat16_reduced_sums", "deterministic", "git", "command"):  # fmt: skip
        assert name in recorded
    assert recorded["seed"] == 3
    assert [recorded[name] for name in ("cuda", "driver", "tf32")] == [None, None, None]


def test_the_command_can_be_typed_again_and_a_wait_policy_that_is_none_is_refused():
    with pytest.raises(RequestError, match="possible are default, passive, active"):
        set_wait_policy("asleep")
    words = ["/x/y/attnprof", "profile", "--input", "x: B, N"]
    assert environment.command_line(words) == "attnprof profile --input 'x: B, N'"
    assert environment.command_line(["/x/attnprof/__main__.py", "list"]) == "attnprof list"


def test_the_drivers_version_is_read_where_the_kernel_tells(tmp_path):
    path = tmp_path / "version"
    assert environment.driver_version(path) is None
    path.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\nGCC version:\n"
    )
    assert environment.driver_version(path) == "570.124.06"
    path.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release\n")
    assert environment.driver_version(path) == "560.35.03"


@pytest.mark.parametrize(("fields", "expected"), [
    ({"cpu family": 25, "model": 17, "model name": "AMD EPYC"},
     "AMD EPYC (family 25 model 17)"),
    ({"cpu family": 26, "model": 2, "model name": "AMD EPYC"}, "AMD EPYC (family 26 model 2)"),
    ({"cpu family": 25, "model": 1, "model name": "AMD EPYC 7763 64-Core Processor"},
     "AMD EPYC 7763 64-Core Processor"),
    ({"cpu family": 6, "model": 79, "model name": "Intel(R) Xeon(R) CPU @ 2.20GHz"},
     "Intel(R) Xeon(R) CPU @ 2.20GHz (family 6 model 79)"),
    ({"CPU implementer": "0x41", "CPU part": "0xd4f"}, "aarch64 (part 0xd4f)"),
    ({}, "aarch64"),
])  # fmt: skip
def test_a_name_that_several_processors_have_is_told_with_their_kind(
    fields, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")
    path = tmp_path / "cpuinfo"
    cores = [{"processor": core, **fields, "stepping": 1} for core in range(2)]
    texts = ("".join(f"{name}\t: {value}\n" for name, value in core.items()) for core in cores)
    path.write_text("\n".join(texts))
    assert environment.cpu_model(path) == expected


def test_git_is_asked_once(monkeypatch):
    environment.git_state.cache_clear()
    calls = []
    monkeypatch.setattr(environment, "git", lambda *words, **_: calls.append(words) or "abc")
    assert [environment.git_state() for _ in range(3)] == ["abc+changes"] * 3
    assert len(calls) == 2
    environment.git_state.cache_clear()
