"""Whole models' times: what is priced is what runs, and fit tells it by its basis."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")

from attnprof.device import calibration, calibration_run, model_times
from attnprof.device.calibration import Calibration, load_by_words
from attnprof.device.ceilings import Ceilings
from attnprof.device.model_times import PHASES, measured_time, phase_demand, phase_subject
from attnprof.measure.environment import device_name
from attnprof.models.sources import hub_subject
from tests.device.test_prediction import made_up
from tests.measure.samples import QUICK

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
    "mixtral": {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def whole(name):
    return hub_subject({"model_type": name, **MODELS[name]}, name)


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


@pytest.fixture
def fitted(attnprof, tmp_path):
    """A function that says what fit tells of a small model's speed."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TEXT}))

    def speed(words):
        ended = attnprof(f"fit config.json --memory 1GB --seq 16 -f json {words}")
        assert ended.code == 0
        return ended.json["summary"]["speed"]

    return speed


BY_CALIBRATION = f"--on EPYC --calibration {CALIBRATION} --dtype float32"


def test_fit_tells_calibrated_times_with_an_interval(fitted):
    assert load_by_words("EPYC", CALIBRATION) is not None, (
        "run: python reports/run.py times/predictions"
    )
    speed = fitted(f"{BY_CALIBRATION} --batch 3")
    figures = {figure["quantity"]: figure for figure in speed["figures"]}
    assert {figure["basis"] for figure in figures.values()} == {"calibrated"}
    for figure in figures.values():
        assert 0 < figure["low"] < figure["value"] < figure["high"]
    each, together = figures["request_tokens_per_s"], figures["all_tokens_per_s"]
    assert together["value"] == pytest.approx(3 * each["value"])


def test_fit_follows_a_machine_that_is_slower_than_it_was_and_says_so(
    fitted, tmp_path, monkeypatch
):
    rates, path = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "a test"), tmp_path / "c"
    tables = {"float32": made_up()}
    calibration.save(
        Calibration(rates, "cpu", torch.get_num_threads(), tables, reference_s=1e-6), path
    )
    firsts = []
    for reference_s, slower in ((1e-6, False), (3e-6, True)):
        monkeypatch.setattr(calibration_run, "machine_speed", lambda *_, s=reference_s: (s, 1.0, 1))
        speed = fitted(f"--on cpu --calibration {path} --dtype float32")
        assert ("3.0 times slower now" in " ".join(speed["notes"])) is slower
        firsts += [one for one in speed["figures"] if one["quantity"] == "first_token_s"]
    usual, now = firsts
    assert now["value"] == pytest.approx(3**0.5 * usual["value"])
    assert (now["low"], now["high"]) == pytest.approx((usual["low"], 3 * usual["high"]))


def test_fit_tells_measured_times_of_random_weights(fitted, monkeypatch, tmp_path):
    monkeypatch.setattr(model_times, "BUDGET", QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    speed = fitted("--on cpu --measure --dtype float32")
    assert any("attnprof calibrate" in note for note in speed["notes"])
    figures = speed["figures"]
    assert [figure["basis"] for figure in figures] == ["measured"] * 3
    assert all(0 < x["low"] <= x["value"] <= x["high"] for x in figures)


def test_what_has_no_calibrated_time_is_noted(fitted):
    speed = fitted(BY_CALIBRATION.replace("float32", "q8_0"))
    assert not speed["figures"]
    assert any("q8_0" in note for note in speed["notes"])
    speed = fitted(f"{BY_CALIBRATION} --tensor-parallel 2")
    assert any("ranks" in note for note in speed["notes"])


def test_bounds_come_with_a_command_that_measures_them(fitted):
    speed = fitted("--on h100 --batch 2")
    assert {figure["basis"] for figure in speed["figures"]} == {"bound"}
    assert "--input-len 16 --output-len 1 " in speed["checks"]["the first token"]
    assert "--batch-size 2" in speed["checks"]["tokens a second"]
    first = next(x for x in speed["figures"] if x["quantity"] == "first_token_s")
    assert (first["low"], first["high"]) == (first["value"], None)
