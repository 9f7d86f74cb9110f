"""Formulas that sources of public numbers print are read, and conventions are told apart.

``reports/models/published.csv`` has a row a number; each is made again from its model's own code in
:mod:`tests.models.test_public`.
"""

import csv
import json
import re
from functools import cache
from pathlib import Path

import pytest

from attnprof.models.mfu_sizes import sizes_of
from attnprof.trace.sizes import evaluate
from attnprof.verify.model_formula import model_formula_report
from attnprof.verify.printed import read_formula

pytest.importorskip("transformers")

_FILE = Path(__file__).parents[2] / "reports" / "models" / "published.csv"
ROWS = list(csv.DictReader(_FILE.read_text(encoding="utf-8").splitlines()))
ROWS = {
    row["id"]: row for row in ROWS if not row["checked"].startswith(("off", "not recomputable"))
}
FORMULAS = [name for name, row in ROWS.items() if row["quantity"] == "expression"]


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


@pytest.mark.parametrize("name", FORMULAS)
def test_a_printed_formula_is_read_and_gives_its_number(name):
    row, numbers = ROWS[name], {}
    for key, value in {**json.loads(row["config"]), **json.loads(row["setting"])}.items():
        if type(value) in (int, float):
            numbers[key] = read_formula(repr(value))
    text = json.loads(row["setting"])["expression"]
    text = text.replace("2**20", "1048576").replace("2**30", "1073741824")  # powers end at 16
    ours = evaluate(read_formula(text, numbers), {})
    assert agrees(row, ours), (row["value"], float(ours))


def test_the_formula_that_counts_all_experts_is_told_so():
    row = ROWS["flops-titan-qwen3-30b-hf"]
    report = model_formula_report(sizes(row["config"]), "6*P + 6*L*h*d*N", "train", 8192)
    told = {record.term: record for record in report.records}
    assert told["all"].theirs_value == int(row["value"])
    unmet = (128 - 8) * 3 * 2048 * 768 * 48
    assert told["experts that a token does not meet"].difference == str(6 * unmet)
    assert told["embedding tables"].difference == str(6 * 151936 * 2048)
