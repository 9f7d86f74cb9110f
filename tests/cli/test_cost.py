"""attnprof cost: the definition's counts, our closed forms, the printed formulas."""

import math
from fractions import Fraction
from functools import cache

import pytest
import sympy

import attnprof as package
from attnprof import registry
from attnprof.closed_form.cost_records import QUANTITIES, CostQuery, cost_records
from attnprof.closed_form.domain import in_domain
from attnprof.workload import Workload

SYMBOLS = {name: sympy.Symbol(name, positive=True) for name in "BNhdgM"}


NAMES = {
    "Max": max, "Min": min, "floor": math.floor, "ceiling": math.ceil,
    "Piecewise": lambda *branches: next(value for value, holds in branches if holds),
}  # fmt: skip


def forms_hold(records, **sizes):
    """Closed forms in exact fractions, without sympy, give the values; how many there are."""
    names = {
        n: NAMES | {k: Fraction(v) for k, v in (sizes | {"N": n}).items()}
        for n in {record["seq_len"] for record in records}
    }
    evaluated = cache(lambda text, n: eval(text, names[n]))
    forms = [record for record in records if record["expression"] is not None]
    for record in forms:
        assert evaluated(record["expression"], record["seq_len"]) == record["value"], record
    return len(forms)


def total(records, quantity, kind="formula"):
    matching = [
        r for r in records if (r["stage"], r["quantity"], r["kind"]) == ("total", quantity, kind)
    ]
    assert len(matching) == 1
    return matching[0]


def operations_by_hand(n, h, d):
    """Of causal attention without biases."""
    width, pairs = h * d, n * (n + 1) // 2
    projections = 4 * n * width * (2 * width - 1)
    scores = h * pairs * (2 * d - 1 + 1)  # dot product and scaling
    softmax = h * (pairs + (pairs - n) + pairs)
    values = sum(h * d * (2 * t - 1) for t in range(1, n + 1))
    return projections + scores + softmax + values


@pytest.mark.parametrize(
    ("n", "h", "d", "expected"),
    [(128, 1, 128, 20_947_008), (128, 32, 4, 21_710_848), (7, 3, 5, operations_by_hand(7, 3, 5))],
)
def test_operations_are_those_of_document_002_and_of_a_count_by_hand(attnprof, n, h, d, expected):
    words = f"cost --seq {n} --heads {h} --d {d} --causal --set bias=false"
    rows = attnprof(words, "--convention operations --format json").json["records"]
    assert total(rows, "operations")["value"] == expected


#: layers and cores take turns
SCOPED = [
    (mechanism, phase, ("core", "layer")[(i + j) % 2])
    for i, mechanism in enumerate(["standard", "super", "linformer", "nystromformer", "longformer"])
    for j, phase in enumerate(["forward", "train", "decode"])
]


@pytest.mark.parametrize(("mechanism", "phase", "scope"), SCOPED)
def test_closed_forms_give_the_values(attnprof, mechanism, phase, scope):
    """At few tokens and, in training, at more than a block of rows has."""
    if phase == "decode" and not registry.get(mechanism).abilities.decode:
        phase = "backward"
    lengths = [6, 300] if phase == "train" else [6]
    ended = attnprof(
        f"cost --attention {mechanism} --phase {phase} --scope {scope}",
        f"--batch 3 --seq {','.join(map(str, lengths))} --heads 2 --d 5 --format json",
    )
    assert ended.code == 0, ended.err
    for length in lengths:
        records = [r for r in ended.json["records"] if r["seq_len"] == length]
        assert all(r["expression"] is not None for r in records if r["stage"] == "total")
        assert forms_hold(records, B=3, h=2, d=5) > 20


@pytest.mark.parametrize(("seq", "phase"), [("40,400", "forward"), ("40", "train")])
def test_a_mechanism_that_switches_has_a_closed_form_a_branch(attnprof, seq, phase):
    ended = attnprof(
        f"cost -a taylorshift --seq {seq} --heads 2 --d 8 --batch 3 --phase {phase} -f json"
    )
    for length in map(int, seq.split(",")):
        records = [r for r in ended.json["records"] if r["seq_len"] == length]
        assert forms_hold(records, B=3, h=2, d=8) > 100
        text = total(records, "flops")["expression"]
        assert text.count("Piecewise") == 1


def test_totals_are_those_of_the_python_interface(attnprof):
    ended = attnprof("cost --attention efficient --seq 96 --phase train --format json")
    table = package.cost("efficient", package.Workload(96, 8, 64, phase="train"))
    records = ended.json["records"]
    for name in ("multiplications", "divisions", "flops", "matmul_flops", "bytes_moved"):
        assert total(records, name)["value"] == getattr(table.total, name)
        stages = [r for r in records if r["quantity"] == name and r["stage"] != "total"]
        assert sum(r["value"] for r in stages) == total(records, name)["value"]
    assert total(records, "peak_bytes")["value"] == table.peak()
    assert total(records, "parameters")["value"] == table.parameters
    assert {r["part"] for r in records} == {None, "forward", "backward"}
    keys = [(r["part"], r["stage"], r["quantity"], r["kind"]) for r in records]
    assert len(keys) == len(set(keys))


