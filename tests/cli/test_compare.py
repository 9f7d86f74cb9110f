"""attnprof compare: same numbers as cost, winners marked, refusals named."""

import pytest

import attnprof as package
from attnprof.closed_form.cost_records import CONTESTED


def test_numbers_are_those_of_the_closed_forms(attnprof):
    ended = attnprof(
        "compare --attention standard,efficient --seq 64,256 --dtype float16 --format json"
    )
    records = ended.json["records"]
    assert [(r["seq_len"], r["mechanism"]) for r in records] == [
        (n, m) for n in (64, 256) for m in ("standard", "efficient")
    ]
    for record in records:
        workload = package.Workload(record["seq_len"], 8, 64, dtype="float16")
        table = package.cost(record["mechanism"], workload)
        assert record["flops"] == table.flops
        assert record["bytes_moved"] == table.total.bytes_moved
        assert record["peak_bytes"] == table.peak()
        assert record["state_bytes"] == 2 * table.state_entries
        assert record["arithmetic_intensity"] == pytest.approx(
            table.flops / table.total.bytes_moved
        )


def test_the_lowest_of_each_column_wins(attnprof):
    ended = attnprof("compare --attention standard,efficient,sdpa --seq 512 -f json")
    records = ended.json["records"]
    for name in CONTESTED:
        values = {r["mechanism"]: r[name] for r in records}
        winners = {r["mechanism"] for r in records if name in r["wins"].split(",")}
        assert winners == {m for m, v in values.items() if v == min(values.values())}
        assert set(ended.json["summary"]["winners"]["512"][name]) == winners


def test_nobody_wins_where_all_are_equal(attnprof):
    ended = attnprof("compare --attention standard,sdpa --seq 64 --format json")
    assert all("parameters" not in r["wins"].split(",") for r in ended.json["records"])


def test_a_refusing_mechanism_is_a_row_with_its_reason(attnprof):
    ended = attnprof("compare --attention standard,linformer --causal --seq 512 -f json")
    assert ended.code == 0
    standard, linformer = ended.json["records"]
    assert standard["skipped"] is None
    assert "causal" in linformer["skipped"]
    assert linformer["flops"] is None
    assert linformer["wins"] == ""


def test_all_shipped_mechanisms_are_compared_by_default(attnprof):
    from attnprof import registry

    ended = attnprof("compare --seq 512 --format csv")
    assert [row["mechanism"] for row in ended.csv] == registry.names()


def test_the_table_marks_winners(attnprof):
    ended = attnprof("compare --attention standard,efficient --seq 512")
    line = next(line for line in ended.out.splitlines() if line.strip().startswith("efficient"))
    assert line.count("*") >= 4
