"""004's figures: what they are measured with, what is said of them, and that they can be drawn."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
import torch

from attnprof.crossovers.peaks import peak_of
from attnprof.crossovers.time_search import CLOSE, LOOK
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median
from attnprof.papers.documents import fresh, measured
from attnprof.papers.taylorshift import checks_sizes, figures, measurements
from attnprof.papers.taylorshift.checks_costs import first_lengths
from attnprof.papers.taylorshift.checks_quoted import delay
from attnprof.papers.taylorshift.checks_sizes import SPHERE
from attnprof.papers.taylorshift.figures import FIGURES
from attnprof.papers.taylorshift.measurements import ALLOCATORS, MEASUREMENTS
from attnprof.registry import get
from attnprof.render.plots.documents import drawings, picture
from attnprof.workload import Workload
from tests.papers.test_taylorshift import sampled

QUICK = Budget(samples=3, min_time_s=0, max_time_s=0.01, warmup_s=0, least=3)


@pytest.fixture
def instead():
    """Another measurement in the place of the shipped one."""
    with fresh("004", str) as made:
        yield made.__setitem__


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_a_crossing_is_where_ratios_fall_below_one_for_good(power):
    law = {n: (700 / n) ** power for n in (512, 600, 1024)}
    assert measurements.crossing(law) == pytest.approx(700)
    ratios = {100: 2.0, 200: 0.5, 400: 2.0, 800: 0.5}
    assert measurements.crossing(ratios) == pytest.approx(566, abs=1)
    assert measurements.crossing({100: 0.5, 200: 2.0}) is None
    assert measurements.crossing({100: 3.0, 200: 2.0}) is None


def test_the_memory_crossover_is_the_first_length_with_no_larger_peak():
    first = measurements.memory_crossing(8)
    direct, efficient = (
        [peak_of(get(form), Workload(n, 1, 8), "core") for n in (first - 1, first)]
        for form in measurements.FORMS
    )
    assert direct[1] >= efficient[1]
    assert direct[0] < efficient[0]


@pytest.fixture
def known_times(monkeypatch):
    """Times that are known: the direct form's N², the efficient one's 150·N, in microseconds."""

    def times(_, n, budget):
        count = budget.samples
        return [[1e-6 * n**2 * (1 + 1e-3 * (i % 5)) for i in range(count)], [1.5e-4 * n] * count]

    monkeypatch.setattr(measurements, "_times", times)


@pytest.mark.usefixtures("known_times")
def test_a_crossing_that_can_be_timed_is_found_with_both_allocators():
    crossovers = measurements.measure_crossovers([8])
    assert [crossovers[name] for name in ("d", "N0", "N1")] == [[8], [73], [47]]
    for name in ("N0hat", "N0hat_default"):
        assert crossovers[name] == [pytest.approx(150, rel=0.01)]
    assert crossovers["N0hat_low"][0] < 150 < crossovers["N0hat_high"][0]
    assert {row["allocator"] for row in crossovers["curves"]} == set(ALLOCATORS)
    assert all(row["coverage"] >= 0.95 for row in crossovers["curves"])
    assert crossovers["where"]["threads"] == 1
    assert crossovers["where"]["device_name"]


@pytest.mark.usefixtures("known_times")
def test_a_crossing_beyond_what_can_be_timed_is_told_and_not_continued_to():
    crossovers = measurements.measure_crossovers([8], most_s=5e-3)
    assert crossovers["N0hat"] == crossovers["N0hat_low"] == crossovers["N0hat_default"] == [None]
    assert max(row["seq_len"] for row in crossovers["curves"]) == crossovers["longest"][0] < 150
    assert "should take more than" in crossovers["end"][0]


def test_every_length_has_samples_for_an_interval_of_95_percent():
    for budget in (LOOK, CLOSE, measurements.ENCODERS_BUDGET):
        least = measurements.enough(budget).least
        assert estimate_median([1.0] * least).coverage >= 0.95


def widths(factor, error, drawn):
    rows = [{"d": d, "N0": first_lengths(d)["N0"]} for d in (8, 12, 16, 24, 32, 48, 64)]
    return [
        {**row, "at": (row["N0"] + factor * row["d"]) * (1 + error * drawn.gauss(0, 1))}
        for row in rows
    ]


def test_the_law_is_found_from_widths_that_obey_it():
    assert delay(widths(18.0, 0.0, random.Random(0))) == pytest.approx(
        {"factor": 18, "low": 18, "high": 18}
    )


def test_one_width_alone_has_no_interval():
    assert delay([{"d": 8, "N0": 73, "at": 153.0}]) == {"factor": 10.0, "low": None, "high": None}


@pytest.mark.parametrize("count", [3, 7])
def test_the_interval_of_the_law_has_its_factor_as_often_as_it_says(count):
    drawn, inside = random.Random(1), 0
    for _ in range(2000):
        law = delay(widths(18.0, 0.02, drawn)[:count])
        inside += law["low"] <= 18 <= law["high"]
    assert 0.93 < inside / 2000 < 0.97


def test_both_forms_are_timed():
    timed = measurements._times(8, 16, QUICK)
    assert [len(times) for times in timed] == [3, 3]
    assert min(min(times) for times in timed) > 0


def test_both_forms_make_the_same_encoder():
    direct, efficient = (measurements.encoder(f, 24).call() for f in measurements.FORMS)
    assert direct.shape == (1, 24, measurements.ENCODER.d_model)
    assert torch.allclose(direct, efficient, atol=1e-4)


def test_a_small_measurement_of_encoders_gives_ratios_by_length(monkeypatch):
    monkeypatch.setattr(measurements, "ENCODER", measurements.ENCODER.with_(num_layers=1))
    encoders = measurements.measure_encoder((256, 1024), QUICK, most_s=1e-4)

    def ratio(n):
        return measurements.peak("taylor-efficient", n) / measurements.peak("standard", n)

    assert encoders["memory_ratio"][1] == ratio(1024) < 1 < encoders["memory_ratio"][0]
    crossover = encoders["memory_crossover"]
    assert ratio(crossover) <= 1 < ratio(crossover - 1)
    assert encoders["time_crossover"] is encoders["time_crossover_default"] is None


def test_encoders_are_as_fast_where_the_clock_says(monkeypatch):
    def times(names, n, budget):
        powers = {"standard": 1e-8 * n**2, "taylor-efficient": 9e-6 * n, "taylor-direct": 1.0}
        return [[powers[name] * (1 + 1e-3 * (i % 3)) for i in range(budget.samples)]
                for name in names]  # fmt: skip

    monkeypatch.setattr(measurements, "_encoders_in_turns", times)
    monkeypatch.setattr(
        measurements, "peak", cache(lambda name, n: n**2 if name == "standard" else 700 * n)
    )
    encoders = measurements.measure_encoder((500, 1000, 1500))
    assert encoders["time_crossover"] == pytest.approx(900, rel=0.01)
    assert encoders["time_crossover_default"] == pytest.approx(900, rel=0.01)
    assert encoders["memory_crossover"] == 700


@pytest.mark.parametrize("kind", checks_sizes.KINDS)
def test_sampled_norms_are_those_of_the_definitions(kind):
    d, n, draws = 3, 6, 1500
    by_expression = {
        r["expression"]: r
        for r in checks_sizes.measure_norms((d,), (n,), 2000)
        if r["values"] == kind
    }
    assert set(by_expression) == set(checks_sizes.EXPRESSIONS)
    for name, norms in sampled(kind, n, d, draws).items():
        row = by_expression[name]
        error = math.hypot(row["standard_error"], norms.std() / math.sqrt(draws))
        assert abs(row["norm"] - norms.mean()) < 5 * error, name


def test_fits_find_the_constant_behind_a_correction(instead):
    rows = [
        {"expression": "A_mod", "d": 4, "values": SPHERE, "seq_len": n,
         "norm": math.sqrt(0.25 * n**2 + 7 * n)}
        for n in (10, 1000, 10_000, 100_000)
    ]  # fmt: skip
    instead("norms", rows)
    (fit,) = checks_sizes.fit_norms()
    assert fit["constant"] == pytest.approx(0.5)


def printed_crossovers():
    """Measurements as the document reports them."""
    curves = [
        {"d": 8, "form": form, "allocator": setting, "seq_len": n, "time_s": t, "time_low_s": t,
         "time_high_s": t, "coverage": 0.96, "samples": 6, "peak_bytes": n}
        for form, power in (("taylor-direct", 2), ("taylor-efficient", 1))
        for setting in ALLOCATORS
        for n in (64, 128, 256)
        for t in (1e-6 * n**power,)
    ]  # fmt: skip
    value = {"d": [8], "N0": [73], "N1": [47], "N1hat": [47], "longest": [256],
             "where": {"device_name": "a machine", "cores": 2, "torch": "2"},
             "curves": curves}  # fmt: skip
    for ending in ("", "_default"):
        value |= {f"N0hat{ending}": [73 + 18 * 8], f"N0hat_low{ending}": [200.0],
                  f"N0hat_high{ending}": [None]}  # fmt: skip
    return value


def agreed(name):
    return [its["agrees"] for its in FIGURES[name]()["described"]]


def test_what_is_said_of_figure_1_follows_from_the_measurement(instead):
    value = printed_crossovers()
    instead("crossovers", value)
    assert agreed("1") == [True, True, True, True, True, False]  # there is no d = 62
    value["N0hat"], value["N1hat"] = [73 + 25 * 8], [48]
    assert agreed("1") == [True, False, True, False, True, False]
    assert "25.0·d" in FIGURES["1"]()["described"][1]["ours"]
    value["N0hat_default"] = [73 + 10 * 8]
    assert agreed("1") == [True, False, False, False, True, False]


def test_a_width_that_was_not_reached_is_named_and_left_out_of_the_law(instead):
    value = printed_crossovers()
    for name, one in {"d": 64, "N0": 4161, "N1": 2174, "N1hat": 2200, "longest": 4096}.items():
        value[name] = [*value[name], one]
    for name in list(value):
        if name.startswith("N0hat"):
            value[name] = [*value[name], None]
    value["curves"] += [{**row, "d": 64} for row in value["curves"]]
    instead("crossovers", value)
    said = {its["what"]: its["ours"] for its in FIGURES["1"]()["described"]}
    law = said["how far the measured N0hat lies above N0, freed memory kept"]
    assert law.startswith("18.0·d, by d = 8: 18.0·d (15.9 to …)")
    assert "d = 64" not in law
    assert "d = 64 beyond 4,096 tokens" in said["columns that are continued by a parabola"]
    assert picture("004", FIGURES["1"]()).startswith("<svg ")


def test_what_is_said_of_figure_2_follows_from_the_measurement(instead):
    model = {"depth": 1, "d_model": 32, "num_heads": 1, "head_dim": 32, "mlp_ratio": 4}
    sizes = (500, 1500, 2000)
    curves = [
        {"mechanism": m, "allocator": setting, "seq_len": n, "time_s": 1.0, "peak_bytes": 100}
        for m in measurements.MODELS
        for setting in ALLOCATORS
        for n in sizes
    ]
    value = {
        "seq_len": list(sizes), "memory_ratio": [2, 0.5, 0.35], "time_ratio": [2, 1.5, 0.9],
        "memory_crossover": 900, "curves": curves, "model": model,
        "where": {"device_name": "a machine", "cores": 2, "torch": "2"},
    }  # fmt: skip
    for ending in ("", "_default"):
        value |= {f"time_crossover{ending}": 1800.0, f"time_crossover_low{ending}": 1700.0,
                  f"time_crossover_high{ending}": 1900.0, f"longest{ending}": 4096}  # fmt: skip
    instead("encoder", value)
    assert agreed("2") == [True] * 6
    value |= {"memory_ratio": [2, 0.4, 0.3], "memory_crossover": 574, "time_crossover": None}
    assert agreed("2") == [False, False, True, False, False, True]
    assert "beyond the 4,096 tokens" in FIGURES["2"]()["described"][1]["ours"]


def test_the_printed_law_of_the_denominator_is_the_one_that_does_not_fit():
    said = {its["what"]: its["agrees"] for its in FIGURES["4"]()["described"]}
    laws = {what: agrees for what, agrees in said.items() if what.endswith(" grows")}
    assert [what for what, agrees in laws.items() if not agrees] == ["how Y_denom grows"]
    assert said["how rows of V are drawn"] is False


def test_height_lies_on_a_line_in_the_logarithms_and_is_unknown_outside():
    rows = [{"seq_len": n, "y": float(n) ** 2} for n in (10, 1000)]
    assert figures.height(rows, "y", 100) == pytest.approx(10_000)
    assert figures.height(rows, "y", 5) is None


def test_every_measurement_is_shipped_and_read_by_a_figure():
    assert list(MEASUREMENTS) == ["crossovers", "encoder", "norms"]
    assert all(measured("004", name) for name in MEASUREMENTS)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_flat_rows_and_is_drawn(name):
    data = FIGURES[name]()
    assert data["rows"]
    assert data["described"]
    for row in data["rows"]:
        assert list(row) == list(data["rows"][0])
        assert all(value is None or isinstance(value, (str, int, float)) for value in row.values())
    assert set(drawings("004")) == set(FIGURES)
    assert picture("004", data).startswith("<svg ")
