"""The command line of sweeps: grids from flags and files, tables that are always whole."""

import csv
import json
from pathlib import Path

import pytest

from attnprof.cli.plot import _ceilings
from attnprof.device import calibration
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.record import Report

QUICK = "--samples 3 --min-time 0 --max-time 0.1 --threads 1 --in-process --format json"


def test_a_sweep_from_flags_and_again_and_drawn(attnprof, tmp_path):
    line = f"sweep --attention standard,linear --seq 8:16:x2 --d-model 16 --heads 1,2 {QUICK}"
    line += " -o r.jsonl"
    first = attnprof(line)
    assert first.code == 0
    assert len(first.json["records"]) == 8
    assert "8 measured now" in first.err
    again = attnprof(line)
    assert "0 measured now, 8 there before" in again.err
    assert again.json["records"] == first.json["records"]
    assert "without" not in again.err
    assert "measured without --counts and --error, and" in attnprof(f"{line} --counts --error").err
    assert attnprof("plot r.jsonl -o r.svg").code == 0
    assert (tmp_path / "r.svg").read_text().startswith("<?xml")


def test_a_grid_file(attnprof, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text(
        '[[grid]]\nattention = ["longformer"]\nseq = [16, 32]\nd_model = 16\nheads = 2\n'
        "set = { window = [4, 8] }\ncausal = [false, true]\n"
    )
    done = attnprof(f"sweep --grid {grid} -o {tmp_path}/r.jsonl {QUICK}")
    assert done.code == 0
    points = {(r["params"]["window"], r["seq_len"], r["causal"]) for r in done.json["records"]}
    assert points == {(w, n, c) for w in (4, 8) for n in (16, 32) for c in (False, True)}


def test_a_table_beside_the_journal(attnprof, tmp_path, monkeypatch):
    ceilings = Ceilings("this", {"float32": 1e9}, 1e9, "a test")
    monkeypatch.setattr("attnprof.device.calibration.ceilings_of", lambda *_: ceilings)
    done = attnprof(f"sweep --attention standard --seq 8,16 --d-model 16 --heads 2 "
                    f"-o {tmp_path}/r.csv {QUICK}")  # fmt: skip
    assert done.code == 0
    with (tmp_path / "r.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [int(row["seq_len"]) for row in rows] == [8, 16]
    assert [json.loads(line)["record"]["seq_len"] for line in lines] == [8, 16]
    shares = [record["roofline_fraction"] for record in done.json["records"]]
    assert [float(row["roofline_fraction"]) for row in rows] == shares


def test_a_roofline_is_that_of_the_file_that_is_typed(tmp_path):
    calibration.save(Calibration(Ceilings("this", {"float32": 2e9}, 2e9, "a test"), "cpu", 1),
                     tmp_path / "c.json")  # fmt: skip
    stated = {"device": "this", "flops_per_s": {"float32": 1e9}, "bytes_per_s": 1e9, "source": ""}
    report = Report("profile", [], {"roofline": stated}, {"device_name": "this", "threads": 1})
    rates = [_ceilings([report], path)[0]["bytes_per_s"] for path in (None, tmp_path / "c.json")]
    assert rates == [1e9, 2e9]


def test_a_part_of_a_sweep_is_drawn(attnprof, tmp_path):
    sweep = Path(__file__).parents[1] / "render" / "data" / "factorial.jsonl"
    chosen = "--where mechanism=standard,linear --where seq_len=64 --where num_heads=2"
    done = attnprof(f"plot {sweep} --kind width {chosen} -o {tmp_path}/r.svg")
    assert (done.code, done.err.splitlines()[-1]) == (0, f"wrote {tmp_path}/r.svg")
    assert "warn" not in done.err.lower()
    drawn = (tmp_path / "r.svg").read_text()
    assert "<!-- linear -->" in drawn
    assert "<!-- sdpa -->" not in drawn
    done = attnprof(f"plot {sweep} --where d_model=65 -o {tmp_path}/r.svg")
    assert (done.code, "no result has d_model=65; it is 32 or 64 here" in done.err) == (2, True)


@pytest.mark.parametrize(("where", "said"), [
    ("seqlen=64", "results have no seqlen; did you mean seq_len?"),
    ("heads=2", "results have no heads; did you mean num_heads or head_dim"),
    ("nonsense=2", "possible: mechanism, head_dim, phase"),
    ("mechanism=standard,linaer", "no result has mechanism=linaer; it is standard or sdpa"),
    ("seq_len=64,65", "no result has seq_len=65"),
])  # fmt: skip
def test_a_size_that_results_lack_is_not_left_out_of_a_figure_silently(
    attnprof, tmp_path, where, said
):
    sweep = Path(__file__).parents[1] / "render" / "data" / "factorial.jsonl"
    done = attnprof(f"plot {sweep} --where {where} -o {tmp_path}/r.svg")
    assert (done.code, said in " ".join(done.err.split())) == (2, True), done.err
    assert not (tmp_path / "r.svg").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("", "no grid"), ("[[grid]]\nseq = 8\n", "needs attention"),
    ('[[grid]]\nattention = "standard"\nseq = 8\nlayers = 3\n', "unknown key 'layers'"),
    ("[[grid", "cannot read"),
])  # fmt: skip
def test_a_wrong_grid_file_is_told(attnprof, tmp_path, text, said):
    grid = tmp_path / "grid.toml"
    grid.write_text(text)
    done = attnprof(f"sweep --grid {grid} -o {tmp_path}/r.jsonl")
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "r.jsonl").exists()


def test_modules_are_swept_with_their_arguments(attnprof, tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\n\nclass Map(nn.Module):\n"
        "    def __init__(self, wide, bias=True):\n        super().__init__()\n"
        "        self.map = nn.Linear(wide, wide, bias=bias)\n\n"
        "    def forward(self, x):\n        return self.map(x)\n"
    )
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'[[grid]]\nattention = "{tmp_path}/own.py:Map"\nseq = [8, 16]\nd_model = 12\nheads = 3\n'
        'arg = ["wide=h*d", "bias=False"]\ninput = ["x: B, N, h*d"]\n'
    )
    done = attnprof(f"sweep --grid {grid} -o {tmp_path}/r.jsonl {QUICK}")
    assert done.code == 0
    assert [r["parameters"] for r in done.json["records"]] == [144, 144]
    assert [r["matmul_flops_derived"] for r in done.json["records"]] == [2304, 4608]
