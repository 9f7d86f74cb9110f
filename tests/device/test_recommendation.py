"""Recommendations: who comes first, what is given up, and what does not fit."""

from dataclasses import replace

import pytest

from attnprof import registry
from attnprof.device import calibration, recommendation
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.recommendation import gives_up, recommend
from attnprof.errors import CannotRunError
from attnprof.measure.environment import device_name
from attnprof.workload import Workload
from tests.device.test_prediction import made_up


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "calibration.json"
    ceilings = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "", measured=True)
    calibration.save(Calibration(ceilings, "cpu", 1, {"float32": made_up()}), path)
    return path


def ranked(known, workload, **how):
    return recommend(workload, {}, device="cpu", threads=1, path=known, **how)


@pytest.fixture(scope="module")
def found(known):
    return ranked(known, Workload(64, 2, 16))


def test_exact_ones_come_first_and_the_fast_before_the_slow(found):
    rows = [row for row in found.records if row.rank is not None]
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    for exact in (True, False):
        times = [row.time_s for row in rows if row.exact is exact]
        assert times == sorted(times)
    assert [row.exact for row in rows] == sorted((row.exact for row in rows), reverse=True)
    assert {row.mechanism for row in found.records} == set(registry.names())
    assert found.summary["answer"].startswith(f"At 64 tokens take {rows[0].mechanism}")
    assert found.summary["fastest"]


def test_two_whose_intervals_overlap_are_both_named(found):
    first, second = [row for row in found.records if row.exact and row.rank is not None][:2]
    assert second.ci_low_s <= first.ci_high_s
    told = f"At 64 tokens take {first.mechanism} or {second.mechanism}: "
    assert found.summary["answer"].startswith(told)
    sure = [replace(row, ci_low_s=row.time_s, ci_high_s=row.time_s) for row in found.records]
    assert recommendation._answer(sure, []).startswith(f"At 64 tokens take {first.mechanism}: ")


def test_what_does_not_fit_or_cannot_has_no_rank_but_a_reason(known):
    rows = ranked(known, Workload(256, 2, 16, causal=True), memory=400_000).records
    left = [row for row in rows if row.rank is None]
    assert all(row.skipped for row in left)
    by_name = {row.mechanism: row for row in rows}
    assert "causal" in by_name["linformer"].skipped
    assert by_name["standard"].fits is False
    assert by_name["sdpa"].rank is not None


def test_where_nothing_fits_that_is_said(known, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "linear"])
    with pytest.raises(CannotRunError, match="no mechanism can do what is asked here"):
        ranked(known, Workload(256, 2, 16), memory=1000)


@pytest.mark.parametrize("name", registry.names())
def test_what_is_given_up_is_told_of_all_that_are_not_exact(name):
    spec = registry.get(name)
    assert bool(gives_up(spec)) is (spec.to_softmax[0] != "same")
