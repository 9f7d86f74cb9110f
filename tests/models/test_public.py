"""Public numbers and printed formulas of models: made again, or errata that a rule explains."""

import importlib
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from attnprof.algebra.values import evaluate
from attnprof.models.mfu_sizes import sizes_of
from attnprof.verify.model_formula import model_formula_report
from attnprof.verify.printed import read_formula

REPORTS = Path(__file__).parents[2] / "reports"


def _loaded():
    """The report's script, which has the rows and how each is made again."""
    before = list(sys.path)
    sys.path.insert(0, str(REPORTS))
    try:
        return importlib.import_module("models.public")
    finally:
        sys.path[:] = before


report = _loaded()
ROWS = report.published()


@cache
def ours_of(name):
    """The row of the report that stands beside a published number."""
    return report.beside_ours(ROWS[name])


@pytest.mark.parametrize("name", ROWS)
def test_a_public_number_is_made_again(name):
    row = ROWS[name]
    ours = ours_of(name)
    if row["checked"].startswith("not recomputable") or "dsa-toy" in name:
        assert ours.verdict == report.NOT_COMPUTABLE
        assert ours.why
    elif ours.verdict == report.ERRATUM:
        assert "erratum" in row["checked"] or "no convention" in row["checked"]
        assert ours.why
        assert ours.printed or ";" in ours.why
        assert abs(float(ours.ours) - float(row["value"])) > report.half_a_digit(row["value"])
    else:
        assert ours.verdict == report.MATCH, ours


def test_right_values_of_errata_are_those_of_the_table():
    stated = {
        name: text.partition("right value ")[2].split()[0].rstrip("x;")
        for name, row in ROWS.items()
        if "right value " in (text := row["checked"].replace("right value is", "right value"))
    }
    stated |= {"dec-ds-ratio-405b": "7.34", "kv-vllm-40691-tokens": str(1487 * 32768 // 45)}
    for name, value in stated.items():
        ours = ours_of(name)
        if ours.verdict == report.ERRATUM:
            tolerance = max(report.half_a_digit(value), 1e-6 * float(value))
            assert abs(float(ours.ours) - float(value)) <= tolerance, name


def test_the_page_lists_every_row_and_every_verdict():
    page = (REPORTS / "models" / "public.md").read_text(encoding="utf-8")
    table = (REPORTS / "models" / "public.csv").read_text(encoding="utf-8")
    for name in ROWS:
        assert f"| {name} |" in page
        assert f",{name}," in table


def test_a_replay_does_not_see_the_value():
    row = {**ROWS["kv-sglang-dsv3-fp8"], "value": "1", "how": "", "checked": "exact"}
    assert report.replayed(row) == report.replayed(ROWS["kv-sglang-dsv3-fp8"])
    assert report.verdict_of(row, report.replayed(row)) == "no match"


def test_configurations_and_settings_are_json():
    for row in ROWS.values():
        assert isinstance(json.loads(row["config"]), dict)
        assert isinstance(json.loads(row["setting"]), dict)


CHECKED = {
    name: row for name, row in ROWS.items()
    if not row["checked"].startswith(("off", "not recomputable"))
}  # fmt: skip
FORMULAS = [name for name, row in CHECKED.items() if row["quantity"] == "expression"]


def tolerance(row):
    """How far a row's number may be off: its own statement, or half of its last digit."""
    text, checked = row["value"], row["checked"]
    if percent := re.match(r"within ([\d.]+) %", checked):
        return float(text) * float(percent[1]) / 100
    if not checked.startswith("exact to the digits"):
        return 0
    return report.half_a_digit(text)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_printed_formula_is_read_and_gives_its_number(name):
    row, numbers = CHECKED[name], {}
    for key, value in {**json.loads(row["config"]), **json.loads(row["setting"])}.items():
        if type(value) in (int, float):
            numbers[key] = read_formula(repr(value))
    text = json.loads(row["setting"])["expression"]
    text = text.replace("2**20", "1048576").replace("2**30", "1073741824")  # powers end at 16
    ours = evaluate(read_formula(text, numbers), {})
    assert abs(ours - float(row["value"])) <= tolerance(row) * (1 + 1e-9), float(ours)


def test_the_formula_that_counts_all_experts_is_told_so():
    row = CHECKED["flops-titan-qwen3-30b-hf"]
    sizes = sizes_of(json.loads(row["config"]))
    records = model_formula_report(sizes, "6*P + 6*L*h*d*N", "train", 8192).records
    by_term = {record.term: record for record in records}
    assert by_term["all"].theirs_value == int(row["value"])
    unmet = (128 - 8) * 3 * 2048 * 768 * 48
    assert by_term["experts that a token does not meet"].difference == str(6 * unmet)
    assert by_term["embedding tables"].difference == str(6 * 151936 * 2048)