def test_printed_formulas_stand_beside_ours_untouched(attnprof):
    words = "cost --attention standard --seq 50 --d-model 48 --heads 4 --phase train --format json"
    rows = attnprof(words).json["records"]
    row = total(rows, "flops", "published")
    assert row["source"] == "000-EQ24"
    assert row["value"] == 15 * 50 * 48 + 15 * 4 * 50**2
    assert total(rows, "flops")["value"] != row["value"]


@pytest.mark.parametrize("more", ["--batch 2", "--causal", "--scope core", "--phase forward"])
def test_printed_formulas_are_left_out_where_they_do_not_speak(attnprof, more):
    ended = attnprof(f"cost --seq 50 --phase train --format json {more}")
    assert {r["kind"] for r in ended.json["records"]} == {"formula"}


def test_several_lengths_and_mechanisms_are_rows_of_the_quantities_asked_for(attnprof):
    words = "cost --attention standard,efficient --seq 64,128 --quantity flops,peak_bytes"
    rows = attnprof(words, "--format csv").csv
    assert {row["quantity"] for row in rows} == {"flops", "peak_bytes"}
    totals = {
        (r["mechanism"], r["seq_len"]): r["value"]
        for r in rows if (r["stage"], r["quantity"]) == ("total", "flops")
    }  # fmt: skip
    assert set(totals) == {(m, n) for m in ("standard", "efficient") for n in ("64", "128")}
    assert len(set(totals.values())) == 4


def test_a_refusing_mechanism_is_a_row_beside_others(attnprof):
    ended = attnprof(
        "cost --attention sdpa,optimised --kv-heads 2 --seq 16 --quantity flops -f json"
    )
    refused = [r for r in ended.json["records"] if r["skipped"]]
    assert ended.code == 0
    assert [r["mechanism"] for r in refused] == ["optimised"]
    assert refused[0]["value"] is None


def test_every_quantity_of_the_contract_has_a_total(attnprof):
    rows = attnprof("cost --seq 32 --format json").json["records"]
    assert {r["quantity"] for r in rows if r["stage"] == "total"} == set(QUANTITIES)


def test_symbolic_and_latex_show_closed_forms(attnprof):
    assert "4*B*N**2*d*h" in attnprof("cost --seq 64 --symbolic").out
    latex = attnprof("cost --seq 64 --latex --quantity matmul_flops").out
    assert "4 B N^{2} d h + 8 B N d^{2} h^{2}" in latex.splitlines()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["efficient", "sdpa", "taylor-efficient"])
def test_shorter_closed_forms_have_the_same_values(name, batch):
    work = (registry.get(name), Workload(seq_len=70, num_heads=4, head_dim=8, batch_size=batch))
    records = cost_records(*work, "layer", CostQuery())
    sizes = {SYMBOLS[name]: size for name, size in zip("BNhd", (batch, 70, 4, 8), strict=True)}
    for record in in_domain(records):
        if record.expression and record.stage == "total" and record.kind == "formula":
            assert sympy.sympify(record.expression, SYMBOLS).subs(sizes) == record.value
            assert "Min(" not in record.expression


def test_the_domain_is_told_once_and_full_is_for_all_sizes(attnprof):
    shorter = attnprof("cost -a efficient --seq 64 --symbolic").out
    assert "Min(" not in shorter
    assert shorter.count("Holds for N, h, d >= 2 and B = 1") == 1
    full = attnprof("cost -a efficient --seq 64 --symbolic --full").out
    assert "Min(1, N - 1)" in full
    assert "Holds for all sizes" in full


def test_the_command_tells_what_auto_takes(attnprof):
    said = attnprof("cost -a mla --seq 64 --set rope_dim=8 -f json").json["summary"]["choices"]
    assert len(said) == 1
    assert said[0].startswith("impl=auto is expanded here")
    assert "choices" not in attnprof("cost -a gqa --seq 64 -f json").json["summary"]


def test_ranks_are_rows_with_bytes_times_and_tokens_for_overlap(attnprof):
    words = "cost -a gqa,linformer --seq 1048576 --heads 32 --d 128 --set num_kv_heads=8"
    ended = attnprof(words, "--dtype bfloat16 --ranks 8 --bandwidth 450GB/s -f json")
    assert ended.json["command"] == "cost --ranks"
    ring, heads, refused, _ = ended.json["records"]
    assert (ring["method"], ring["bytes_sent"], ring["steps"]) == ("ring", 7 * 2**29, 7)
    assert ring["overlap_tokens"] == math.ceil(989.5e12 * 2 * 8 / (2 * 32 * 450e9))
    assert heads["send_time_s"] == pytest.approx(heads["bytes_sent"] / 450e9)
    assert (refused["mechanism"], refused["bytes_sent"]) == ("linformer", None)
    assert ended.json["summary"]["device"] == "H100"


@pytest.mark.parametrize(("typed", "named"), [
    ("gqa --kv-heads 2", "key heads 2"), ("sdpa --kv-seq 77", "keys 77"),
    ("gla --value-dim 32", "value width 32"),
])  # fmt: skip
def test_a_title_names_every_size_that_was_typed(attnprof, typed, named):
    ended = attnprof(f"cost --quantity flops --attention {typed}")
    assert named in " ".join(ended.out.partition("stage")[0].split())
