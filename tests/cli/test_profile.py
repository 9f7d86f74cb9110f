"""``profile``: lists, formats, exit codes; modules of somebody's own beside mechanisms."""

import json

import pytest

import attnprof
from attnprof.device import calibration, calibration_run
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.tables import TimeTable
from attnprof.errors import CannotRunError
from attnprof.measure.counters import DerivedCount
from attnprof.measure.environment import device_name

CODE = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads, bias=True):
        super().__init__()
        self.h = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return y.transpose(1, 2).reshape(b, n, c), None


def core(q, k, v):
    return (q @ k.transpose(-1, -2)) @ v
"""
TABLE = "--samples 3 --min-time 0 --max-time 0.1 --threads 1"
QUICK = f"{TABLE} --format json"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(CODE)
    return path


def test_a_module_is_measured_beside_a_mechanism(attnprof, mine):
    words = "--seq 24 --d-model 32 --heads 4 --batch 2 --phase train"
    done = attnprof(f"profile --attention {mine}:Attention,standard", words, QUICK)
    assert done.code == 0
    module, standard = done.json["records"]
    assert module["flops_formula"] is None
    products = 2 * 2 * 24 * 32 * 96 + 2 * 2 * 2 * 24 * 24 * 32
    assert module["flops_torch"] == module["matmul_flops_derived"] == 3 * products
    assert module["peak_bytes_measured"] == pytest.approx(module["peak_bytes_predicted"], rel=1e-3)
    assert module["parameters"] == 32 * 96 + 96
    assert module["median_s"] > 0
    assert module["skipped"] is None
    assert standard["flops_formula"] is not None


SMALL = "--seq 8 --d-model 8 --heads 2"


def test_arguments_functions_and_a_process_of_its_own(attnprof, mine):
    words = f"profile --attention {mine}:Attention --arg bias=False --isolate {SMALL} {QUICK}"
    (row,) = attnprof(words).json["records"]
    assert row["parameters"] == 8 * 24
    assert row["median_s"] > 0
    (row,) = attnprof(f"profile --attention {mine}:core {SMALL} {QUICK}").json["records"]
    assert row["matmul_flops_derived"] == 2 * 2 * 8 * 8 * 8


@pytest.mark.parametrize(("more", "said"), [
    ("--phase decode", "no decoding step"), ("--set bias=false", "--arg"),
])  # fmt: skip
def test_what_a_module_cannot_is_said(attnprof, mine, more, said):
    done = attnprof(f"profile --attention {mine}:Attention {SMALL} {more} {QUICK}")
    assert done.code == 2
    assert said in done.err


ODD = """
import sys
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


