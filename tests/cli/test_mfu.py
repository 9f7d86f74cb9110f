"""``attnprof model --mfu`` and ``attnprof verify-formula --model``, as typed."""

import json
import subprocess
import sys

import pytest

from attnprof.models.conventions import NAMES_OF_CONVENTIONS
from tests.models.test_mfu import DENSE, by_hand

pytest.importorskip("transformers")


@pytest.fixture
def config(tmp_path):
    """A small model's config.json, in the folder that commands run in."""
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    return "config.json"


def test_every_convention_and_phase_has_a_record(attnprof, config):
    report = attnprof(f"model {config} --mfu --seq 100 --format json").json
    rows = {(row["convention"], row["phase"]): row for row in report["records"]}
    assert [*rows] == [(x, y) for x in NAMES_OF_CONVENTIONS for y in ("forward", "train")]
    for name, flops in by_hand(100).items():
        row = rows[name, "train"]
        assert (row["flops"], row["flops_per_token"]) == (flops, flops // 100)
    assert "embedding tables" in rows["palm", "train"]["dropped"]
    assert rows["executed", "train"]["dropped"] == ""


def test_one_convention_of_a_packed_batch(attnprof, config):
    ended = attnprof(f"model {config} --mfu --convention verl --lengths 512,1024,512 -f json")
    rows = ended.json["records"]
    total = sum(by_hand(n)["verl"] for n in (512, 1024, 512))
    assert [row["convention"] for row in rows] == ["verl", "verl"]
    assert rows[1]["flops"] == total
    assert rows[1]["tokens"] == 2048


def test_tables_say_the_answer_the_terms_and_what_differs(attnprof, config):
    out = attnprof(f"model {config} --mfu --seq 4096").out
    for words in ("a trained token executes", "a trained token, by term",
                  "palm against executed: attention over pairs: causal counted full"):  # fmt: skip
        assert words in out


def test_the_python_file_runs_alone_and_is_written_again_without_force(attnprof, config):
    for _ in range(2):
        assert attnprof(f"model {config} --mfu --as-python flops.py").code == 0
    printed = subprocess.run(
        [sys.executable, "-I", "-S", "flops.py"], capture_output=True, text=True, check=True
    )
    assert "shapes agree with attnprof" in printed.stdout


def test_a_formula_is_told_its_errors_and_the_command_ends_with_one(attnprof, config):
    ended = attnprof(f"verify-formula --model {config} -f json", ("6*P + 12*L*h*d*N",))
    assert ended.code == 1
    assert ended.json["summary"]["conventions"] == ["palm (train)"]
    assert "palm (train)" in ended.err
    differences = [row["what"] for row in ended.json["records"]]
    assert any("causal counted full" in what for what in differences)


def test_a_right_formula_ends_with_zero_and_a_table_shows_it(attnprof, config):
    text = "6*(P - E - 7*D) + 7*L*h*d*(N + 1)"
    ended = attnprof(f"verify-formula --model {config}", (text,))
    assert ended.code == 0
    assert "the formula is what a train pass executes" in ended.out
    forward = attnprof(f"verify-formula --model {config} --phase forward", ("2*P",))
    assert forward.code == 1
    assert "attention over pairs" in forward.out
    unknown = attnprof(f"verify-formula --model {config} 6*Q")
    assert (unknown.code, "nothing here is called Q" in unknown.err) == (2, True)
