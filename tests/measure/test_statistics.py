"""What measured points say: medians and their intervals, and who is faster in a sentence."""

import math
import random

import pytest

from attnprof.measure.batch import answer
from attnprof.measure.statistics import (
    estimate_median,
    estimate_over_processes,
    independent_count,
    quantiles_of,
)
from attnprof.record import ProfileRecord, Report
from attnprof.record.measured import names_of, varying
from attnprof.render.formats import notes, render


def test_few_samples_promise_nothing_and_none_are_refused():
    assert estimate_median([4.0, 1.0, 3.0, 2.0]).median_s == 2.5
    estimate = estimate_median([3.0])
    assert (estimate.low_s, estimate.high_s, estimate.coverage) == (3.0, 3.0, 0.0)
    assert "only 1 sample:" in estimate.noisy
    with pytest.raises(ValueError, match="no times"):
        estimate_median([])


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (9, 2), (20, 6), (50, 18), (100, 40)])
def test_the_order_statistics_are_those_of_the_sign_test_tables(count, rank):
    times = random.Random(2).sample([float(i) for i in range(1, count + 1)], count)
    estimate = estimate_median(times)
    assert (estimate.low_s, estimate.high_s) == (rank, count + 1 - rank)
    assert estimate.coverage >= 0.95


@pytest.mark.parametrize("draw", ["expovariate", "gauss"])
def test_the_interval_holds_the_true_median_as_often_as_it_says(draw):
    generator = random.Random(7)
    true = 0.6931471805599453 if draw == "expovariate" else 10.0
    parameters = (1.0,) if draw == "expovariate" else (10.0, 3.0)
    held = 0
    for _ in range(2000):
        times = [getattr(generator, draw)(*parameters) for _ in range(25)]
        estimate = estimate_median(times)
        held += estimate.low_s <= true <= estimate.high_s
    assert 0.94 <= held / 2000 <= 0.98  # 25 samples: 95.7 %


def flickering(chance, count, *, state_s=0.2, slow=1.8, call_s=5e-3):
    """Times of calls by a processor that has one of two speeds for a while."""
    now, until, speed, times = 0.0, 0.0, 1.0, []
    for _ in range(count):
        while now >= until:
            speed, until = chance.choice((1.0, slow)), until + chance.expovariate(1 / state_s)
        times.append(call_s * speed * math.exp(abs(chance.gauss(0, 0.03))))
        now += times[-1]
    return times


def test_times_of_a_processor_that_changes_its_speed_count_as_the_few_that_they_are():
    slow_then_fast = [1.8] * 20 + [1.0] * 20
    assert independent_count(slow_then_fast) == 6
    estimate = estimate_median(slow_then_fast)
    assert (estimate.low_s, estimate.high_s, estimate.independent) == (1.0, 1.8, 6)
    assert "which count as 6 since the machine changes its speed in between" in estimate.noisy
    shuffled = random.Random(1).sample(slow_then_fast, 40)
    assert independent_count(shuffled) == 40
    assert independent_count([1.0] * 40) == 40


@pytest.mark.parametrize(("state_s", "most"), [(0.2, 0.2), (0.05, 0.05)])
def test_two_runs_of_the_same_on_a_changing_processor_rarely_look_different(state_s, most):
    chance, apart = random.Random(4), 0
    for _ in range(200):
        times = flickering(chance, 400, state_s=state_s)
        one, other = estimate_median(times[:200]), estimate_median(times[200:])
        apart += one.high_s < other.low_s or other.high_s < one.low_s
    assert apart <= most * 200


def test_a_wide_interval_is_called_noisy_and_a_narrow_one_is_not():
    assert "noisy" in estimate_median([1.0, 2.0] * 10).noisy
    assert estimate_median([1.0, 1.01] * 10).noisy is None
    assert "confidence" in estimate_median([1.0, 1.0, 1.0]).noisy


def test_quantiles_lie_between_samples():
    expected = {"p05": 1.2, "p25": 2.0, "p75": 4.0, "p95": 4.8}
    assert quantiles_of([3.0, 1.0, 2.0, 5.0, 4.0]) == pytest.approx(expected)
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
        estimate = estimate_over_processes(draws)
        held += estimate.low_s <= 1 <= estimate.high_s
    assert 0.92 < held / 600 < 0.98


