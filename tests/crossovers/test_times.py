"""Where times cross: found by few lengths, with an interval that keeps its promise; the rows."""

import random
from math import exp, log

import pytest

from attnprof import registry
from attnprof.cli.app import main
from attnprof.crossovers.axis import SEQ, CrossoverAxis
from attnprof.crossovers.predicted_search import PredictedSearch
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting, TimeTerms
from attnprof.crossovers.time_search import BUILD_S, TimeSearch, root_of_line
from attnprof.crossovers.timed import TimedPair
from attnprof.device import calibration, calibration_run
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.checked_layers import CheckedLayer, SelfCheck
from attnprof.device.prediction import predict_points
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.environment import device_name
from attnprof.measure.request import PointRequest
from attnprof.processes.progress import Progress, Step, waiting
from attnprof.workload import Workload
from tests.device.test_prediction import made_up


def clock(a, b, *, noise=0.03, seed=0, refused=lambda _: False):
    """Calls of two made-up sides whose times scatter, more often upwards."""
    chance = random.Random(seed)

    def compare(length, budget):
        if refused(length):
            raise CannotRunError(f"no {length}")
        return tuple(
            [cost(length) * exp(abs(chance.gauss(0, noise))) for _ in range(budget.samples)]
            for cost in (a, b)
        )

    return compare


def quadratic(crossing):
    return lambda n: 1e-9 * n**2 + 1e-4, lambda n: 1e-9 * n * crossing + 1e-4


