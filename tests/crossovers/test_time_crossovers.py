"""Crossovers in time: the rows, what refuses, and what a journal saves."""

from math import log

import pytest

from attnprof import registry
from attnprof.cli.app import main
from attnprof.crossovers.predicted_search import PredictedSearch
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.crossovers.timed import TimeTerms
from attnprof.device import calibration, calibration_run
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.environment import device_name
from attnprof.workload import Workload
from tests.device.test_prediction import made_up


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
    (found,) = search.timed
    assert found.at == pytest.approx(1000, rel=0.01)
    assert found.low < 1000 < found.high
    assert log(found.high / 1000) == pytest.approx(0.196, rel=0.1)
    assert search.end == "too long"


def test_an_end_of_the_interval_that_is_never_reached_is_not_told():
    (found,) = predicted(lambda n: n**0.01, lambda _: 500**0.01).timed
    assert (found.low, found.high) == (None, None)


def test_a_tie_at_the_shortest_lengths_is_no_crossing_of_its_own():
    search = predicted(lambda n: n**2 + 16_000 * (n < 17), lambda n: 1000 * n, most=4096)
    assert search.signs[16] != search.signs[32]
    (found,) = search.timed
    assert found.at == pytest.approx(1000, rel=0.01)
    assert search.outer[0] == -1
    flat = predicted(lambda n: 1.02 if n > 500 else 1.0, lambda _: 1.01)  # ties are all there is
    assert len(flat.timed) == 1


def timed(*kinds, journal=None, **sizes):
    a, b = registry.configured(["standard", "taylor-direct"], {})
    terms = TimeTerms("cpu", 1, journal=journal, most_s=2e-3)
    workload = Workload(1, 1, 16, **sizes)
    meeting = Meeting(a, b, workload)
    return crossover_report(meeting, [16], kinds, ["time"], terms=terms, environment={})


def test_a_measured_row_tells_its_lengths_calls_and_end(tmp_path):
    journal = tmp_path / "times.jsonl"
    (row,) = timed("measured", journal=journal).records
    assert (row.metric, row.unit, row.kind) == ("time", "s", "measured")
    assert row.searched == [[row.lengths[0], row.lengths[-1]]]
    assert row.timed_calls >= 2 * 5 * len(row.lengths)
    assert row.verdict in ("crosses", "never", "always", "several")
    assert "more than" in row.bound
    before = journal.read_bytes()
    (again,) = timed("measured", journal=journal).records
    assert again == row
    assert journal.read_bytes() == before


def test_without_a_calibration_a_predicted_row_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CannotRunError, match="attnprof calibrate"):
        timed("predicted")


def test_time_has_no_formula():
    with pytest.raises(RequestError, match="--kind predicted,measured"):
        timed("formula")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--journal", "x.jsonl"], "--journal is for times: add --metric time"),
        (["--metric", "time", "--longest-call", "0"], "longest-call"),
        (["--metric", "time", "--model", "x.json"], "flops and memory"),
    ],
)
def test_flags_of_times_are_refused_where_they_say_nothing(typed, told, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["crossover", "standard", "linear", *typed])
    assert told in capsys.readouterr().err


def test_predicted_crossings_say_what_is_not_as_it_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (3e-6, 0.9))
    rates = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "a test")
    known = Calibration(
        rates, "cpu", 1, {"float32": made_up()}, reference_s=1e-6, conditions={"cores": "none"}
    )
    calibration.save(known, tmp_path / "cpu.json")
    sides = registry.configured(["standard", "linear"], {})
    terms = TimeTerms("cpu", 1, calibration=tmp_path / "cpu.json")
    meeting = Meeting(*sides, Workload(1, 1, 16))
    report = crossover_report(meeting, [16], ["predicted"], ["time"], terms=terms, environment={})
    assert "3.0 times slower now" in report.summary["made_of"]
    assert "calibrated with cores none" in report.summary["made_of"]
