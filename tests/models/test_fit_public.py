"""Caches in engines' logs, pages of hybrid models and files of weights, replayed by ``fit``.

``fit_public.csv`` has the numbers with their sources. Engines print memory to 0.01 GiB, so tokens
that follow from it are known to that much.
"""

import csv
import json
from functools import cache
from pathlib import Path

import pytest

from attnprof.models.fit_parts import FitOptions, aligned_block, fit_model, row_bytes, weight_bytes

TABLE = Path(__file__).parent / "fit_public.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
FORMATS = {2: "bfloat16", 1: "fp8", 4: "float32", 1.0625: "q8_0", 0.5625: "q4_0"}
#: Layers that the number is about, by the row's own note; extra bytes that a file's header has.
KINDS = {
    "kv-llamacpp-gptoss120b-full": "full", "kv-llamacpp-gptoss120b-swa": "sliding 128",
    "kv-llamacpp-gptoss20b-np8": "full", "kv-llamacpp-gptoss20b-np8-swa": "sliding 128",
}  # fmt: skip
DIGITS = 1e-9


@cache
def model(config):
    return fit_model(json.loads(config))


def of(quantity):
    return [pytest.param(row, id=row["id"]) for row in ROWS if row["quantity"] in quantity]


def read(row):
    setting = json.loads(row["setting"])
    options = FitOptions(
        memory=2**40, tensor_parallel=setting.get("tp", 1), block_size=setting.get("block", 1),
        cache_dtype=FORMATS[setting.get("kv_bytes", 2)],
    )  # fmt: skip
    if setting.get("bytes_per_token_layer") == 656:
        options = FitOptions(memory=2**40, cache_dtype="fp8_ds_mla")
    return model(row["config"]), setting, options


def half_a_digit(text):
    return 0.5 * 10 ** -len(text.partition(".")[2]) + DIGITS


@pytest.mark.parametrize("row", of(["kv_memory"]))
def test_the_memory_of_a_cache_in_a_log_is_ours(row):
    found, setting, options = read(row)
    kind = KINDS.get(row["id"])
    layers = [x for x in found.caches if kind in (None, x.kind)]
    each = sum(x.layers * row_bytes(x, options) for x in layers)
    tokens = setting["tokens"] + setting.get("extra_tokens", 0)
    unit = 2**30 if row["unit"] == "GiB" else 2**20
    assert float(tokens * each / unit) == pytest.approx(
        float(row["value"]), abs=half_a_digit(row["value"])
    )


@pytest.mark.parametrize("row", of(["kv_tokens_from_memory", "kv_blocks_from_memory"]))
def test_tokens_that_fit_are_a_logs_to_the_printed_memory(row):
    found, setting, options = read(row)
    each = sum(x.layers * row_bytes(x, options) for x in found.caches)
    block = setting["block"] if row["quantity"] == "kv_tokens_from_memory" else 1
    page = each * options.block_size
    low, high = ((setting["available_GiB"] + x) * 2**30 // page * block for x in (-0.005, 0.005))
    if "unexplained" in row["checked"]:  # another rank may have had less memory
        low *= 0.98
    assert low <= float(row["value"]) <= high


@pytest.mark.parametrize("row", of(["k_memory", "ssm_state_memory", "conv_state_memory"]))
def test_keys_states_and_tails_are_those_of_a_log(row):
    found, setting, options = read(row)
    if row["quantity"] == "k_memory":
        heads = [(x, -(-x.heads // options.tensor_parallel)) for x in found.caches]
        entries = setting["tokens"] * sum(x.layers * h * x.key_dim for x, h in heads)
        ours = entries * setting["kv_bytes"]
    else:
        name, size = ("state", 4) if row["quantity"] == "ssm_state_memory" else ("tail", 2)
        ours = setting["slots"] * size * sum(x.layers * getattr(x, name) for x in found.caches)
    assert ours / 2**30 == pytest.approx(float(row["value"]), abs=half_a_digit(row["value"]))


@pytest.mark.parametrize("row", of(["attention_block_aligned", "mamba_page_padding_percent"]))
def test_pages_of_hybrids_are_aligned_as_vllm_does(row):
    found, setting, options = read(row)
    block, padding = aligned_block(
        found, options, alignment=setting.get("alignment", 16),
        drafts=setting.get("speculative_tokens", 0), state_entry=setting["state_bytes"],
    )  # fmt: skip
    if row["quantity"] == "attention_block_aligned":
        assert block == int(row["value"])
    else:
        assert float(100 * padding) == pytest.approx(float(row["value"]), abs=0.005)


@pytest.mark.parametrize("row", of(["safetensors_total_size"]))
def test_bytes_of_weights_are_those_of_a_files_index(row):
    found, setting, _ = read(row)
    options = FitOptions(memory=2**40, dtype=FORMATS[setting["bytes"]])
    assert weight_bytes(found, options) + setting.get("extra_bytes", 0) == int(row["value"])


@pytest.mark.parametrize("row", of(["kv_bytes_per_token"]))
def test_bytes_of_a_token_are_those_of_a_paper(row):
    found, _, options = read(row)
    each = sum(x.layers * row_bytes(x, options) for x in found.caches)
    assert float(each) / 1000 == pytest.approx(float(row["value"]), abs=half_a_digit(row["value"]))
