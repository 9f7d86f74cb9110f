"""Public numbers of models: each is made again, or is an erratum that its own rule explains."""

import importlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def report():
    return _loaded()


def _loaded():
    """The report's script, which has the rows and how each is made again."""
    before = list(sys.path)
    sys.path.insert(0, str(REPORTS))
    try:
        return importlib.import_module("models.public")
    finally:
        sys.path[:] = before


ROWS = _loaded().published()


@pytest.mark.parametrize("name", ROWS)
def test_a_public_number_is_made_again(name, report):
    row = ROWS[name]
    ours = report.beside_ours(row)
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


def test_right_values_of_errata_are_those_of_the_table(report):
    stated = {
        name: text.partition("right value ")[2].split()[0].rstrip("x;")
        for name, row in ROWS.items()
        if "right value " in (text := row["checked"].replace("right value is", "right value"))
    }
    stated |= {"dec-ds-ratio-405b": "7.34", "kv-vllm-40691-tokens": str(1487 * 32768 // 45)}
    for name, value in stated.items():
        ours = report.beside_ours(ROWS[name])
        if ours.verdict == report.ERRATUM:
            tolerance = max(report.half_a_digit(value), 1e-6 * float(value))
            assert abs(float(ours.ours) - float(value)) <= tolerance, name


def test_the_page_lists_every_row_and_every_verdict():
    page = (REPORTS / "models" / "public.md").read_text(encoding="utf-8")
    table = (REPORTS / "models" / "public.csv").read_text(encoding="utf-8")
    for name in ROWS:
        assert f"| {name} |" in page
        assert f",{name}," in table


def test_a_replay_does_not_see_the_value(report):
    row = {**ROWS["kv-sglang-dsv3-fp8"], "value": "1", "how": "", "checked": "exact"}
    assert report.replayed(row) == report.replayed(ROWS["kv-sglang-dsv3-fp8"])
    assert report.verdict_of(row, report.replayed(row)) == "no match"


def test_configurations_and_settings_are_json():
    for row in ROWS.values():
        assert isinstance(json.loads(row["config"]), dict)
        assert isinstance(json.loads(row["setting"]), dict)
