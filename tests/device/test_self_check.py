"""Layers that nothing was fitted to tell how far predictions are off on a device."""

import itertools
from collections import Counter
from dataclasses import replace
from math import exp, log
from random import Random

import pytest
import torch

from attnprof.device import calibration_run, self_check
from attnprof.device.calibration import Calibration
from attnprof.device.checked_layers import CheckedLayer, SelfCheck
from attnprof.device.machine_reading import BUNDLES, READING_S, MachineReading, read_machine
from attnprof.device.prediction import Predictor
from attnprof.device.self_check import LAYERS, PHASES, check_layers, drawn_points
from attnprof.errors import CannotRunError
from attnprof.measure.clocks import Clock
from attnprof.measure.request import PointRequest
from tests.device.test_prediction import SOME, made_up


def of_residuals(**by_phase):
    return SelfCheck(
        tuple(
            CheckedLayer("linear", phase, 64, 2, 8, 1.0, exp(residual))
            for phase, residuals in by_phase.items()
            for residual in residuals
        )
    )


def test_the_bias_is_the_middle_and_the_reach_the_farthest_from_the_others():
    check = of_residuals(train=[0.1, 0.2, 0.3, 0.2, 1.2])
    assert check.bias("train") == check.bias("decode") == pytest.approx(0.2)
    assert check.reach == pytest.approx(1.0)
    assert check.median_error == pytest.approx(exp(0.1) - 1, rel=0.01)


def test_each_phase_has_a_bias_and_errors_are_from_it():
    check = of_residuals(train=[0.1, 0.1, 0.1], decode=[-0.3, -0.3, -0.3, -0.3])
    assert (check.bias("train"), check.bias("decode")) == pytest.approx((0.1, -0.3))
    assert check.bias("forward") == pytest.approx(-0.3)  # of all
    assert check.reach == pytest.approx(0.0)


@pytest.mark.parametrize("draw", ["normalvariate", "expovariate"])
def test_intervals_have_the_next_layer_in_about_95_percent_whatever_residuals_are_like(draw):
    random, inside, trials = Random(3), 0, 2000
    arguments = (0.3, 0.2) if draw == "normalvariate" else (3.0,)

    def residual(phase):
        return PHASES.index(phase) + getattr(random, draw)(*arguments)

    for trial in range(trials):
        check = of_residuals(**{p: [residual(p) for _ in range(LAYERS)] for p in PHASES})
        phase = PHASES[trial % len(PHASES)]
        inside += abs(residual(phase) - check.bias(phase)) <= check.reach
    assert 0.93 <= inside / trials <= 0.98


def test_predictions_are_corrected_by_the_bias_and_reach_as_far_as_the_check():
    plain = Calibration(SOME, "cpu", 1, {"float32": made_up()})
    check = of_residuals(forward=[0.5] * (LAYERS - 1) + [0.9])
    held = Calibration(SOME, "cpu", 1, {"float32": made_up()}, checks={"float32": check})
    request = PointRequest("standard", 96, 2, 8)
    before, after = (Predictor(one).point(request) for one in (plain, held))
    assert after.time_s == pytest.approx(before.time_s * exp(0.5))
    assert sum(row["time_s"] for row in after.operations) == pytest.approx(after.time_s)
    assert log(after.ci_high_s / after.time_s) == pytest.approx(0.4)
    assert log(after.time_s / after.ci_low_s) == pytest.approx(0.4)
    assert "median error 0%, at most 49% in 20 layers" in Predictor(held).made_of


def test_layers_are_predicted_and_timed_until_there_are_enough():
    check = check_layers(lambda *_: 1e-3, drawn_points("float32", "cpu"), lambda _: [2e-3])
    assert Counter(layer.phase for layer in check.layers) == dict.fromkeys(PHASES, LAYERS)
    assert [check.bias(phase) for phase in PHASES] == pytest.approx([log(2)] * len(PHASES))
    assert len({layer.mechanism for layer in check.layers}) > 5


