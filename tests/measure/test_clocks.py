"""Clocks, the sampling plan and calls in turns, with time that a test moves by hand."""

import gc
import time
from types import SimpleNamespace

import pytest
import torch

from attnprof import registry
from attnprof.crossovers import timed
from attnprof.crossovers.sides import Meeting, TimeTerms
from attnprof.crossovers.timed import TimedPair
from attnprof.errors import RequestError
from attnprof.measure import point
from attnprof.measure.clocks import (
    Clock,
    CudaClock,
    HostClock,
    on_device,
    sample,
    time_in_turns,
    warm_up,
)
from attnprof.measure.request import Budget, PointRequest
from attnprof.measure.subject import Subject
from attnprof.workload import Workload


class FakeTime:
    """Nanoseconds that only advance when a call says so."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += round(seconds * 1e9)


def nothing():
    pass


def test_preparation_is_outside_the_time():
    time = FakeTime()
    clock = Clock(time, time)
    times = clock.times(lambda: time.spend(5), lambda: time.spend(0.25), 3)
    assert times == [(0.25, 0.25)] * 3


@pytest.mark.parametrize(("call_s", "budget", "expected"), [
    (0.1, Budget(5, 0.0, 100, 0), 5),  # exactly what was asked for
    (10.0, Budget(20, 0.5, 5, 0), 3),  # slow: never fewer than three
    (1.0, Budget(20, 0.5, 5, 0), 5),  # the time runs out first
    (1e-3, Budget(7, 1, 200, 0), 70),  # fast: ten times the number asked for is enough
])  # fmt: skip
def test_samples_follow_the_budget(call_s, budget, expected):
    time = FakeTime()
    clock = Clock(time)
    timing = sample(clock, nothing, lambda: time.spend(call_s), budget)
    assert len(timing) == expected
    assert time.now >= budget.min_time_s * 1e9  # spread over it
    assert clock.name == "perf_counter_ns"


def test_warming_up_takes_its_time_and_at_least_one_call():
    time = FakeTime()
    assert warm_up(Clock(time), nothing, lambda: time.spend(0.05), 0.2) == 4
    assert warm_up(Clock(time), nothing, lambda: time.spend(9.0), 0.2) == 1


def test_no_garbage_is_collected_while_timing_and_onednn_that_a_call_switches_off_is_back_on():
    time, seen, flags = FakeTime(), [], torch.backends.mkldnn

    def call():
        seen.append(gc.isenabled())
        flags.enabled = False
        time.spend(1)

    before = flags.enabled
    sample(Clock(time), nothing, call, Budget(3, 0, 5, 0))
    assert (any(seen), gc.isenabled(), flags.enabled) == (False, True, before)
    subject, states = SimpleNamespace(prepare=nothing, call=call), []
    other = SimpleNamespace(prepare=nothing, call=lambda: states.append(flags.enabled))
    time_in_turns([subject, other, subject], Budget(3, 0, 5, 0), Clock(time))
    assert {*states, flags.enabled} == {before}


class FakeCuda:
    """Events that note the time of a stream; synchronisations are counted."""

    def __init__(self, time):
        self.time, self.synchronised, self.slept = time, 0, 0

    def _sleep(self, cycles):
        self.slept += cycles

    def synchronize(self):
        self.synchronised += 1

    def Event(self, enable_timing):  # noqa: N802 - torch's own name
        assert enable_timing
        event = SimpleNamespace()
        event.record = lambda: setattr(event, "at", self.time())
        event.elapsed_time = lambda other: (other.at - event.at) / 1e6
        return event


def test_events_time_the_stream_with_one_synchronisation():
    time = FakeTime()
    cuda = FakeCuda(time)
    times = CudaClock(cuda).times(lambda: time.spend(1), lambda: time.spend(0.002), 8)
    assert [t.wall_s for t in times] == pytest.approx([0.002] * 8)
    assert cuda.synchronised == 1
    assert all(t.cpu_s is None for t in times)


def test_the_cache_is_flushed_before_each_call_and_outside_its_time():
    time = FakeTime()
    flushed = []

    def flush():
        flushed.append(time.now)
        time.spend(3)

    clock = CudaClock(FakeCuda(time), flush)
    times = clock.times(nothing, lambda: time.spend(0.5), 4)
    assert [t.wall_s for t in times] == [0.5] * 4
    assert len(flushed) == 4
    assert "flushed" in clock.name


@pytest.mark.parametrize(("call_s", "waits"), [(50e-6, True), (2e-3, False)])
def test_only_short_calls_wait_for_the_host(call_s, waits):
    time = FakeTime()
    cuda = FakeCuda(time)
    clock = CudaClock(cuda)
    timing = sample(clock, nothing, lambda: time.spend(call_s), Budget(3, 0, 5, 0))
    assert (cuda.slept > 0) == waits
    assert ("waiting kernel" in clock.name) == waits
    assert [taken.wall_s for taken in timing] == pytest.approx([call_s] * len(timing))


class CurrentDevice:
    """Stands for ``torch.cuda.device``: notes which GPU is current."""

    current = "cuda:0"

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.before, CurrentDevice.current = CurrentDevice.current, self.device

    def __exit__(self, *error):
        CurrentDevice.current = self.before


def test_points_of_another_gpu_than_the_first_are_measured_by_its_own_stream(monkeypatch):
    seen = []

    def note(result):
        return lambda *_, **__: seen.append(CurrentDevice.current) or result

    monkeypatch.setattr(torch.cuda, "device", CurrentDevice)
    request = PointRequest("standard", 64, 1, 8, device="cuda:1", counts=False)
    monkeypatch.setattr(point, "run_point", note(point.predict_point(request)))
    point.measure_point(request)
    side = [registry.get("standard"), registry.get("linear")]
    options = {"scope": "layer", "device": "cuda:1", "threads": 1}
    pair = TimedPair(Meeting(*side, Workload(1, 1, 8)), 8, options, {}, TimeTerms())
    monkeypatch.setattr(TimedPair, "requests", lambda *_: [request])
    monkeypatch.setattr(timed, "build_subject", lambda _: None)
    monkeypatch.setattr(timed, "cuda_clock", note(None))
    monkeypatch.setattr(timed, "time_in_turns", note(([1.0], [2.0])))
    assert pair._compare(64, Budget()) == ([1.0], [2.0])
    assert seen == ["cuda:1"] * 3
    assert CurrentDevice.current == "cuda:0"
    with on_device("cpu"):
        assert CurrentDevice.current == "cuda:0"


def test_the_host_is_timed_while_the_device_has_nothing_to_do(monkeypatch):
    host = FakeTime()
    cuda = FakeCuda(host)
    clock = HostClock(cuda)
    clock._now_ns = host
    monkeypatch.setattr(cuda, "synchronize", lambda: host.spend(7))
    times = clock.times(nothing, lambda: host.spend(2e-3), 3)
    assert [taken.wall_s for taken in times] == pytest.approx([2e-3] * 3)


def test_calls_in_turns_wait_for_the_host_as_long_as_the_slowest_of_them(monkeypatch):
    time = FakeTime()
    cuda = FakeCuda(time)
    clock = CudaClock(cuda)
    host = FakeTime()
    monkeypatch.setattr("attnprof.measure.clocks.time.perf_counter", lambda: host.now / 1e9)

    def call(queued_s):
        def run():
            host.spend(queued_s)
            time.spend(1e-3)  # the device takes as long, and may wait for the host

        return run

    clock.adapt(nothing, call(4e-3))
    longest = clock._wait_cycles
    clock.adapt(nothing, call(1e-6))
    assert clock._wait_cycles == longest >= 2 * 4e-3 * 1.9e9


def test_sampling_goes_on_until_the_median_is_known_well_enough():
    time, turn = FakeTime(), [0]

    def call():
        turn[0] += 1
        time.spend(1.0 if turn[0] % 2 else 1.3)

    loose, tight = (
        sample(Clock(time, time), nothing, call, Budget(6, 0, 1e6, 0, spread=spread))
        for spread in (0.5, 0.001)
    )
    assert len(loose) == 6
    assert len(tight) == 60


@pytest.mark.parametrize("wrong", [(0, 0.5, 5), (5, -1, 5), (5, 0, 0), (5, 6, 5)])
def test_budgets_that_cannot_be_met_are_refused(wrong):
    with pytest.raises(RequestError):
        Budget(*wrong)


class World(FakeTime):
    """Keeps who was called, too."""

    def __init__(self):
        super().__init__()
        self.calls, self.threads = [], set()

    def clock(self):
        return Clock(self, lambda: 0)

    def subject(self, name, seconds):
        def call():
            self.calls.append(name)
            self.threads.add(torch.get_num_threads())
            self.spend(seconds)

        return Subject(None, lambda: None, lambda: None, call)


BUDGET = Budget(samples=6, min_time_s=0, max_time_s=100, warmup_s=0, least=2)


def test_each_round_calls_every_subject_and_every_other_round_backwards():
    world = World()
    times = time_in_turns([world.subject("a", 1), world.subject("b", 2)], BUDGET, world.clock())
    assert times == [[1.0] * 6, [2.0] * 6]
    assert "".join(world.calls) == "ab" + "abbaabbaabba"  # a warming call each comes first


@pytest.mark.parametrize(
    ("seconds", "least", "rounds"),
    [(7, 1, 2), (60, 1, 1), (100, 1, 1), (3, 1, 4), (4, 1, 3), (1000, 2, 2)],
)
def test_rounds_end_when_the_time_is_spent_and_there_are_enough(seconds, least, rounds):
    world = World()
    budget = Budget(samples=6, min_time_s=0, max_time_s=10, warmup_s=0, least=least)
    times = time_in_turns([world.subject("a", seconds)], budget, world.clock())
    assert len(times[0]) == rounds


def test_one_thread_computes_and_the_others_come_back():
    before, world = torch.get_num_threads(), World()
    time_in_turns([world.subject("a", 1)], BUDGET, world.clock())
    assert world.threads == {1}
    assert torch.get_num_threads() == before


def test_the_processor_clock_reads_the_time_of_this_thread_alone(monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(seconds) * 10**9)
    subject = Subject(None, lambda: None, lambda: None, lambda: None)
    budget = Budget(samples=3, min_time_s=0, max_time_s=90, warmup_s=0)
    assert time_in_turns([subject], budget) == [[1.0, 1.0, 1.0]]