def searched(compare, *, step=1, **how):
    search = TimeSearch(compare, lambda n: -(-n // step) * step, **how)
    search.run()
    return search


@pytest.mark.parametrize("crossing", [150, 1100, 9000])
@pytest.mark.parametrize("guessed", [0.5, 1.0, 1.7, None])
def test_the_crossing_is_found_with_few_lengths(crossing, guessed):
    guesses = [crossing * guessed] if guessed else []
    search = searched(clock(*quadratic(crossing), noise=0.01), guesses=guesses)
    (root,) = search.crossings
    assert root.at == pytest.approx(crossing, rel=0.05)
    assert len(search.times) <= 17


def test_the_interval_has_the_crossing_as_often_as_it_says():
    inside = 0
    for seed in range(200):
        (root,) = searched(clock(*quadratic(700), seed=seed), guesses=[800]).crossings
        inside += root.low is not None and root.low <= 700 <= root.high
    assert inside >= 0.92 * 200


@pytest.mark.parametrize(("faster", "sign"), [(2.0, 1), (0.5, -1)])
def test_one_that_is_faster_at_every_length_never_crosses(faster, sign):
    search = searched(clock(lambda n: faster * 1e-6 * n, lambda n: 1e-6 * n))
    assert search.crossings == []
    assert {search.times[n].sign for n in search.times} == {sign}


def test_times_that_cannot_be_told_apart_do_not_cross():
    search = searched(clock(lambda n: 1e-6 * n, lambda n: 1e-6 * n, noise=0.2))
    assert len(search.crossings) <= 1
    assert all(one.low is None or one.low < one.at < one.high for one in search.crossings)


def with_a_jump(n):
    """A time that crosses 1,000 n at 1,000, and again at 4,000 as it jumps back at 1,300."""
    return n**2 if n < 1300 else n**2 / 4


@pytest.mark.parametrize(
    ("a", "guesses", "count", "last"),
    [(lambda n: 1000 * n * exp(0.5 if 100 < n < 4000 else -0.5), [], 2, 4000),
     (with_a_jump, [4000], None, 4000), (with_a_jump, [1000, 1300, 4000], None, 4000),
     (lambda n: n**2 / (1 if n < 1300 else 1.9), [1000, 1300, 1900], 3, 1900)],
    ids=["there and back", "a jump", "a jump that is guessed", "between two of the grid"],
)  # fmt: skip
def test_several_crossings_are_told_and_none_hides_the_last_one(a, guesses, count, last):
    sides = clock(lambda n: 1e-9 * a(n), lambda n: 1e-6 * n, noise=0.01)
    crossings = searched(sides, guesses=guesses).crossings
    assert count in (None, len(crossings))
    assert crossings[-1].at == pytest.approx(last, rel=0.3 if not guesses else 0.03)


def disturbed(compare, share, *, seed=1):
    """The same calls on a machine where other programs hold up a share of them."""
    chance = random.Random(seed)

    def compared(length, budget):
        return tuple(
            [time * (chance.uniform(20, 500) if chance.random() < share else 1) for time in times]
            for times in compare(length, budget)
        )

    return compared


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_calls_that_other_programs_hold_up_leave_the_crossing_where_it_is(share):
    for seed in range(5):
        compare = disturbed(clock(*quadratic(1100), noise=0.01), share, seed=seed)
        search = searched(compare, guesses=[800])
        assert [one.at for one in search.crossings] == pytest.approx([1100], rel=0.05)


def test_a_machine_that_is_busy_is_said_and_a_quiet_one_is_not():
    compare = clock(*quadratic(1100))
    assert searched(compare, guesses=[900]).noise is None
    for share in (0.6, 1.0):
        noise = searched(disturbed(compare, share), guesses=[900], longest=4000).noise
        assert "other programs had the processors" in noise
        assert "quiet machine" in noise


def test_no_length_is_timed_that_should_take_longer_than_allowed():
    timed = []

    def cost(n):
        timed.append(n)
        return 1e-7 * n**2

    search = searched(clock(cost, lambda n: 2e-7 * n**2), most_s=1.0)
    assert cost(max(timed)) <= 1.0
    assert "more than 1 s" in search.end


def test_lengths_that_do_not_run_are_passed_over_and_an_end_is_told():
    compare = clock(*quadratic(1000), refused=lambda n: n < 50 or n > 3000)
    search = searched(compare, guesses=[900])
    assert search.crossings[0].at == pytest.approx(1000, rel=0.1)
    assert max(search.times) <= 3000
    assert search.end.startswith("no ")


def test_all_calls_are_counted_also_of_lengths_looked_at_twice():
    calls = []

    def cost(n):
        calls.append(n)
        return 1e-9 * n**2 + 1e-4

    search = searched(clock(cost, lambda n: 1.5e-7 * n + 1e-4, noise=0.1), guesses=[150])
    assert search.timed_calls == 2 * len(calls)
    assert len(calls) > sum(len(one.a_s) for one in search.times.values())


def test_only_lengths_that_both_take_are_timed():
    search = searched(clock(*quadratic(1000)), step=64, guesses=[1000])
    assert all(n % 64 == 0 for n in search.times)
    assert search.crossings[0].at == pytest.approx(1000, rel=0.1)


def test_where_nothing_runs_the_first_refusal_is_raised():
    def refuse(length, _):
        raise RequestError(f"not {length}")

    with pytest.raises(RequestError, match="not 16"):
        searched(refuse)


def test_few_lengths_on_a_line_by_chance_do_not_make_a_certain_answer():
    x = [log(n) for n in (100, 200, 400)]
    root = root_of_line(x, [a - log(300) for a in x])
    assert root.at == pytest.approx(300)
    assert root.low < 0.95 * 300
    assert root.high > 1.05 * 300


FLAT = [0.5, 0.5, 0.5 - 1e-6], [0.5, 0.5, 0.5 + 1e-6]


@pytest.mark.parametrize("heights", [*FLAT, [0.1, -0.2, 0.2, -0.1]])
def test_a_line_that_is_as_good_as_flat_or_scatters_has_no_ends_and_no_zero_far_away(heights):
    root = root_of_line([1.0, 2.0, 3.0, 4.0][: len(heights)], heights)
    assert (root.low, root.high) == (None, None)
    assert heights not in FLAT or root.at == pytest.approx(exp(2))


def test_a_time_that_jumps_and_is_flat_on_either_side_crosses_at_the_jumps():
    compare = clock(lambda n: 1e-4 * exp(0.5 if 300 < n < 4000 else -0.5), lambda _: 1e-4, noise=0)
    crossings = searched(compare).crossings
    assert [one.at for one in crossings] == pytest.approx([300, 4000], rel=0.3)


@pytest.mark.parametrize("seed", range(20))
def test_a_crossing_lies_between_lengths_that_differ_however_flat_the_curves(seed):
    def slower(n):
        return 1e-4 * (1.02 if n < 300 else 0.98) * (n / 300) ** 0.001

    search = searched(clock(slower, lambda _: 1e-4, noise=0.02, seed=seed))
    for one in search.crossings:
        before = {search.times[n].sign for n in search.times if n <= one.at}
        after = {search.times[n].sign for n in search.times if n >= one.at}
        assert {1, -1} <= before | after
        assert before - {0}
        assert after - {0}


@pytest.mark.parametrize("seed", range(20))
def test_a_crossing_of_flat_curves_has_an_interval_of_lengths_whose_order_was_seen(seed):
    def flat(n):
        return 1e-4 * (n / 300) ** 0.04

    search = searched(clock(flat, lambda _: 1e-4, noise=0.05, seed=seed), guesses=[300])
    for one in search.crossings:
        assert None not in (one.low, one.high)
        assert one.low <= one.at <= one.high
    if len(search.crossings) == 1:
        assert 50 < search.crossings[0].at < 1800


@pytest.mark.parametrize(("crossing", "scale"), [(700, 1.0), (9000, 1.0), (700, 30.0)])
def test_a_search_says_about_how_long_it_takes_and_where_the_crossing_lies(crossing, scale):
    spent, lines = [0.0], []
    a, b = quadratic(crossing)

    def compare(length, budget):
        times = scale * a(length), scale * b(length)
        pairs = min(budget.samples, max(budget.least, int(budget.max_time_s / sum(times))))
        spent[0] += BUILD_S + (pairs + 1) * sum(times)
        return clock(lambda _: times[0], lambda _: times[1], noise=0.01)(length, budget)

    class Listener(Progress):
        def tell(self, text, done=None, total=None, left_s=None, **_how):
            lines.append((text, left_s, spent[0]))

    with waiting(Listener(Step("searching"))):
        searched(compare, guesses=[0.8 * crossing], title="one and other")
    assert lines[0][1] is None  # nothing was timed yet
    _, forecast, before = next(one for one in lines if one[1] is not None)
    assert 1 / 4 < forecast / (spent[0] - before) < 4
    assert before < spent[0] / 3
    text, left_s, _ = lines[-1]
    assert "they cross between" in text
    assert 0 < left_s < forecast


def predicted(a, b, *, most=2**20):
    def both(length):
        if length > most:
            raise CannotRunError("too long")
        return 1e-6 * a(length), 1e-6 * b(length)

    search = PredictedSearch(both, runnable=lambda n: n, spread=0.1)
    search.run()
    return search


def test_a_predicted_crossing_is_where_both_take_as_long():
    search = predicted(lambda n: n**2, lambda n: 1000 * n, most=4096)
    (root,) = search.time_crossings
    assert root.at == pytest.approx(1000, rel=0.01)
    assert root.low < 1000 < root.high
    assert log(root.high / 1000) == pytest.approx(0.196, rel=0.1)
    assert search.end == "too long"


def test_predicted_crossings_that_a_jump_undoes_are_listed():
    search = predicted(with_a_jump, lambda n: 1000 * n, most=8192)
    assert [one.at for one in search.time_crossings] == pytest.approx([1000, 1300, 4000], rel=0.02)


def test_an_end_of_the_interval_that_is_never_reached_is_not_told():
    (root,) = predicted(lambda n: n**0.01, lambda _: 500**0.01).time_crossings
    assert (root.low, root.high) == (None, None)


def test_a_tie_at_the_shortest_lengths_is_no_crossing_of_its_own():
    search = predicted(lambda n: n**2 + 16_000 * (n < 17), lambda n: 1000 * n, most=4096)
    assert search.signs[16] != search.signs[32]
    (root,) = search.time_crossings
    assert root.at == pytest.approx(1000, rel=0.01)
    assert search.outer[0] == -1
    flat = predicted(lambda n: 1.02 if n > 500 else 1.0, lambda _: 1.01)  # ties are all there is
    assert len(flat.time_crossings) == 1


def timed(*kinds, names=("standard", "taylor-direct"), given=16, axis=SEQ, curves=False, **how):
    """The report of two mechanisms' times at a head width, or at a length."""
    meeting = Meeting(*registry.configured([*names], {}), Workload(1, 1, 16), axis=axis)
    terms = TimeTerms("cpu", 1, **how)
    return crossover_report(
        meeting, [given], kinds, ["time"], terms=terms, with_curves=curves, environment={}
    )


def test_a_measured_row_tells_its_lengths_calls_and_end(tmp_path):
    how = {"journal": tmp_path / "times.jsonl", "most_s": 2e-3}
    (row,) = timed("measured", **how).records
    assert (row.metric, row.unit, row.kind) == ("time", "s", "measured")
    assert row.searched == [[row.lengths[0], row.lengths[-1]]]
    assert row.timed_calls >= 2 * 5 * len(row.lengths)
    assert row.verdict in ("crosses", "never", "always", "several")
    assert "more than" in row.bound
    before = how["journal"].read_bytes()
    assert timed("measured", **how).records == [row]
    assert how["journal"].read_bytes() == before


def test_a_measured_row_of_a_busy_machine_says_so_and_its_journal_replays_it(tmp_path, monkeypatch):
    compare = disturbed(clock(*quadratic(300)), 0.6)
    monkeypatch.setattr(TimedPair, "_compare", lambda _, *asked: tuple(map(list, compare(*asked))))
    how = {"journal": tmp_path / "times.jsonl", "most_s": 2e-3}
    report = timed("measured", **how)
    assert "other programs had the processors" in report.records[0].noisy
    assert report.summary["answer"].endswith(f"This is not certain: {report.records[0].noisy}.")
    monkeypatch.delattr(TimedPair, "_compare")
    assert timed("measured", **how).records == report.records


def test_without_a_calibration_a_predicted_row_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CannotRunError, match="attnprof calibrate"):
        timed("predicted")
    with pytest.raises(RequestError, match="--kind predicted,measured"):
        timed("formula")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--journal", "x.jsonl"], "--journal is for times: add --metric time"),
        (["--metric", "time", "--longest-call", "0"], "longest-call"),
        (["--metric", "time", "--model", "x.json"], "flops and memory"),
    ],
)
def test_flags_of_times_are_refused_where_they_say_nothing(typed, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["crossover", "standard", "linear", *typed])
    assert message in capsys.readouterr().err


