"""Whole models' times: what is priced is what runs, and fit tells it by its basis."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")

from attnprof.cli.app import main
from attnprof.device import calibration, calibration_run, model_times
from attnprof.device.calibration import Calibration, load_by_words
from attnprof.device.ceilings import Ceilings
from attnprof.device.model_times import PHASES, measured_time, phase_demand, phase_subject
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget
from attnprof.models.sources import hub_subject
from tests.device.test_prediction import made_up

CALIBRATION = Path(__file__).parents[2] / "reports" / "times" / "devices" / "cpu.json"
TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "dtype": "float32",
}  # fmt: skip
MODELS = {
    "llama": TEXT,
    "mistral": {**TEXT, "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "bert": TEXT,
    "t5": {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 48, "vocab_size": 64},
}


QUICK = Budget(samples=3, min_time_s=0.0, max_time_s=0.1, warmup_s=0.0)
MIXTRAL = {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2}


def whole(name):
    return hub_subject({"model_type": name, **{**MODELS, "mixtral": MIXTRAL}[name]}, name)


def priced_products(name, phase):
    """FLOPs of the products that are priced, of two texts of twelve tokens."""
    demand = phase_demand(whole(name), phase, {"B": 2, "N": 12}, "float32")
    shapes = [call.sizes for call in demand.operations if call.form == "product"]
    return sum(2 * b * m * n * k for b, m, n, k in shapes)


@pytest.mark.parametrize(("name", "phase"), [
    *(("llama", phase) for phase in PHASES), ("mistral", "decode"), ("gpt2", "train"),
    ("bert", "prefill"), ("t5", "decode"), ("t5", "train"),
])  # fmt: skip
def test_priced_products_are_those_of_torchs_counter(name, phase):
    priced = priced_products(name, phase)
    subject = phase_subject(whole(name), phase, {"B": 2, "N": 12}, "float32")
    subject.prepare()
    with FlopCounterMode(display=False) as counter:
        subject.call()
    counted = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in counted.items() if "scaled_dot" not in str(op))
    assert priced == products > 0


def test_experts_are_priced_as_products_of_the_rows_that_choose_them():
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 32 * 4 + 2 * 3 * 32 * 48  # maps, router, two experts
    assert priced_products("mixtral", "prefill") == 2 * (24 * 2 * layer + 2 * 32 * 64)
    once = 2 * 24 * (2 * layer + 32 * 64)
    first = 2 * 24 * (32 * 32 + 2 * 32 * 16)  # the table's gradient is a lookup's
    assert priced_products("mixtral", "train") in (3 * once, 3 * once - first)


def test_a_decoded_token_sees_the_same_cache_at_each_call():
    subject = phase_subject(whole("llama"), "decode", {"B": 1, "N": 9}, "float32")
    results = []
    for _ in range(2):
        subject.prepare()
        results.append(subject.call().logits)
    assert torch.equal(*results)


def test_a_measured_time_lies_in_its_interval():
    time = measured_time(whole("llama"), "prefill", {"B": 1, "N": 8}, "float32", QUICK)
    assert 0 < time.low_s <= time.seconds <= time.high_s


def fitted(capsys, tmp_path, *words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **TEXT}))
    with pytest.raises(SystemExit) as ended:
        main(["fit", str(path), "--memory", "1GB", "--seq", "16", "-f", "json", *words])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)["summary"]["speed"]


def test_fit_tells_calibrated_times_with_an_interval(capsys, tmp_path):
    assert load_by_words("EPYC", CALIBRATION) is not None, (
        "run: python reports/run.py times/predictions"
    )
    words = ("--on", "EPYC", "--calibration", str(CALIBRATION), "--dtype", "float32")
    speed = fitted(capsys, tmp_path, *words, "--batch", "3")
    figures = {figure["quantity"]: figure for figure in speed["figures"]}
    assert {figure["basis"] for figure in figures.values()} == {"calibrated"}
    for figure in figures.values():
        assert 0 < figure["low"] < figure["value"] < figure["high"]
    each, together = figures["request_tokens_per_s"], figures["all_tokens_per_s"]
    assert together["value"] == pytest.approx(3 * each["value"])


def test_fit_says_that_this_machine_is_slower_than_it_was(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration_run, "machine_speed", lambda *_: (3e-6, 1.0, 0.9))
    rates, path = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "a test"), tmp_path / "c"
    tables = {"float32": made_up()}
    calibration.save(
        Calibration(rates, "cpu", torch.get_num_threads(), tables, reference_s=1e-6), path
    )
    speed = fitted(
        capsys, tmp_path, "--on", "cpu", "--calibration", str(path), "--dtype", "float32"
    )
    assert "3.0 times slower now" in " ".join(speed["notes"])
    first = next(one for one in speed["figures"] if one["quantity"] == "first_token_s")
    assert first["high"] / first["value"] == pytest.approx(3 * first["value"] / first["low"])


def test_fit_tells_measured_times_of_random_weights(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(model_times, "BUDGET", QUICK)
    nothing = str(tmp_path / "none.json")
    words = ("--on", "cpu", "--measure", "--dtype", "float32", "--calibration", nothing)
    speed = fitted(capsys, tmp_path, *words)
    assert any("attnprof calibrate" in note for note in speed["notes"])
    figures = speed["figures"]
    assert [figure["basis"] for figure in figures] == ["measured"] * 3
    assert all(0 < x["low"] <= x["value"] <= x["high"] for x in figures)


def test_what_has_no_calibrated_time_is_noted(capsys, tmp_path):
    words = ("--on", "EPYC", "--calibration", str(CALIBRATION))
    speed = fitted(capsys, tmp_path, *words, "--dtype", "q8_0")
    assert not speed["figures"]
    assert any("q8_0" in note for note in speed["notes"])
    speed = fitted(capsys, tmp_path, *words, "--dtype", "float32", "--tensor-parallel", "2")
    assert any("ranks" in note for note in speed["notes"])


def test_bounds_come_with_a_command_that_measures_them(capsys, tmp_path):
    speed = fitted(capsys, tmp_path, "--on", "h100", "--batch", "2")
    assert {figure["basis"] for figure in speed["figures"]} == {"bound"}
    assert "--input-len 16 --output-len 1 " in speed["checks"]["the first token"]
    assert "--batch-size 2" in speed["checks"]["tokens a second"]
    first = next(x for x in speed["figures"] if x["quantity"] == "first_token_s")
    assert (first["low"], first["high"]) == (first["value"], None)


def test_measuring_is_for_devices_that_are_here(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "llama-3.2-1b", "--on", "h100", "--measure"])
    assert ended.value.code == 2
    assert "--on cpu" in capsys.readouterr().err