class Blocks(nn.Module):
    def forward(self, x):
        b, n, d = x.shape
        if n % 64:
            raise ValueError(f"{n} tokens are no blocks of 64")
        y = x.reshape(b, n // 64, 64, d)
        return (y @ y.mT @ y).reshape(b, n, d)


class Asserts(nn.Module):
    def forward(self, x):
        assert x.shape[1] % 64 == 0
        return x * 2.0


class Exits(nn.Module):
    def forward(self, x):
        sys.exit(5)


class NoGradient(nn.Module):
    def forward(self, x):
        return (x > 0).sum()


class OnlyWhenReal(nn.Module):
    def forward(self, x):
        if not isinstance(x, FakeTensor) and not x.is_meta:
            raise RuntimeError("not with real numbers")
        return x * 2.0


class Named(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x)


layer = Named(32)
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(ODD)
    return path


@pytest.mark.parametrize(("name", "how", "said"), [
    ("Blocks", "--in-process", "ValueError: 100 tokens are no blocks of 64 (odd.py:"),
    ("Asserts", "--in-process", "AssertionError in `assert x.shape[1] % 64 == 0` (odd.py:"),
    ("Exits", "--in-process", "SystemExit: 5 (odd.py:"),
    ("Exits", "--isolate", "SystemExit: 5 (odd.py:"),
    ("NoGradient", "--in-process --phase train", "no backward pass"),
    ("OnlyWhenReal", "--isolate", "not with real numbers"),
])  # fmt: skip
def test_a_module_that_does_not_run_at_a_length_is_refused(attnprof, odd, name, how, said):
    done = attnprof(f"profile --attention {odd}:{name} --seq 100 --d-model 8 --heads 2",
                    f"{how} {QUICK}")  # fmt: skip
    assert done.code in (2, 3)
    assert said in done.err + done.out.replace("\\", "")
    assert "bug" not in done.err


def test_a_length_that_is_refused_is_a_row_beside_those_that_are_not(attnprof, odd):
    done = attnprof(f"profile --attention {odd}:Blocks --seq 64,100 --d-model 8 --heads 2 {QUICK}")
    assert done.code == 0
    first, second = done.json["records"]
    assert first["median_s"] > 0
    assert first["contradicted"] is None
    assert "no blocks of 64" in second["skipped"]


QUICKLY = {"samples": 3, "min_time_s": 0, "max_time_s": 0.1, "d_model": 8, "num_heads": 2}
CEILINGS = Ceilings("this", {"float32": 1e9}, 1e9, "typed")


@pytest.mark.parametrize(("what", "name", "wrong"), [
    ("count_derived", "standard", DerivedCount(1, 1)),
    ("count_derived", "odd", DerivedCount(1, 1)),
    ("count_derived", "odd", DerivedCount(note="no derived counts")),
])  # fmt: skip
def test_a_contradicted_count_gives_no_rates(monkeypatch, odd, what, name, wrong):
    monkeypatch.setattr(f"attnprof.measure.counters.{what}", lambda *_: wrong)
    monkeypatch.setattr("attnprof.device.calibration.ceilings_of", lambda *_: CEILINGS)
    place = f"{odd}:Blocks" if name == "odd" else name
    (row,) = attnprof.profile(place, 64, **QUICKLY).records
    assert "unexplained difference" in row.contradicted
    rates = ("flops_per_s", "arithmetic_intensity", "roofline_time_s", "roofline_fraction", "bound")
    assert all(getattr(row, rate) is None for rate in rates)
    assert row.median_s > 0


def test_a_contradicted_peak_leaves_no_rates_where_counts_come_from_the_same_run(monkeypatch, odd):
    monkeypatch.setattr("attnprof.device.calibration.ceilings_of", lambda *_: CEILINGS)
    monkeypatch.setattr("attnprof.measure.counters.peak_differences", lambda *_, **__: [
        "unexplained difference of +4 bytes in peak memory"
    ])  # fmt: skip
    module, standard = attnprof.profile([f"{odd}:Blocks", "standard"], 64, **QUICKLY).records
    assert module.contradicted
    assert (module.flops_per_s, module.roofline_fraction) == (None, None)
    assert standard.contradicted is None
    assert standard.flops_per_s > 0
    assert standard.roofline_fraction > 0


def test_the_width_shown_is_the_module_s(attnprof, odd):
    (row,) = attnprof(f"profile --attention {odd}:Named --seq 8 {QUICK}").json["records"]
    assert (row["d_model"], row["num_heads"], row["head_dim"]) == (48, None, None)
    shown = attnprof(f"profile --attention {odd}:layer,standard --seq 8", TABLE)
    rows = " ".join(shown.out.split())
    assert "layer 8 32 – " in rows
    assert "standard 8 512 8 " in rows


READS_POLICY = """
import os
from pathlib import Path
Path(__file__).with_suffix(".txt").write_text(os.environ.get("OMP_WAIT_POLICY", "default"))
from torch import nn

class Same(nn.Module):
    def forward(self, x):
        return x * 2.0
"""


@pytest.mark.parametrize(
    "command",
    [
        "profile -a {}:Same --seq 8 --predict-only",
        "crossover {}:Same standard --metric time --kind predicted",
    ],
)
def test_a_wait_policy_is_set_before_the_users_module_imports_torch(
    attnprof, tmp_path, monkeypatch, command
):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = tmp_path / f"{command[:5]}.py"
    module.write_text(READS_POLICY)
    done = attnprof(f"{command.format(module)} --wait-policy active")
    assert "attnprof calibrate" in done.err
    assert module.with_suffix(".txt").read_text() == "ACTIVE"


# -- mechanisms ------------------------------------------------------------------------
def test_lists_give_a_record_for_each_mechanism_at_each_length(attnprof):
    report = attnprof("profile -a standard,sdpa --seq 32:64:x2 --d-model 64 --heads 4", QUICK).json
    rows = [(r["mechanism"], r["seq_len"]) for r in report["records"]]
    assert rows == [("standard", 32), ("sdpa", 32), ("standard", 64), ("sdpa", 64)]
    first = report["records"][0]
    assert len(first["times_s"]) >= 3
    assert first["roofline_fraction"] is None
    assert report["environment"]["threads"] == 1
    assert set(report["summary"]) == {"measured", "skipped", "fastest", "roofline", "answer"}
    assert (report["summary"]["measured"], report["summary"]["skipped"]) == (4, 0)
    assert report["summary"]["answer"].startswith("At 64 tokens sdpa takes ")


def test_the_table_puts_the_numbers_side_by_side_and_names_the_differences(attnprof):
    ended = attnprof("profile -a sdpa --seq 64 --d-model 32 --heads 2", TABLE)
    assert ended.code == 0
    for heading in ("matmul FLOPs (formula)", "torch's counter", "2x fvcore", "peak (measured)"):
        assert heading in ended.out
    assert ended.out.startswith("At 64 tokens sdpa takes ")
    assert "sdpa at 64 tokens: torch counts fused SDPA on CPU" in ended.err
    assert "torch counts" not in ended.out


def test_every_point_out_of_memory_ends_with_3_after_the_report(attnprof, tmp_path):
    target = tmp_path / "report.json"
    words = f"profile -a standard --seq 16777216 --device cpu -f json -o {target}"
    assert attnprof(words).code == 3
    (row,) = json.loads(target.read_text())["records"]
    assert "does not fit" in row["skipped"]
    assert row["matmul_flops_formula"] > 0


def test_one_point_out_of_memory_is_a_row_among_others(attnprof):
    ended = attnprof("profile -a standard --seq 32,16777216 --device cpu", QUICK)
    assert ended.code == 0
    assert [bool(r["skipped"]) for r in ended.json["records"]] == [False, True]


def test_a_module_is_checked_before_it_is_timed_unless_told_not_to(attnprof):
    for flag, checked in {"--check": "float64; standard", "--no-check": None}.items():
        ended = attnprof("profile -a sdpa --seq 16 --d-model 32 --heads 2", flag, QUICK)
        (record,) = ended.json["records"]
        assert (record["checked"], record["median_s"] > 0) == (checked, True)


@pytest.mark.parametrize(("phase", "shown", "hidden"), [
    ("train", ("activations", "gradients", "AdamW moments"), "KV cache"),
    ("decode", ("KV cache", "decoding state"), "gradients"),
])  # fmt: skip
def test_memory_is_shown_in_the_parts_of_the_phase(attnprof, phase, shown, hidden):
    words = f"profile -a standard --seq 24 --d-model 32 --heads 2 --phase {phase}"
    out = attnprof(words, TABLE).out
    assert all(title in out for title in shown)
    assert hidden not in out


def test_a_second_format_is_added_to_a_calibration_that_is_there(attnprof, tmp_path, monkeypatch):
    before = []

    def calibrate(_device, dtypes, _seconds, **how):
        before.append(how["before"])
        ceilings = Ceilings(device_name("cpu"), dict.fromkeys(dtypes, 1e11), 1e10, "a test")
        tables = {dtype: {"product": TimeTable({(1, 8, 8, 8): 1e-6})} for dtype in dtypes}
        return Calibration(ceilings, "cpu", 1, tables)

    monkeypatch.setattr(calibration_run, "calibrate", calibrate)
    path = tmp_path / "c.json"
    for dtype in ("float32", "bfloat16"):
        command = f"calibrate --dtype {dtype} --threads 1 --calibration {path}"
        assert attnprof(command).code == 0
    assert before[0] is None
    assert set(before[1].tables) == {"float32"}
    assert set(json.loads(path.read_text())["ceilings"][0]["tables"]) == {"float32", "bfloat16"}


def test_a_file_of_calibrations_is_read_once_before_measuring(attnprof, tmp_path, monkeypatch):
    events, read = [], calibration.read_json

    def reading(path, *how):
        events.append(path.name)
        return read(path, *how)

    def calibrate(*_, **__):
        events.append("measured")
        raise CannotRunError("that is enough")

    monkeypatch.setattr(calibration, "read_json", reading)
    monkeypatch.setattr(calibration_run, "calibrate", calibrate)
    (tmp_path / "c.json").write_text('{"schema": "attnprof/1", "ceilings": []}\n')
    assert attnprof(f"calibrate --calibration {tmp_path / 'c.json'}").code == 3
    assert events == ["c.json", "measured"]
