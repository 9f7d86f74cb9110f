"""attnprof heatmap: exact cells, means and maxima, figures with their CSV, refusals."""

from fractions import Fraction

import pytest

import attnprof as package
from attnprof import registry
from attnprof.closed_form.quantities import quantity_of

#: 000, Eq 24: the constants beside l·d_model.
CONSTANTS = {"standard": 15, "optimised": 12, "efficient": 9, "super": 12}


def eq24(name, seq_len, d_model, num_heads):
    return CONSTANTS[name] * seq_len * d_model + 15 * num_heads * seq_len**2


def test_defaults_reproduce_the_documents_means_and_maxima(attnprof):
    summary = attnprof("heatmap", "--format", "json").json["summary"]
    means = {heads: round(value, 2) for heads, value in summary["mean_excess_percent"].items()}
    maxima = {heads: round(value, 2) for heads, value in summary["max_excess_percent"].items()}
    assert means == {"1": 29.68, "2": 24.85, "4": 20.33, "8": 16.20}
    assert maxima == {"1": 66.56, "2": 66.45, "4": 66.24, "8": 65.81}


@pytest.mark.parametrize("pair", [("standard", "efficient"), ("super", "optimised")])
def test_published_cells_are_the_printed_formula_on_every_cell(attnprof, pair):
    ended = attnprof("heatmap", *pair, "--seq 1,7,96 --d-model 5,64 --heads 3,8 -f json")
    records = ended.json["records"]
    assert [(r["num_heads"], r["seq_len"], r["d_model"]) for r in records] == [
        (h, n, width) for h in (3, 8) for n in (1, 7, 96) for width in (5, 64)
    ]
    for r in records:
        a, b = (eq24(name, r["seq_len"], r["d_model"], r["num_heads"]) for name in pair)
        assert (r["value_a"], r["value_b"], r["ratio"]) == (a, b, a / b)
        assert (r["kind"], r["quantity"], r["phase"]) == ("published", "flops", "train")
    assert ended.err == ""


def test_matrix_products_follow_the_closed_ratio_for_every_head_count(attnprof):
    ended = attnprof("heatmap --kind formula --quantity matmul_flops --format json")
    report = ended.json
    for r in report["records"]:
        n, width = r["seq_len"], r["d_model"]
        if width % r["num_heads"]:
            assert (r["value_a"], r["value_b"], r["ratio"]) == (None, None, None)
        else:
            assert Fraction(r["value_a"], r["value_b"]) == Fraction(2 * width + n, width + n)
    assert report["summary"]["mean_excess_percent"]["1"] == pytest.approx(50, abs=1e-9)
    assert report["summary"]["null_cells"] == 11 * (1 + 2 + 3)
    assert report["summary"]["not_divisible_d_model"] == {"2": [1], "4": [1, 2], "8": [1, 2, 4]}
    assert "66 of 484 cells" in ended.err
    assert "8 heads: d_model 1, 2, 4" in ended.err


@pytest.mark.parametrize(("pair", "phase", "quantity", "causal"), [
    ("standard efficient", "train", "flops", False),
    ("standard sdpa", "backward", "bytes_moved", True),
    ("super optimised", "forward", "peak_bytes", False),
    ("taylor-direct taylor-efficient", "train", "flops", True),
    ("taylor-direct taylorshift", "forward", "peak_entries", True),
    ("standard taylor-efficient", "train", "peak_bytes", True),
    ("standard super", "forward", "operations", True),
    ("standard efficient", "decode", "state_entries", False),
    ("optimised efficient", "train", "parameters", True),
])  # fmt: skip
def test_the_grid_agrees_with_one_workload_at_a_time(attnprof, pair, phase, quantity, causal):
    ended = attnprof(
        f"heatmap {pair} --kind formula --phase {phase} --quantity {quantity} --batch 3 -f json",
        f"--{'' if causal else 'no-'}causal --dtype float16 --seq 1,2,5,64 --d-model 1,2,6,32",
        "--heads 1,2",
    )
    assert ended.code == 0, ended.err
    for r in ended.json["records"]:
        if r["d_model"] % r["num_heads"]:
            continue
        work = package.Workload(
            r["seq_len"], r["num_heads"], r["d_model"] // r["num_heads"], 3,
            causal=causal, phase=phase, dtype="float16",
        )  # fmt: skip
        for name, value in zip(pair.split(), (r["value_a"], r["value_b"]), strict=True):
            assert value == quantity_of(registry.get(name), work, "layer", quantity), r


def test_values_above_64_bits_stay_exact(attnprof):
    big = 2**40
    words = f"heatmap --seq {big} --d-model {big} --heads 1 --format json"
    [cell] = attnprof(words).json["records"]
    assert cell["value_a"] == eq24("standard", big, big, 1)
    [cell] = attnprof(words, "--kind formula").json["records"]
    work = package.Workload(big, 1, big, phase="train")
    assert cell["value_a"] == package.cost("standard", work).flops


def test_a_figure_has_its_csv_beside_it_by_either_flag(attnprof, tmp_path):
    written = []
    for flag in ("--plot", "--output"):
        folder = tmp_path / flag
        folder.mkdir()
        assert attnprof(f"heatmap --seq 1:64:x2 --heads 1 {flag} {folder}/ratio.svg").code == 0
        assert sorted(p.name for p in folder.iterdir()) == ["ratio.csv", "ratio.svg"]
        written.append([(folder / f"ratio.{suffix}").read_text() for suffix in ("svg", "csv")])
    assert written[0] == written[1]
    assert len(written[0][1].splitlines()) == 1 + 7 * 11


SMALL = "heatmap --seq 8,16 --d-model 8,16 --heads 1"


def test_alone_it_leaves_a_figure_and_its_cells_and_replaces_its_own(attnprof, tmp_path):
    ended = attnprof(SMALL)
    assert (ended.code, ended.err) == (0, "wrote heatmap.png and heatmap.csv\n")
    assert "mean excess" in ended.out
    figure, cells = tmp_path / "heatmap.png", tmp_path / "heatmap.csv"
    first = figure.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert cells.read_text() == attnprof(SMALL, "--format csv").out
    assert attnprof(SMALL.replace("8,16 --h", "8,32 --h")).code == 0
    assert figure.read_bytes() != first
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("asked", ["--no-plot", "-f json", "-o cells.json"])
def test_a_programs_answer_and_the_table_alone_draw_nothing(attnprof, tmp_path, asked):
    assert attnprof(SMALL, asked).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["cells.json"] * ("-o" in asked)


def test_alone_it_refuses_to_replace_what_is_not_its_own(attnprof, tmp_path):
    for name in ("heatmap.png", "heatmap.csv"):
        (tmp_path / name).write_text("mine")
        ended = attnprof(SMALL)
        assert (ended.code, ended.out) == (2, "")
        assert f"{name}: nothing in it says that attnprof wrote it" in ended.err
        assert "--no-plot for the table alone" in ended.err
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
        (tmp_path / name).unlink()
    (tmp_path / "heatmap.png").write_text("mine")
    assert attnprof(SMALL, "--force").code == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_in_a_folder_that_takes_no_files_it_names_the_table_alone(attnprof, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    ended = attnprof(SMALL)
    assert ended.code == 2
    assert "the folder . cannot be written" in ended.err
    assert "--no-plot" in ended.err
    assert not list(tmp_path.iterdir())
