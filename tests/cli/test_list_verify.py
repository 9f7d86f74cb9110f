"""attnprof list --verify: claimed growth against what torch counts."""

from __future__ import annotations

import pytest

from attnprof import registry
from attnprof.measure.growth import counted_growth, subjects
from attnprof.mechanisms.standard import Standard
from attnprof.record import Report

FEW = ["standard", "me"]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: FEW)


def test_every_mechanism_and_variant_has_its_three_records(attnprof, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "longformer"])
    ended = attnprof("list --verify -f json")
    assert ended.code == 0
    records = ended.json["records"]
    shown = ["standard", "longformer", "longformer impl=dense-mask"]
    quantities = ("matmul_flops", "flops", "peak_bytes")
    assert [(r["variant"], r["quantity"]) for r in records] == [
        (label, quantity) for label in shown for quantity in quantities
    ]
    verdicts = {r["variant"]: r["verdict"] for r in records if r["quantity"] == "flops"}
    assert verdicts == {label: "grows faster" if "dense" in label else "agrees" for label in shown}
    summary = ended.json["summary"]
    assert summary["faster"] == ["longformer impl=dense-mask"]
    assert (summary["unexpected"], summary["miscounted"]) == ([], [])


@pytest.mark.usefixtures("few")
def test_it_comes_in_every_format_and_loads_again(attnprof, tmp_path):
    table = attnprof("list --verify").out
    assert "agrees" in table
    assert "no matrix product for torch to count" in table
    assert len(attnprof("list --verify -f csv").csv) == 3 * len(FEW)
    assert attnprof("list --verify -f markdown").out.startswith("| mechanism")
    path = tmp_path / "growth.json"
    assert attnprof("list", "--verify", "-f", "json", "-o", str(path)).code == 0
    assert Report.load(path).records[0].found_exponent == 2


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("order", ["time_order", "memory_order"])
def test_a_mechanism_that_grows_faster_than_it_claims_fails_the_check(attnprof, monkeypatch, order):
    monkeypatch.setattr(Standard, order, "N")
    ended = attnprof("list --verify")
    assert ended.code == 1
    assert "GROWS FASTER" in ended.out
    assert "does not say so" in ended.out


@pytest.mark.parametrize("name", registry.names())
def test_torchs_counter_finds_the_closed_forms_products_at_long_lengths(name):
    for subject in subjects([name]):
        assert counted_growth(subject, (1024, 4097)).equals_formula