def test_on_a_slow_machine_fewer_layers_suffice_and_none_are_too_few(monkeypatch):
    monkeypatch.setattr(self_check, "CHECK_S", -1.0)
    check = check_layers(lambda *_: 1e-3, drawn_points("float32", "cpu"), lambda _: [2e-3])
    counts = Counter(layer.phase for layer in check.layers)
    assert min(counts.values()) == self_check.LEAST_LAYERS
    assert max(counts.values()) <= LAYERS


def test_a_disturbed_layer_that_ends_the_second_time_keeps_its_first():
    calls = itertools.count()

    def measure(_):
        if next(calls) >= LAYERS * len(PHASES):
            raise CannotRunError("no memory now")
        return [2e-3]

    check = check_layers(lambda *_: 1e-3, drawn_points("float32", "cpu"), measure, lambda: False)
    assert check.bias("train") == pytest.approx(log(2))


def test_a_neighbour_that_slows_runs_changes_intervals_but_no_bias():
    random, speed = Random(1), [1.0]

    def measure(_):
        seconds = [2e-3 * speed[0]] * 8
        speed[0] = random.choice((1.0, 1.6))  # the next reading of the reference tells
        return seconds

    points = drawn_points("float32", "cpu")
    check = check_layers(lambda *_: 1e-3, points, measure, lambda: speed[0] == 1.0)
    quiet = check_layers(lambda *_: 1e-3, points, lambda _: [2e-3] * 8)
    assert [check.bias(phase) for phase in PHASES] == pytest.approx([log(2)] * len(PHASES))
    assert quiet.reach == pytest.approx(0.0)
    assert check.reach == pytest.approx(log(1.6))  # as a user's run may be slowed down


@pytest.mark.parametrize(("is_undisturbed", "seconds"), [(True, 5e-3), (False, 2e-3)])
def test_an_undisturbed_run_tells_its_median_a_disturbed_one_its_fast_calls(
    is_undisturbed, seconds
):  # fmt: skip
    calls = [5e-3, 2e-3, 5e-3, 2e-3, 5e-3, 2e-3, 5e-3, 5e-3]
    points = drawn_points("float32", "cpu")
    check = check_layers(lambda *_: 1e-3, points, lambda _: calls, lambda: is_undisturbed)
    assert check.bias("train") == pytest.approx(log(seconds / 1e-3))


def test_layers_are_timed_in_a_process_of_their_own():
    request = PointRequest("linear", 32, 1, 8, budget=self_check.BUDGET)
    assert min(self_check.measure_in_new_process(request, 1)) > 0
    with pytest.raises(CannotRunError):
        self_check.measure_in_new_process(replace(request, seq_len=2**36), 1)


def test_where_layers_take_too_long_nothing_is_checked():
    points = itertools.islice(drawn_points("float32", "cpu"), 30)
    assert check_layers(lambda *_: 10.0, points, lambda _: [2e-3]) is None


@pytest.mark.parametrize(("reference_s", "share", "slower", "change"), [
    (1e-6, 0.9, 1, ""), (3e-6, 0.9, 3, "3.0 times slower"), (1e-6, 0.45, 2, "2.0 times slower"),
    (0.5e-6, 0.9, 0.5, "2.0 times faster"), (0.5e-6, 0.45, 2, "2.0 times slower"),
])  # fmt: skip
def test_a_machine_of_another_speed_than_when_it_was_calibrated_is_noticed(
    monkeypatch, reference_s, share, slower, change
):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (reference_s, 1.0, share))
    known = Calibration(SOME, "cpu", 1, reference_s=1e-6, cpu_share=0.9)
    reading = read_machine(known, {})
    assert reading.slowdown == pytest.approx(slower)
    assert change in reading.remarks
    assert bool(reading.remarks) == bool(change)


def test_a_busy_host_widens_the_intervals_of_a_gpu_and_leaves_its_times(monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (1e-6, 1.0, 0.45))
    reading = read_machine(Calibration(SOME, "cuda", 1, cpu_share=0.9), {})
    assert (reading.slowdown, reading.swing, reading.factor) == pytest.approx((1, 2, 1))
    assert "2.0 times slower" in reading.remarks