def test_predicted_crossings_say_what_is_not_as_it_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (3e-6, 1.0, 0.9))
    rates = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "a test")
    known = Calibration(
        rates, "cpu", 1, {"float32": made_up()}, reference_s=1e-6, conditions={"cores": "none"}
    )
    calibration.save(known, tmp_path / "cpu.json")
    report = timed("predicted", names=("standard", "linear"), calibration=tmp_path / "cpu.json")
    assert "3.0 times slower now" in report.summary["made_of"]
    assert "calibrated with cores none" in report.summary["made_of"]


# -- over other sizes than the length --------------------------------------------------------
def raced(monkeypatch, names, axis, seconds, noise=0.02, given=256, **how):
    """The report of a pair whose calls take ``seconds(side, value)``, with some noise."""
    drawn = random.Random(0)

    def compare(_, value, budget):
        factors = [[drawn.gauss(1, noise) for _ in range(budget.samples)] for _ in range(2)]
        return tuple([seconds(side, value) * x for x in factors[side]] for side in (0, 1))

    monkeypatch.setattr(TimedPair, "_compare", compare)
    return timed("measured", names=names, given=given, axis=axis, **how)


@pytest.mark.parametrize("over", ["d", "batch", "window", "heads"])
@pytest.mark.parametrize("crossing", [24, 100, 700])
def test_the_crossing_is_that_of_the_clock(monkeypatch, over, crossing):
    report = raced(
        monkeypatch, ["standard", "longformer"], CrossoverAxis(over),
        lambda side, value: 1e-4 if side else 1e-4 * value / crossing,
    )  # fmt: skip
    (row,) = report.records
    assert row.crossover_value == pytest.approx(crossing, rel=0.05)
    assert row.ci_low < crossing * 1.03
    assert row.ci_high > crossing * 0.97
    assert (row.verdict, row.cheaper_above) == ("crosses", "longformer")
    assert (row.over, row.seq_len, row.crossover_seq_len) == (over, 256, None)
    assert "At 256 tokens" in report.summary["answer"]


