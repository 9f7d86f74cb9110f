"""Public numbers: FLOPs of trainers' tests and papers, and parameters, replayed row by row.

``mfu_public.csv`` has a row a number: the model's sizes, the setting, the value, its source and how
far it can be recomputed. Configurations there name no type: the type that has such layers is found.
"""

import csv
import json
import re
from functools import cache
from pathlib import Path

import pytest

import attnprof
from attnprof.models.conventions import count
from attnprof.models.flops_terms import sequence_flops
from attnprof.models.mfu import flops_of
from attnprof.models.mfu_sizes import sizes_of
from attnprof.trace.sizes import evaluate
from attnprof.verify.model_formula import model_formula_report
from attnprof.verify.printed import read_formula

pytest.importorskip("transformers")

_FILE = Path(__file__).with_name("mfu_public.csv")
ROWS = list(csv.DictReader(_FILE.read_text(encoding="utf-8").splitlines()))
ROWS = {
    row["id"]: row for row in ROWS if not row["checked"].startswith(("off", "not recomputable"))
}
FORMULAS = [name for name, row in ROWS.items() if row["quantity"] == "expression"]
COUNTED = [name for name in ROWS if name not in FORMULAS]


@cache
def sizes(config):
    return sizes_of(json.loads(config))


def tolerance(row):
    """How far a row's number may be off: its own statement, or half of its last digit."""
    text, checked = row["value"], row["checked"]
    if percent := re.match(r"within ([\d.]+) %", checked):
        return float(text) * float(percent[1]) / 100
    if not checked.startswith("exact to the digits"):
        return 0
    digits, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agrees(row, ours):
    return abs(ours - float(row["value"])) <= tolerance(row) * (1 + 1e-9)


@pytest.mark.parametrize("name", COUNTED)
def test_a_public_number_is_counted_from_the_models_own_code(name):
    row = ROWS[name]
    model, setting = sizes(row["config"]), json.loads(row["setting"])
    whole, active = (
        sum(getattr(x, y) for x in model.weights.values()) for y in ("entries", "active")
    )
    if row["quantity"] == "flops_train_batch":
        images = setting.get("image_seqlens", ())
        ours = flops_of(model, setting["seqlens"], setting["convention"], "train", images)
    elif row["quantity"] == "flops_per_token_train":
        config, length = json.loads(row["config"]), setting["context"]
        ours = attnprof.flops_per_token(config, length, "torchtitan")
    else:
        ours = {
            "params_total": whole, "params_active": active,
            "params_active_no_embedding": active - model.active("embedding"),
        }[row["quantity"]]  # fmt: skip
    assert agrees(row, ours), (row["value"], ours)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_printed_formula_is_read_and_gives_its_number(name):
    row, numbers = ROWS[name], {}
    for key, value in {**json.loads(row["config"]), **json.loads(row["setting"])}.items():
        if type(value) in (int, float):
            numbers[key] = read_formula(repr(value))
    ours = evaluate(read_formula(json.loads(row["setting"])["expression"], numbers), {})
    assert agrees(row, ours), (row["value"], float(ours))


#: Formulas that are a convention's count of the whole sequence.
MEGATRON = [
    "flops-bridge-llama3-8b", "flops-bridge-llama3-70b", "flops-bridge-qwen3-30b",
]  # fmt: skip


@pytest.mark.parametrize("name", MEGATRON)
def test_numbers_of_megatron_bridge_are_those_of_its_convention(name):
    row = ROWS[name]
    length = json.loads(row["setting"])["context"]
    assert agrees(row, flops_of(sizes(row["config"]), [length], "megatron", "train"))


def test_prime_rl_counts_a_token_as_megatron_does():
    row = ROWS["flops-prime-qwen3-06b"]
    assert attnprof.flops_per_token(json.loads(row["config"]), 1024, "megatron") == int(
        row["value"]
    )


@pytest.mark.parametrize("name", ["flops-ds-v3-250", "flops-ds-v2-155"])
def test_deepseeks_table_is_half_of_the_pairs_and_no_embedding(name):
    row = ROWS[name]
    ours = flops_of(sizes(row["config"]), [4096], "megatron", "train") / 4096
    assert abs(ours / 1e9 - float(row["value"])) < 1


def test_six_n_d_of_llama_405b_is_the_convention_of_that_name():
    row = ROWS["flops-llama3-405b-3.8e25"]
    setting = json.loads(row["setting"])
    model = sizes(row["config"])
    assert sequence_flops(count(model, "6n"), int(setting["tokens"])) == 6 * setting["P"] * int(
        setting["tokens"]
    )


def test_the_formula_that_counts_all_experts_is_told_so():
    row = ROWS["flops-titan-qwen3-30b-hf"]
    report = model_formula_report(sizes(row["config"]), "6*P + 6*L*h*d*N", "train", 8192)
    told = {record.term: record for record in report.records}
    assert told["all"].theirs_value == int(row["value"])
    unmet = (128 - 8) * 3 * 2048 * 768 * 48
    assert told["experts that a token does not meet"].difference == str(6 * unmet)
    assert told["embedding tables"].difference == str(6 * 151936 * 2048)
