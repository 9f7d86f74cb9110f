"""attnprof doctor: what works here, found by trying."""

import sys

import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode


def rows(ended):
    return {record["check"]: record for record in ended.json["records"]}


def test_counters_are_tried_and_versions_told(attnprof):
    ended = attnprof("doctor", "--format", "json")
    assert ended.code == 0
    results = rows(ended)
    assert results["torch"]["found"].startswith(torch.__version__)
    assert results["sympy"]["found"] == sympy.__version__
    for check in ("torch's FLOP counter", "fvcore's counter", "memory on CPU", "figures"):
        assert results[check]["status"] == "ok", results[check]
    assert ended.json["summary"]["problems"] == []
    assert "Everything works." in attnprof("doctor").out


def test_without_torch_the_table_is_shown_and_it_ends_with_3(attnprof, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ended = attnprof("doctor", "--format", "json")
    assert ended.code == 3
    assert rows(ended)["torch"]["status"] == "missing"
    assert "torch" in ended.json["summary"]["problems"]


def test_a_counter_that_miscounts_is_told(attnprof, monkeypatch):
    monkeypatch.setattr(FlopCounterMode, "get_total_flops", lambda _: 7)
    ended = attnprof("doctor", "--format", "json")
    assert ended.code == 0
    assert rows(ended)["torch's FLOP counter"]["status"] == "broken"