def test_only_heads_that_divide_the_width_are_timed(monkeypatch):
    (row,) = raced(
        monkeypatch, ["standard", "linear"], CrossoverAxis("heads", last=96, d_model=96),
        lambda side, value: 1e-4 if side else 1e-5 * value,
    ).records  # fmt: skip
    assert all(96 % heads == 0 for heads in row.lengths)
    assert row.crossover_value == pytest.approx(10, rel=0.35)


def test_a_crossing_beyond_what_can_be_timed_is_said_and_not_told(monkeypatch):
    (row,) = raced(
        monkeypatch, ["standard", "linear"], CrossoverAxis("batch"),
        lambda side, value: (1.0 + 0.02 * side) * 0.01 * value, most_s=0.5,
    ).records  # fmt: skip
    assert (row.verdict, row.crossover_value, row.first_value) == ("never", None, None)
    assert max(row.lengths) <= 64
    assert "batch" in row.bound
    assert "0.5 s" in row.bound


def test_one_journal_keeps_axes_and_conditions_apart(monkeypatch, tmp_path):
    runs = [("batch", False, "ACTIVE", 30), ("d", False, "ACTIVE", 90)]
    runs += [("batch", True, "ACTIVE", 100), ("batch", False, "PASSIVE", 200)]
    for over, kept, policy, crossing in [*runs, *runs]:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        (row,) = raced(
            monkeypatch, ["standard", "linear"], CrossoverAxis(over),
            lambda side, value, at=crossing: 1e-4 if side else 1e-4 * value / at,
            journal=tmp_path / "times.jsonl", kept=kept,
        ).records  # fmt: skip
        assert row.crossover_value == pytest.approx(crossing, rel=0.05)