@pytest.mark.parametrize(
    ("unsteadiness", "slower"), [(0.0, 1.8), (log(1.5) / 2, 1), (log(1.8) / 2, 1)]
)
def test_a_speed_that_changes_from_moment_to_moment_is_told_and_widens_what_did_not_have_it(
    monkeypatch, unsteadiness, slower
):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (1e-6, 1.8, 0.9))
    known = Calibration(SOME, "cpu", 1, reference_s=1e-6, cpu_share=0.9, unsteadiness=unsteadiness)
    reading = read_machine(known, {})
    assert (reading.slowdown, reading.swing) == pytest.approx((1, slower))
    assert "changes by a factor of 1.8 from moment to moment" in reading.remarks
    swing = f"speed varied by a factor of about {exp(2 * unsteadiness):.1f}"
    said = swing in Predictor(known).made_of
    assert said is (unsteadiness > 0)


def test_a_reading_of_the_machine_lasts_longer_than_one_state_of_a_shared_processor(monkeypatch):
    now = [0.0]

    def spend(seconds):
        """Let time pass; each processor speed lasts a tenth of a second."""
        now[0] += seconds * (1.8 if int(now[0] * 10) % 2 else 1.0)

    monkeypatch.setattr(calibration_run, "_share_of", lambda _, seconds: spend(seconds) or 0.9)
    monkeypatch.setattr(calibration_run, "_clock", lambda *_: Clock(lambda: round(now[0] * 1e9)))
    monkeypatch.setattr(calibration_run, "reference_operation", lambda _: lambda: spend(2e-6))
    for start in (0.0, 0.05, 0.1, 0.17):
        now[0] = start
        reference_s, swing, share = calibration_run.machine_speed(READING_S, BUNDLES)
        assert (reference_s, swing) == pytest.approx((2e-6, 1.8), rel=0.05)
        assert share == pytest.approx(0.9)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_machine_is_read_on_the_threads_that_it_was_calibrated_with(monkeypatch, threads):
    usual = torch.get_num_threads()
    seconds = {1: 1e-6, 2: 3e-6}
    monkeypatch.setattr(
        calibration_run, "machine_speed", lambda *_: (seconds[torch.get_num_threads()], 1.0, 0.9)
    )
    known = Calibration(SOME, "cpu", threads, reference_s=seconds[threads], cpu_share=0.9)
    assert read_machine(known, {}) == MachineReading()
    assert torch.get_num_threads() == usual


def test_times_follow_the_machine_in_part_and_intervals_reach_over_both_speeds():
    known = Calibration(SOME, "cpu", 1, {"float32": made_up()})
    request = PointRequest("standard", 96, 2, 8)
    readings = [MachineReading(slowdown=by) for by in (1.0, 2.0, 0.5)] + [MachineReading(swing=2.0)]
    usual, slower, faster, swinging = (Predictor(known, False, r).point(request) for r in readings)
    assert slower.time_s == pytest.approx(usual.time_s * 2**0.5)
    assert faster.time_s == pytest.approx(usual.time_s / 2**0.5)
    assert swinging.time_s == usual.time_s
    listed = [sum(row["time_s"] for row in one.operations) for one in (usual, slower)]
    assert listed[1] == pytest.approx(listed[0] * 2**0.5)
    for wide in (slower, swinging):
        assert wide.ci_high_s == pytest.approx(2 * usual.ci_high_s)
        assert wide.ci_low_s == usual.ci_low_s
    assert faster.ci_low_s == pytest.approx(usual.ci_low_s / 2)
    assert faster.ci_high_s == usual.ci_high_s


def test_what_is_not_as_it_was_calibrated_is_told(monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (1e-6, 1.0, 0.9))
    there = {"cores": "4", "allocator": "glibc"}
    known = Calibration(SOME, "cpu", 1, reference_s=1e-6, cpu_share=0.9, conditions=there)
    remark = read_machine(known, {"cores": "2", "allocator": "glibc"}).remarks
    assert remark == "calibrated with cores 4, here 2: type attnprof calibrate"
    assert read_machine(known, there) == MachineReading()
