"""The median's interval against a simulation and against the binomial distribution."""

import math
import random

import pytest

from attnprof.measure.statistics import (
    estimate_median,
    estimate_over_processes,
    quantiles_of,
)


def test_few_samples_promise_nothing_and_none_are_refused():
    assert estimate_median([4.0, 1.0, 3.0, 2.0]).median_s == 2.5
    found = estimate_median([3.0])
    assert (found.low_s, found.high_s, found.coverage) == (3.0, 3.0, 0.0)
    assert "only 1 sample:" in found.noisy
    with pytest.raises(ValueError, match="no times"):
        estimate_median([])


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (9, 2), (20, 6), (50, 18), (100, 40)])
def test_the_order_statistics_are_those_of_the_sign_test_tables(count, rank):
    found = estimate_median([float(i) for i in range(1, count + 1)])
    assert (found.low_s, found.high_s) == (rank, count + 1 - rank)
    assert found.coverage >= 0.95


@pytest.mark.parametrize("draw", ["expovariate", "gauss"])
def test_the_interval_holds_the_true_median_as_often_as_it_says(draw):
    generator = random.Random(7)
    true = 0.6931471805599453 if draw == "expovariate" else 10.0
    parameters = (1.0,) if draw == "expovariate" else (10.0, 3.0)
    held = 0
    for _ in range(2000):
        times = [getattr(generator, draw)(*parameters) for _ in range(25)]
        found = estimate_median(times)
        held += found.low_s <= true <= found.high_s
    assert 0.94 <= held / 2000 <= 0.98  # 25 samples: 95.7 %


def test_a_wide_interval_is_called_noisy_and_a_narrow_one_is_not():
    assert "noisy" in estimate_median([1.0, 2.0] * 10).noisy
    assert estimate_median([1.0, 1.01] * 10).noisy is None
    assert "confidence" in estimate_median([1.0, 1.0, 1.0]).noisy


def test_quantiles_lie_between_samples():
    assert quantiles_of([3.0, 1.0, 2.0, 5.0, 4.0]) == pytest.approx(
        {"p05": 1.2, "p25": 2.0, "p75": 4.0, "p95": 4.8}
    )
    assert set(quantiles_of([7.0]).values()) == {7.0}


def test_the_interval_over_processes_grows_with_their_difference():
    same = estimate_over_processes([[1.0, 1.1, 0.9]] * 5)
    apart = estimate_over_processes([[1.0], [1.2], [0.9], [1.1], [1.0]])
    assert same.high_s - same.low_s == pytest.approx(0, abs=1e-12)
    assert same.noisy is None
    assert apart.low_s < 1.03 < apart.high_s
    assert "processes" in apart.noisy


def test_one_process_has_the_interval_of_its_samples():
    times = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    one, plain = estimate_over_processes([times]), estimate_median(times)
    assert (one.median_s, one.low_s, one.high_s) == (plain.median_s, plain.low_s, plain.high_s)


def test_intervals_over_processes_hold_the_truth_as_often_as_they_say():
    chance = random.Random(5)
    held = 0
    for _ in range(600):
        draws = [[math.exp(chance.gauss(0, 0.1))] for _ in range(5)]
        found = estimate_over_processes(draws)
        held += found.low_s <= 1 <= found.high_s
    assert 0.92 < held / 600 < 0.98