@pytest.mark.parametrize(("axis", "size", "said"), [
    (SEQ, {"value_head_dim": 32}, "--value-dim 32"), (SEQ, {"width": 64}, "--width 64"),
    (CrossoverAxis("kv_heads"), {}, "kv_heads 1"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["predicted", "measured"])
def test_sizes_that_only_closed_forms_have_are_refused_for_times(axis, size, said, kind):
    names = ["gqa", "standard"] if axis.name == "kv_heads" else ["gated-deltanet", "mamba2"]
    meeting = Meeting(
        *registry.configured(names, {}), Workload(64, 4, 16, **size), "layer", axis=axis
    )
    with pytest.raises(RequestError, match=said):
        crossover_report(meeting, [16], [kind], ["time"], terms=TimeTerms("cpu", 1), environment={})


def test_measured_memory_of_other_key_heads_is_refused():
    pair = registry.configured(["gqa", "gated-deltanet"], {})
    meeting = Meeting(*pair, Workload(64, 4, 16), axis=CrossoverAxis("kv_heads"))
    with pytest.raises(CannotRunError, match="kv_heads 1 is a size of closed forms"):
        crossover_report(meeting, [64], ["measured"], ["memory"], environment={})


def test_predicted_curves_are_the_predictions_of_each_length(tmp_path):
    layer = CheckedLayer("standard", "forward", 64, 1, 16, 1e-3, 2e-3)  # twice as long as predicted
    rates, path = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "a test"), tmp_path / "c"
    check = {"float32": SelfCheck((layer, layer))}
    calibration.save(Calibration(rates, "cpu", 1, {"float32": made_up()}, checks=check), path)
    curves = timed("predicted", calibration=path, curves=True).summary["curves"]
    assert len(curves) == 2
    for curve in curves:
        lengths = curve["seq_len"]
        points = [PointRequest(curve["mechanism"], n, 1, 16, scope="core", threads=1)
                  for n in lengths[:3]]  # fmt: skip
        times = [record.time_s for record in predict_points(points, path=path).records]
        assert curve["value"][:3] == times


def test_curves_are_over_the_values(monkeypatch):
    report = raced(
        monkeypatch, ["standard", "linear"], CrossoverAxis("d"),
        lambda side, value: 1e-4 if side else 1e-5 * value, noise=0, given=64, curves=True,
    )  # fmt: skip
    for curve in report.summary["curves"]:
        assert curve["seq_len"] == 64
        assert len(curve["at"]) == len(curve["value"]) == len(report.records[0].lengths)
    (ratio,) = report.summary["ratios"]
    assert ratio["value"] == pytest.approx([0.1 * d for d in ratio["at"]])
