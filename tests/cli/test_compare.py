"""attnprof compare: same numbers as cost, winners marked; answers of all comparisons."""

import re

import pytest

import attnprof as package
from attnprof import registry
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


def test_products_a_byte_are_those_of_a_decoding_step(attnprof):
    words = "compare --attention gqa,sdpa --seq 4096 --quantity step_bytes,step_intensity"
    for row in attnprof(f"{words} --phase decode --format json").json["records"]:
        assert row["step_intensity"] == row["matmul_flops"] / row["step_bytes"]
        assert "step_intensity" not in row["wins"]
    assert "add --phase decode" in attnprof(words).err


def test_the_lowest_of_each_column_wins_and_is_marked(attnprof):
    words = "compare --attention standard,efficient,sdpa --seq 512"
    lines = [line.strip() for line in attnprof(words).out.splitlines()]
    rows = [line for line in lines if line.startswith(("standard", "efficient", "sdpa"))]
    assert sum(row.count("*") for row in rows) >= 4
    ended = attnprof(words, "-f json")
    records = ended.json["records"]
    for name in CONTESTED:
        values = {r["mechanism"]: r[name] for r in records}
        winners = {r["mechanism"] for r in records if name in r["wins"].split(",")}
        assert winners == {m for m, v in values.items() if v == min(values.values())}
        assert set(ended.json["summary"]["winners"]["512"][name]) == winners
    equal = attnprof("compare --attention standard,sdpa --seq 64 --format json").json["records"]
    assert all("parameters" not in r["wins"].split(",") for r in equal)


def test_a_refusing_mechanism_is_a_row_with_its_reason(attnprof):
    ended = attnprof("compare --attention standard,linformer --causal --seq 512 -f json")
    assert ended.code == 0
    standard, linformer = ended.json["records"]
    assert standard["skipped"] is None
    assert "causal" in linformer["skipped"]
    assert linformer["flops"] is None
    assert linformer["wins"] == ""


def test_all_shipped_mechanisms_are_compared_by_default(attnprof):
    ended = attnprof("compare --seq 512 --format csv")
    assert [row["mechanism"] for row in ended.csv] == registry.names()


# -- answers in a sentence: who, by how much, from which length on -------------------------
FORMULA = "--no-plot --kind formula"


def answer(attnprof, words):
    ended = attnprof(f"{words} -f json")
    assert ended.code == 0
    return ended.json["summary"]["answer"]


@pytest.mark.parametrize("fmt", ["csv", "markdown"])
def test_only_the_quantities_asked_for_are_columns(attnprof, fmt):
    words = f"compare -a standard,linear --seq 64 --format {fmt} --quantity"
    header = attnprof(words, "flops").out.splitlines()[0].casefold()
    assert "flops" in header
    assert not {"matmul", "operations", "bytes", "memory", "intensity"} & {
        *re.split(r"\W|_", header)
    }
    assert "intensity" in attnprof(words, "bytes_moved,flops").out.splitlines()[0]


@pytest.mark.parametrize(("words", "said"), [
    ("compare -a standard,taylorshift --seq 1024,8192",
     "At 8,192 tokens taylorshift needs 0.56× the FLOPs and 0.28× the memory of standard."),
    ("compare -a sdpa,standard --seq 1024 --quantity parameters",
     "At 1,024 tokens sdpa needs the same parameters as standard."),
    ("compare -a standard,sdpa,linear --seq 1024",
     ("At 1,024 tokens linear needs the fewest FLOPs (0.53× those of standard) and sdpa needs the "
     "least memory (0.11× that of standard).")),
    ("compare -a standard --seq 1024", ""),
    ("compare -a sdpa,linear --seq 4096 --phase decode",
     "At 4,096 tokens linear needs 0.21× the FLOPs and 17× the memory beside the state of sdpa."),
    ("crossover sdpa linear --phase decode --metric memory,state",
     ("For head width 64, sdpa needs less memory beside the state than linear at every length, and "
      "linear needs less decoding state than sdpa from 33 tokens on.")),
    ("compare -a taylorshift,taylor-direct --seq 100,1 --scope core",  # the longest, not the last
     "At 100 tokens taylor-direct needs the same FLOPs and memory as taylorshift."),
    ("compare -a low-rank,efficient,taylor-efficient --seq 65536 --scope core",
     "At 65,536 tokens low-rank needs the fewest FLOPs and the least memory."),
    ("crossover --d 64",
     ("For head width 64, taylor-efficient needs fewer FLOPs than taylor-direct from 4,194 tokens "
     "on, and less memory from 2,237 tokens on.")),
    ("crossover --d 8,64 --metric flops",
     ("For head widths 8 and 64, taylor-efficient needs fewer FLOPs than taylor-direct from 78 "
     "tokens (head width 8) to 4,194 (head width 64) on.")),
    ("crossover standard low-rank --d 1,32,64 --metric flops",
     ("For head widths 1 to 64, low-rank needs fewer FLOPs than standard from 129 tokens (head "
      "widths 32 and 64) to 143 (head width 1) on.")),
    ("crossover standard linear --metric memory --kind formula",
     "For head width 64, linear needs less memory than standard from 129 tokens on."),
    ("crossover nystromformer linear --metric memory --kind formula",
     ("For head width 64, nystromformer needs less memory than linear from 170 tokens on "
      "(below that they change places, too).")),
    ("heads we --scope layer --d-model 64 --seq 16",
     "At 16 tokens and d_model 64, we needs the same FLOPs with any number of heads."),
    ("heads standard linear --heads 2,8 --d-model 64 --seq 16",
     ("At 16 tokens and d_model 64, among these numbers of heads, standard needs the fewest FLOPs "
      "with 2 heads of width 32 and linear with 8 heads of width 8.")),
    ("heads linear --quantity peak_entries",
     ("At 1,024 tokens and d_model 512, linear needs the least memory with 32 heads of width 16 or "
      "64 heads of width 8.")),
    ("heads --heads 2", ""),
    (f"heatmap sparse neural {FORMULA} --seq 64 --d-model 64 --heads 1,4 --quantity state_entries",
     ("On average over all sizes, sparse needs the same state entries as neural with 1 head and "
      "the same with 4 heads.")),
    (f"heatmap taylorshift standard {FORMULA} --phase prefill --heads 1 --seq 16,100 --d-model 7,8",
     "On average over all sizes, taylorshift needs 0.0564 % more FLOPs than standard with 1 head."),
    ("heads --d-model 512 --seq 1024",
     ("At 1,024 tokens and d_model 512, taylor-direct needs the fewest FLOPs with 1 head of width "
     "512 and taylor-efficient with 512 heads of width 1.")),
    ("heatmap standard efficient",
     ("On average over all sizes, standard needs 30 % more FLOPs than efficient with 1 head and "
     "16 % more with 8 heads.")),
])  # fmt: skip
def test_the_answer_is_a_sentence(attnprof, words, said):
    assert answer(attnprof, words) == said


def test_reasons_of_skipped_mechanisms_stand_at_the_margin(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = attnprof("compare -a standard,linformer,low-rank --phase decode").out
    refused = out[out.index("skipped:") :].partition("\n\n")[0].splitlines()
    starts = [line.split()[:2] for line in refused if not line.startswith("  ")]
    assert starts == [["skipped:", "linformer"], ["skipped:", "low-rank"]]
    assert all(len(line) <= 80 for line in refused)
