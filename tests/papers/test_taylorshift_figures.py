"""004's figures: what they are measured with, what is said of them, and that they can be drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnprof.measure.measured_crossovers import peaks_of
from attnprof.measure.request import Budget
from attnprof.papers.measured import fresh, measured
from attnprof.papers.taylorshift import figures, measurements, norms
from attnprof.papers.taylorshift.checks_sizes import NORMAL, SPHERE
from attnprof.papers.taylorshift.figures import FIGURES
from attnprof.papers.taylorshift.measurements import MEASUREMENTS
from attnprof.registry import get
from attnprof.render.plots.documents import drawings, picture
from attnprof.workload import Workload

QUICK = Budget(samples=3, min_time_s=0, max_time_s=0.01, warmup_s=0, least=3)


@pytest.fixture
def instead():
    """Another measurement in the place of the shipped one."""
    with fresh("004", str) as made:
        yield made.__setitem__


def test_lengths_are_powers_of_two_and_their_middles():
    assert measurements.lengths(16, 64) == [16, 24, 32, 48, 64]
    assert measurements.lengths(512, 6144) == [512, 768, 1024, 1536, 2048, 3072, 4096, 6144]


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_a_root_is_where_a_power_law_is_one(power):
    assert math.isclose(measurements.root({n: (n / 700) ** power for n in (512, 600, 1024)}), 700)


def test_a_crossing_is_where_ratios_fall_below_one_for_good():
    assert measurements.crossing({100: 2.0, 200: 0.5, 400: 2.0, 800: 0.5}) == pytest.approx(
        566, abs=1
    )
    assert measurements.crossing({100: 0.5, 200: 2.0}) is None
    assert measurements.crossing({100: 3.0, 200: 2.0}) is None


def test_fitted_curves_meet_where_the_parabola_is_the_line():
    costs = {"taylor-direct": lambda n: 1.0 + n**2, "taylor-efficient": lambda n: 101.0 * n}
    rows = [
        {"form": form, "seq_len": n, "time_s": cost(n)}
        for form, cost in costs.items()
        for n in (2, 4, 8, 16)
    ]
    fits = [measurements._fit(rows, form) for form in measurements.FORMS]
    assert measurements.meeting_of(*fits) == pytest.approx((101 + math.sqrt(101**2 - 4)) / 2)


def test_the_memory_crossover_is_the_first_length_with_no_larger_peak():
    first = measurements.memory_crossing(8)
    direct, efficient = (peaks_of(get(f), Workload(1, 1, 8), "core") for f in measurements.FORMS)
    assert direct(first) >= efficient(first)
    assert direct(first - 1) < efficient(first - 1)


@pytest.fixture
def known_times(monkeypatch):
    """Times that are known: the direct form's N², the efficient one's 100·N."""
    monkeypatch.setattr(
        measurements, "_times", lambda _, n, __: [[1.0 * n**2] * 5, [100.0 * n] * 5]
    )


@pytest.mark.usefixtures("known_times")
@pytest.mark.parametrize(("span", "beyond"), [((16, 256), False), ((16, 64), True)])
def test_measured_times_meet_inside_the_span_or_beyond_it(span, beyond):
    found = measurements.measure_crossovers({8: span}, QUICK)
    assert [found[name] for name in ("d", "N0", "N1")] == [[8], [73], [47]]
    assert {len(found[name]) for name in measurements.COLUMNS} == {1}
    assert found["extrapolated"] == [beyond]
    for name in ("N0hat", "N0hat_low", "N0hat_high"):
        assert found[name] == [pytest.approx(100)]
    timed = {row["seq_len"] for row in found["curves"] if not row["extrapolated"]}
    assert timed == set(measurements.lengths(*span))
    more = [row for row in found["curves"] if row["extrapolated"]]
    assert [row["time_s"] for row in more] == pytest.approx(
        [cost * row["seq_len"] ** power for row in more
         for cost, power in [(1, 2) if row["form"] == "taylor-direct" else (100, 1)]]
    )  # fmt: skip
    assert bool(more) is beyond


def test_both_forms_are_timed():
    found = measurements._times(8, 16, QUICK)
    assert [len(times) for times in found] == [3, 3]
    assert min(min(times) for times in found) > 0


def test_both_forms_make_the_same_encoder():
    direct, efficient = (measurements.encoder(f, 24).call() for f in measurements.FORMS)
    assert direct.shape == (1, 24, measurements.ENCODER.d_model)
    assert torch.allclose(direct, efficient, atol=1e-4)


def test_a_small_measurement_of_encoders_gives_ratios_by_length(monkeypatch):
    monkeypatch.setattr(measurements, "ENCODER", measurements.ENCODER.with_(num_layers=1))
    found = measurements.measure_encoder((256, 1024), QUICK)
    standard, efficient = (
        measurements.peak("standard", 1024),
        measurements.peak("taylor-efficient", 1024),
    )
    assert found["memory_ratio"][1] == efficient / standard < 1 < found["memory_ratio"][0]
    crossover = found["memory_crossover"]
    assert measurements.peak("taylor-efficient", crossover) <= measurements.peak(
        "standard", crossover
    )
    assert measurements.peak("taylor-efficient", crossover - 1) > measurements.peak(
        "standard", crossover - 1
    )


def brute_force(d, n, kind, rng):
    """One draw's sizes, row by row, from the definitions."""

    def unit(*shape):
        x = rng.standard_normal(shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    q, keys = unit(d), unit(n, d)
    rows = rng.standard_normal((n, d)) if kind == NORMAL else unit(n, d)
    v = np.hstack([np.ones((n, 1)), rows])
    x = keys @ q
    y = sum((1 + s + s * s / 2) * row for s, row in zip(x, v, strict=True))
    mixed = sum(np.outer(np.outer(k, k).ravel(), row) for k, row in zip(keys, v, strict=True))
    return {"A_mod": np.linalg.norm(mixed), "(QK^T)^2 V": np.linalg.norm((x**2) @ v),
            "QK^T V": np.linalg.norm(x @ v), "Y_denom": abs(y[0]),
            "Y": np.linalg.norm(y[1:] / y[0])}  # fmt: skip


@pytest.mark.parametrize("kind", norms.KINDS)
def test_sampled_norms_are_those_of_the_definitions(kind):
    rng, d, n, draws = np.random.default_rng(1), 3, 6, 1500
    found = {
        r["expression"]: r for r in norms.measure_norms((d,), (n,), 2000) if r["values"] == kind
    }
    samples = [brute_force(d, n, kind, rng) for _ in range(draws)]
    assert set(found) == set(norms.EXPRESSIONS)
    for name, row in found.items():
        own = np.array([sample[name] for sample in samples])
        error = math.hypot(row["standard_error"], own.std() / math.sqrt(draws))
        assert abs(row["norm"] - own.mean()) < 5 * error, name


def test_fits_find_the_constant_behind_a_correction(instead):
    rows = [
        {"expression": "A_mod", "d": 4, "values": SPHERE, "seq_len": n,
         "norm": math.sqrt(0.25 * n**2 + 7 * n)}
        for n in (10, 1000, 10_000, 100_000)
    ]  # fmt: skip
    instead("norms", rows)
    (fit,) = norms.fit_norms()
    assert fit["constant"] == pytest.approx(0.5)


def printed_crossovers():
    """Measurements as the document reports them."""
    curves = [
        {"d": 8, "form": form, "seq_len": n, "time_s": t, "time_low_s": t, "time_high_s": t,
         "samples": 1, "peak_bytes": n, "extrapolated": False}
        for form, power in (("taylor-direct", 2), ("taylor-efficient", 1))
        for n in (64, 128, 256)
        for t in (1e-6 * n**power,)
    ]  # fmt: skip
    return {"d": [8], "N0": [73], "N1": [47], "N0hat": [73 + 18 * 8], "N0hat_low": [73.0],
            "N0hat_high": [73.0], "N1hat": [47], "extrapolated": [False],
            "curves": curves}  # fmt: skip


def agreed(name):
    return [its.agrees for its in FIGURES[name].data().described]


def test_what_is_said_of_figure_1_follows_from_the_measurement(instead):
    value = printed_crossovers()
    instead("crossovers", value)
    assert agreed("1") == [True, True, True, True, False]  # there is no d = 62
    value["N0hat"], value["N1hat"] = [73 + 25 * 8], [48]
    assert agreed("1") == [True, False, False, True, False]


def test_what_is_said_of_figure_2_follows_from_the_measurement(instead):
    model = {"depth": 1, "d_model": 32, "num_heads": 1, "head_dim": 32, "mlp_ratio": 4}
    sizes = (500, 1500, 2000)
    curves = [
        {"mechanism": m, "seq_len": n, "time_s": 1.0, "peak_bytes": 100}
        for m in measurements.MODELS
        for n in sizes
    ]
    value = {
        "seq_len": list(sizes), "memory_ratio": [2, 0.5, 0.35], "time_ratio": [2, 1.5, 0.9],
        "memory_crossover": 900, "time_crossover": 1800.0, "curves": curves, "model": model,
    }  # fmt: skip
    instead("encoder", value)
    assert agreed("2") == [True] * 5
    value |= {"memory_ratio": [2, 0.4, 0.3], "memory_crossover": 574, "time_crossover": None}
    assert agreed("2") == [False, False, False, False, True]


def test_the_printed_law_of_the_denominator_is_the_one_that_does_not_fit():
    said = {its.what: its.agrees for its in FIGURES["4"].data().described}
    laws = {what: agrees for what, agrees in said.items() if what.endswith(" grows")}
    assert [what for what, agrees in laws.items() if not agrees] == ["how Y_denom grows"]
    assert said["how rows of V are drawn"] is False


def test_height_lies_on_a_line_in_the_logarithms_and_is_unknown_outside():
    rows = [{"seq_len": n, "y": float(n) ** 2} for n in (10, 1000)]
    assert figures.height(rows, "y", 100) == pytest.approx(10_000)
    assert figures.height(rows, "y", 5) is None


def test_every_measurement_is_shipped_and_read_by_a_figure():
    assert list(MEASUREMENTS) == ["crossovers", "encoder", "norms", "fits"]
    assert all(measured("004", name) for name in MEASUREMENTS)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_flat_rows_and_is_drawn(name):
    data = FIGURES[name].data()
    assert data.rows
    assert data.described
    for row in data.rows:
        assert list(row) == list(data.rows[0])
        assert all(value is None or isinstance(value, (str, int, float)) for value in row.values())
    assert set(drawings("004")) == set(FIGURES)
    assert picture("004", name, data)[:8] == b"\x89PNG\r\n\x1a\n"
