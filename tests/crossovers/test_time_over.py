"""Crossovers in time over other sizes than the length, by made-up clocks."""

import random

import pytest

from attnprof import registry
from attnprof.crossovers.axis import CrossoverAxis
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.crossovers.timed import TimedPair, TimeTerms
from attnprof.workload import Workload


def timed(monkeypatch, names, axis, seconds, given=256, kinds=("measured",), **how):
    """The rows of a pair whose calls take ``seconds(side, value)``, with some noise."""
    drawn = random.Random(0)

    def compare(_, value, budget):
        noise = [[drawn.gauss(1, 0.02) for _ in range(budget.samples)] for _ in range(2)]
        return tuple([seconds(side, value) * x for x in noise[side]] for side in (0, 1))

    monkeypatch.setattr(TimedPair, "_compare", compare)
    sides = registry.configured(names, {})
    return crossover_report(
        Meeting(*sides, Workload(1, 1, 16), axis=axis), [given], kinds, ["time"],
        terms=TimeTerms("cpu", 1, **how), environment={},
    )  # fmt: skip


@pytest.mark.parametrize("over", ["d", "batch", "window", "heads"])
@pytest.mark.parametrize("crossing", [24, 100, 700])
def test_the_crossing_is_that_of_the_clock(monkeypatch, over, crossing):
    found = timed(
        monkeypatch, ["standard", "longformer"], CrossoverAxis(over),
        lambda side, value: 1e-4 if side else 1e-4 * value / crossing,
    )  # fmt: skip
    (row,) = found.records
    assert row.crossover_value == pytest.approx(crossing, rel=0.05)
    assert row.ci_low < crossing * 1.03
    assert row.ci_high > crossing * 0.97
    assert (row.verdict, row.cheaper_above) == ("crosses", "longformer")
    assert (row.over, row.seq_len, row.crossover_seq_len) == (over, 256, None)
    assert "At 256 tokens" in found.summary["answer"]


def test_only_heads_that_divide_the_width_are_timed(monkeypatch):
    (row,) = timed(
        monkeypatch, ["standard", "linear"], CrossoverAxis("heads", last=96, d_model=96),
        lambda side, value: 1e-4 if side else 1e-5 * value,
    ).records  # fmt: skip
    assert all(96 % heads == 0 for heads in row.lengths)
    assert row.crossover_value == pytest.approx(10, rel=0.35)


def test_a_crossing_beyond_what_can_be_timed_is_said_and_not_told(monkeypatch):
    (row,) = timed(
        monkeypatch, ["standard", "linear"], CrossoverAxis("batch"),
        lambda side, value: (1.0 + 0.02 * side) * 0.01 * value, most_s=0.5,
    ).records  # fmt: skip
    assert (row.verdict, row.crossover_value, row.first_value) == ("never", None, None)
    assert max(row.lengths) <= 64
    assert "batch" in row.bound
    assert "0.5 s" in row.bound


def test_one_journal_keeps_two_axes_apart(monkeypatch, tmp_path):
    journal = tmp_path / "times.jsonl"
    for over, crossing in (("batch", 30), ("d", 90)):
        for _ in range(2):
            (row,) = timed(
                monkeypatch, ["standard", "linear"], CrossoverAxis(over),
                lambda side, value, at=crossing: 1e-4 if side else 1e-4 * value / at,
                journal=journal,
            ).records  # fmt: skip
            assert row.crossover_value == pytest.approx(crossing, rel=0.05)


def test_curves_are_over_the_values(monkeypatch):
    def call(side, value):
        return 1e-4 if side else 1e-5 * value

    sides = registry.configured(["standard", "linear"], {})
    monkeypatch.setattr(
        TimedPair, "_compare", lambda _, n, __: ([call(0, n)] * 9, [call(1, n)] * 9)
    )
    found = crossover_report(
        Meeting(*sides, Workload(1, 1, 16), axis=CrossoverAxis("d")), [64], ["measured"], ["time"],
        terms=TimeTerms("cpu", 1), with_curves=True, environment={},
    )  # fmt: skip
    for curve in found.summary["curves"]:
        assert curve["seq_len"] == 64
        assert len(curve["at"]) == len(curve["value"]) == len(found.records[0].lengths)
    (ratio,) = found.summary["ratios"]
    assert ratio["value"] == pytest.approx([0.1 * d for d in ratio["at"]])
