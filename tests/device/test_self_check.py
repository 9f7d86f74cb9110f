"""Layers that nothing was fitted to tell how far predictions are off on a device."""

import itertools
from dataclasses import replace
from math import exp, log
from random import Random

import pytest

from attnprof.device import calibration_run, self_check
from attnprof.device.calibration import Calibration, CheckedLayer, SelfCheck
from attnprof.device.ceilings import Ceilings
from attnprof.device.prediction import Predictor, read_machine
from attnprof.device.self_check import LAYERS, checked, drawn_points
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest
from tests.device.test_prediction import made_up

SOME = Ceilings("some device", {"float32": 1e11}, 1e10, "a test")


def of_residuals(residuals):
    return SelfCheck(
        tuple(CheckedLayer("linear", "train", 64, 2, 8, 1.0, exp(r)) for r in residuals)
    )


def test_the_bias_is_the_middle_and_the_reach_the_farthest_from_the_others():
    check = of_residuals([0.1, 0.2, 0.3, 0.2, 1.2])
    assert check.bias == pytest.approx(0.2)
    assert check.reach == pytest.approx(1.0)
    assert check.median_error == pytest.approx(exp(0.1) - 1, rel=0.01)


@pytest.mark.parametrize("draw", ["normalvariate", "expovariate"])
def test_intervals_have_the_next_layer_in_about_95_percent_whatever_residuals_are_like(draw):
    random, inside, trials = Random(3), 0, 2000
    arguments = (0.3, 0.2) if draw == "normalvariate" else (3.0,)
    for _ in range(trials):
        check = of_residuals([getattr(random, draw)(*arguments) for _ in range(LAYERS)])
        inside += abs(getattr(random, draw)(*arguments) - check.bias) <= check.reach
    assert 0.93 <= inside / trials <= 0.98


def test_predictions_are_corrected_by_the_bias_and_reach_as_far_as_the_check():
    plain = Calibration(SOME, "cpu", 1, {"float32": made_up()})
    check = of_residuals([0.5] * (LAYERS - 1) + [0.9])
    held = Calibration(SOME, "cpu", 1, {"float32": made_up()}, checks={"float32": check})
    request = PointRequest("standard", 96, 2, 8)
    before, after = (Predictor(one).point(request) for one in (plain, held))
    assert after.time_s == pytest.approx(before.time_s * exp(0.5))
    assert log(after.ci_high_s / after.time_s) == pytest.approx(0.4)
    assert log(after.time_s / after.ci_low_s) == pytest.approx(0.4)
    assert "median error 0%, at most 49% in 19 layers" in Predictor(held).made_of


def test_layers_are_predicted_and_timed_until_there_are_enough():
    found = checked(lambda *_: 1e-3, drawn_points("float32", "cpu"), lambda _: 2e-3)
    assert len(found.layers) == LAYERS
    assert found.bias == pytest.approx(log(2))
    assert len({layer.mechanism for layer in found.layers}) > 5
    assert {layer.phase for layer in found.layers} == {"forward", "train", "decode"}


def test_a_layer_that_ends_the_second_time_keeps_its_first():
    calls = itertools.count()

    def measure(_):
        if next(calls) >= LAYERS:
            raise CannotRunError("no memory now")
        return 2e-3

    found = checked(lambda *_: 1e-3, drawn_points("float32", "cpu"), measure)
    assert found.bias == pytest.approx(log(2))


def test_layers_are_timed_in_a_process_of_their_own():
    request = PointRequest("linear", 32, 1, 8, budget=self_check.BUDGET)
    assert self_check.measure_in_new_process(request, 1) > 0
    with pytest.raises(CannotRunError):
        self_check.measure_in_new_process(replace(request, seq_len=2**28), 1)


def test_where_layers_take_too_long_nothing_is_checked():
    points = itertools.islice(drawn_points("float32", "cpu"), 30)
    assert checked(lambda *_: 10.0, points, lambda _: 2e-3) is None


@pytest.mark.parametrize(
    ("reference_s", "share", "slower"), [(1e-6, 0.9, 1), (3e-6, 0.9, 3), (1e-6, 0.45, 2)]
)
def test_a_machine_that_is_slower_than_when_it_was_calibrated_is_noticed(
    monkeypatch, reference_s, share, slower
):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (reference_s, share))
    known = Calibration(SOME, "cpu", 1, reference_s=1e-6, cpu_share=0.9)
    slowdown, remark = read_machine(known, {})
    assert slowdown == pytest.approx(slower)
    assert ("times slower now" in remark) == (slower > 1)


def test_what_is_not_as_it_was_calibrated_is_told(monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (1e-6, 0.9))
    there = {"cores": "4", "allocator": "glibc"}
    known = Calibration(SOME, "cpu", 1, reference_s=1e-6, cpu_share=0.9, conditions=there)
    _, remark = read_machine(known, {"cores": "2", "allocator": "glibc"})
    assert remark == "calibrated with cores 4, here 2: type attnprof calibrate"
    assert read_machine(known, there) == (1.0, "")


def test_upper_ends_are_higher_on_a_machine_that_is_slower_now():
    known = Calibration(SOME, "cpu", 1, {"float32": made_up()})
    request = PointRequest("standard", 96, 2, 8)
    usual, slow = (Predictor(known, slowdown=factor).point(request) for factor in (1.0, 2.0))
    assert slow.ci_high_s == pytest.approx(2 * usual.ci_high_s)
    assert slow.ci_low_s == usual.ci_low_s