ENDS = "by the ends of both intervals"


def point(mechanism, median, *, n=2048, peak=1000, half=0.02, **more):
    """A measured point; its interval is the median ± a share."""
    fields = {"batch_size": 1, "d_model": 64, "num_heads": 2, "head_dim": 32, "dtype": "float32",
             "device": "cpu", "phase": "forward", "causal": False}  # fmt: skip
    times = {"median_s": median, "ci_low_s": median * (1 - half), "ci_high_s": median * (1 + half)}
    if more.get("skipped"):
        times = {}
    return ProfileRecord(
        mechanism=mechanism, seq_len=n, peak_bytes_measured=peak, **{**fields, **times, **more}
    )


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([point("sdpa", 2e-3, peak=2048)],
         "sdpa takes 2.00 ms (1.96 ms to 2.04 ms) and 2.00 KiB of memory at its peak"),
        ([point("standard", 1.0), point("sdpa", 0.41, peak=100)],
         (f"sdpa takes 0.41× the time of standard (0.39× to 0.43× {ENDS}) "
          "and 0.10× its peak memory")),
        ([point("standard", 1.0), point("sdpa", 0.004, peak=13_000)],
         (f"sdpa takes 0.0040× the time of standard (0.0038× to 0.0042× {ENDS}) "
          "and 13× its peak memory")),
        ([point("standard", 1.0, peak=None), point("sdpa", 0.99)],
         f"sdpa takes as long as standard within the noise (0.95× to 1.03× {ENDS})"),
        ([point("a", 1.0), point("b", 1.0)],
         (f"b takes as long as a within the noise (0.96× to 1.04× {ENDS}) "
          "and needs the same peak memory")),
        ([point("a", 1.0, peak=None), point("b", 2.0), point("c", 3.0)],
         f"b takes 2.00× the time of a (1.92× to 2.08× {ENDS}); fastest of 3: a"),
        ([point("a", 3.0, peak=None), point("b", 2.0), point("c", 2.01)],
         f"b takes 0.67× the time of a (0.64× to 0.69× {ENDS}); fastest of 3: b or c"),
        ([point("a", 1.0), point("b", 1.0, skipped="out of memory")],
         "a takes 1.00 s (980 ms to 1.02 s) and 1000 B of memory at its peak"),
    ],
)  # fmt: skip
def test_the_fastest_is_held_against_the_first(records, said):
    assert answer(records) == f"At 2,048 tokens {said}."
    assert answer([point("a", 1.0, skipped="out of memory")]) == ""


def test_points_are_named_by_what_is_not_the_same_in_all():
    records = [
        point("longformer", 1.0, params={"window": w, "bias": False}, d_model=width, n=n)
        for w, width, n in ((4, 64, 128), (8, 64, 128), (8, 128, 256))
    ]
    assert varying(records) == ["d_model"]
    assert names_of(records) == [f"longformer window={w}" for w in (4, 8, 8)]
    assert answer(records).startswith(
        "At 128 tokens and d_model 64, longformer window=8 takes as long"
    )


def test_reasons_and_notes_are_told_once_for_all_they_are_of():
    skipped = "cannot be causal: it mixes all tokens"
    records = [
        point(name, 1.0, n=n, **more)
        for n in (64, 128)
        for name, more in (
            ("standard", {"noisy": "noisy: x", "checked": "float64; sdpa"}),
            ("neural", {"skipped": f"neural {skipped}"}), ("we", {"skipped": f"we {skipped}"}),
        )
    ]  # fmt: skip
    report = Report("profile", records, {"answer": "At last."}, {})
    text = render(report, "table")
    assert text.startswith("At last.\n")
    assert text.count(skipped) == 1
    assert f"not measured: neural, we at 64 and 128 tokens: {skipped}" in text
    assert "No row has a value for FLOPs (formula), " in text  # instead of an empty column
    assert "\nFLOPs (formula)" not in text
    assert notes(report) == [
        "standard at 64 and 128 tokens: the output agrees with a run in float64 and sdpa",
        "standard at 64 and 128 tokens: noisy: x",
    ]
