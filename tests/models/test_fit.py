"""``attnprof fit``: every number by hand for six models and three devices, and its requests."""

import json
import math
import re
from fractions import Fraction
from functools import cache

import pytest

import attnprof
from attnprof import Workload, registry
from attnprof.cli.app import main
from attnprof.device.ceilings import Ceilings
from attnprof.errors import CannotRunError, RequestError
from attnprof.models.conventions import MATRICES as MATRIX_ROLES
from attnprof.models.fit import fit_report
from attnprof.models.fit_formats import finer_layers
from attnprof.models.fit_layout import fit_model
from attnprof.models.fit_options import FitOptions, TrainingOptions
from attnprof.models.fit_parts import (
    activation_bytes,
    activation_bytes_per_token,
    cache_bytes,
    entries_of_rank,
    page_tokens,
    weight_bytes,
)
from attnprof.models.fit_speed import prompt_flops, rows_read, token_flops, token_scores, with_speed
from attnprof.models.hub_config import class_of, configuration
from tests.models.tiny import fields_of

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 100,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
GEMMA = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 20,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
         "tie_word_embeddings": True}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "intermediate_size": 96,
    "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 32}
FALCON = {
    "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_kv_heads": 2, "new_decoder_architecture": True, "vocab_size": 100,
}  # fmt: skip
QWEN_NEXT = {
    **QWEN, "model_type": "qwen3_next", "num_hidden_layers": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 24,
}  # fmt: skip


LLAMA_8B = cache(lambda: fit_model("llama-3.1-8b"))
#: Parameters of a layer of LLAMA, of its three layers, its tables and its norms.
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
MATRICES, TABLES, NORMS = 3 * LAYER, 2 * 100 * 64, 7 * 64


def blocks(tokens, block=16):
    return -(-tokens // block) * block


def weights(config, **how):
    return weight_bytes(fit_model(config), FitOptions(memory=1, **how))


def cached(config, tokens, **how):
    return cache_bytes(fit_model(config), FitOptions(memory=1, **how), tokens)


def parts_of(fields, **how):
    """The bytes of each part of a gigabyte."""
    return {row.part: row.bytes for row in attnprof.fit(fields, memory="1GB", **how).records}


def answered(capsys, *words):
    """The summary and the records that the command writes as JSON."""
    with pytest.raises(SystemExit) as ended:
        main(["fit", *words, "-f", "json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    return report["summary"], report["records"]


#: Bytes of the cache of one sequence of n tokens in bfloat16, by hand. A state of Qwen3-Next takes
#: a page: its 4·8·8 entries in float32 and 64 channels of 3 in half precision are 1,408 bytes, and
#: a page of 16 tokens' rows, 128 bytes each, holds.
CACHES = {
    "llama": (LLAMA, lambda n: 3 * blocks(n) * 2 * 2 * 16 * 2),
    "qwen3_moe": (QWEN, lambda n: 3 * blocks(n) * 2 * 2 * 16 * 2),
    "mistral": (MISTRAL, lambda n: 3 * blocks(min(n, 32)) * 2 * 2 * 16 * 2),
    "gemma3": (GEMMA, lambda n: (blocks(n) + 2 * blocks(min(n, 20))) * 2 * 2 * 16 * 2),
    "deepseek_v3": (DEEPSEEK, lambda n: 2 * blocks(n) * (32 + 8) * 2),
    "qwen3_next": (QWEN_NEXT, lambda n: blocks(n) * 2 * 2 * 16 * 2 + 3 * 16 * 128),
}  # fmt: skip
DEVICES = {"h100": 80 * 10**9, "l4": 24 * 10**9, "h200": 141 * 10**9}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_the_sum_by_hand(name):
    config, by_hand = CACHES[name]
    for tokens in (1, 16, 77):
        assert cached(config, tokens) == by_hand(tokens)


#: Bytes of a state of Qwen3-Next, and of a token's rows of a layer of LLAMA.
STATE, ROW = 4 * 8 * 8 * 4 + (2 * 2 * 8 + 4 * 8) * 3 * 2, 2 * 2 * 16 * 2
#: A model, options, tokens, and what their cache takes.
OTHER_CACHES = {
    "without pages": (QWEN_NEXT, {"block_size": 1}, 77, 77 * 128 + 3 * STATE),
    "formats of their own": (
        LLAMA, {"cache_dtype": "fp8,nvfp4", "block_size": 1}, 64, 64 * 3 * 2 * 16 * (1 + 9 / 16),
    ),
    "a window that is not capped": (MISTRAL, {"uncapped": True}, 160, 3 * 160 * ROW),
    "heads of two ranks": (LLAMA, {"tensor_parallel": 2}, 64, 3 * 64 * ROW // 2),
    "one head at least": (LLAMA, {"tensor_parallel": 8}, 64, 3 * 64 * ROW // 2),
    "a latent whole": (DEEPSEEK, {"tensor_parallel": 8}, 64, 2 * 64 * (32 + 8) * 2),
    "the fullest stage": (LLAMA, {"pipeline": 2}, 48, 2 * 48 * ROW),
    "keys that code repeats": (FALCON, {}, 64, 3 * 64 * ROW),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_CACHES)
def test_options_change_the_cache_as_by_hand(name):
    config, options, tokens, held = OTHER_CACHES[name]
    assert cached(config, tokens, **options) == held


def test_a_page_of_a_hybrid_holds_a_state_and_groups_are_as_large_as_the_rarer_kind():
    wide = {**QWEN_NEXT, "num_hidden_layers": 10, "linear_value_head_dim": 64,
            "layer_types": ["linear_attention"] * 7 + ["full_attention"] * 3}  # fmt: skip
    state = 4 * 8 * 64 * 4 + (2 * 2 * 8 + 4 * 64) * 3 * 2
    page = -(-state // (16 * 128)) * 16
    assert page_tokens(fit_model(wide), FitOptions(memory=1)) == page > 16
    # Seven states in groups of three: nine pages.
    assert cached(wide, 100) == 128 * page * (3 * -(-100 // page) + 9)


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_fits_a_device_follows_from_the_parts(name, device, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CACHES[name][0]))
    summary, records = answered(capsys, str(path), "--on", device, "--seq", "48")
    parts, memory = {row["part"]: row["bytes"] for row in records}, DEVICES[device]
    assert parts["cache"] == CACHES[name][1](48)
    assert parts["reserve"] == memory - int(memory * 0.9)
    assert parts["total"] == sum(number for part, number in parts.items() if part != "total")
    room = memory - parts["reserve"] - parts["weights"]
    each, by_hand = re.findall(r"\d+", records[2]["formula"]), CACHES[name][1]

    def held(batch, tokens):
        chunk = min(8192, batch * tokens)
        return batch * by_hand(tokens) + int(each[0]) * chunk + int(each[1]) * batch

    assert parts["cache"] + parts["activations"] == held(1, 48)
    assert summary["fits"] is True
    batch, longest = summary["largest_batch"], summary["longest_context"]
    assert held(batch, 48) <= room < held(batch + 1, 48)
    if longest < 2**50:
        assert held(1, longest) <= room < held(1, longest + 1)


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_longest_context_and_the_largest_batch_fit_and_no_more_do(name, batch):
    asked = {"memory": "50MB", "seq_len": 48, "batch_size": batch}
    report = attnprof.fit(CACHES[name][0], **asked)
    for option, most in {
        "seq_len": report.longest_context, "batch_size": report.largest_batch,
    }.items():  # fmt: skip
        if most < 2**50:
            assert attnprof.fit(CACHES[name][0], **{**asked, option: most}).fits
            assert not attnprof.fit(CACHES[name][0], **{**asked, option: most + 1}).fits


def test_the_fullest_stage_has_whole_layers_and_one_table():
    # Two of three layers with the norms that they have of seven, and the embedding.
    assert weights(LLAMA, pipeline=2) == math.ceil(2 * (2 * LAYER + 100 * 64 + NORMS * 2 / 3))
    assert attnprof.fit(LLAMA, memory="1GB", pipeline=2).cache_bytes_per_token == 2 * ROW


@pytest.mark.parametrize(("tokens", "layers"), [(19, 3), (20, 1), (48, 1)])
def test_a_token_adds_nothing_to_a_window_that_is_full(tokens, layers):
    """GEMMA has windows of 20 tokens in two of its three layers."""
    how = {"memory": "1GB", "seq_len": tokens, "block_size": 1}
    before, after = (cached(GEMMA, n, block_size=1) for n in (tokens, tokens + 1))
    added = attnprof.fit(GEMMA, **how).cache_bytes_per_token
    assert added == layers * ROW == after - before
    assert attnprof.fit(GEMMA, **how, uncapped=True).cache_bytes_per_token == 3 * ROW


def test_ranks_that_share_the_tokens_share_what_one_more_adds():
    report = attnprof.fit(LLAMA, memory="1GB", context_parallel=4)
    assert report.cache_bytes_per_token == 3 * ROW // 4


@pytest.mark.parametrize("stages", ["4", "16"])
def test_a_token_that_passes_all_stages_reads_what_one_device_does(stages, capsys):
    asked = ["llama-3.2-1b", "--on", "h100"]
    one, more = (
        answered(capsys, *asked, *words)[0]["speed"] for words in ((), ("--pipeline", stages))
    )
    assert more["request_tokens_per_s"] == pytest.approx(one["request_tokens_per_s"])


def seconds_a_step(fields, **how):
    """The least time of a decoding step on a device that reads a byte a second."""
    model, options = fit_model(fields), FitOptions(memory=10**9, **how)
    device = Ceilings("slow", {"bfloat16": math.inf}, 1.0, "none")
    report = with_speed(fit_report(model, options), model, options, device)
    return 1 / report.summary["speed"]["request_tokens_per_s"]


def test_a_step_reads_the_experts_of_a_mixture_of_formats_that_its_tokens_meet():
    """Of 8 experts a token meets 2; their last maps are finer in one of three layers."""
    how = {"dtype": "q4_k_m", "seq_len": 1, "block_size": 1}
    experts = 8 * 64 * 24 * (3 * 2 * Q4 + 2 * Q4 + Q6)
    all_read = weights(QWEN, dtype="q4_k_m") - Q4 * 6400  # without the table
    one, many = (seconds_a_step(QWEN, batch_size=n, **how) for n in (1, 2**16))
    assert one == pytest.approx(all_read - experts * 6 / 8 + 3 * ROW, rel=1e-5)
    assert many == pytest.approx(all_read + 2**16 * 3 * ROW)


def test_stages_share_sequences_that_they_do_not_divide():
    one, two = (seconds_a_step(LLAMA, batch_size=7, pipeline=n, seq_len=9000) for n in (1, 2))
    kept = cached(LLAMA, 9000, block_size=1)
    assert one - two == pytest.approx(3.5 * kept)


def test_a_prompt_has_the_logits_of_its_last_token():
    tokens, pairs = 50, 50 * 51 // 2
    expected = 2 * (MATRICES * tokens + 100 * 64) + 2 * 3 * 4 * (16 + 16) * pairs
    assert prompt_flops(fit_model(LLAMA), tokens) == expected


def test_a_stage_may_have_all_of_what_few_layers_have():
    """Of four layers the last has keys and values; of two layers the second has experts."""
    assert cached(QWEN_NEXT, 64, pipeline=2, block_size=1) == 64 * 128 + 2 * STATE
    by_role = [
        entries_of_rank(fit_model(DEEPSEEK), FitOptions(memory=1, pipeline=stages))
        for stages in (1, 2)
    ]
    assert [held["expert"] for held in by_role] == 2 * [4 * 3 * 64 * 24]
    assert by_role[0]["attention"] == 2 * by_role[1]["attention"]


#: Bytes of an entry in q4_k, q5_k and q6_k, and in q3_k.
Q4, Q5, Q6, Q3 = 144 / 256, 176 / 256, 210 / 256, 110 / 256
#: Matrices that mixtures keep finer: values and last maps of one layer of three (the last eighth
#: and each third), with the table of the head; and values, attention's and last maps of all.
FINER, EVERYWHERE = 64 * 32 + 64 * 96, 3 * (64 * 32 + 64 * 64 + 64 * 96)
WEIGHTS = {
    "bfloat16": 2 * (MATRICES + TABLES + NORMS), "float32": 4 * (MATRICES + TABLES + NORMS),
    "fp8": MATRICES + 2 * (TABLES + NORMS), "q8_0": 34 / 32 * (MATRICES + TABLES) + 4 * NORMS,
    "int4": (0.5 + 2.5 / 128) * MATRICES + 2 * (TABLES + NORMS),
    "q4_k_m": Q4 * (MATRICES - FINER + 6400) + Q6 * (FINER + 6400) + 4 * NORMS,
    "q3_k_l": Q3 * (MATRICES - EVERYWHERE + 6400) + Q5 * EVERYWHERE + Q6 * 6400 + 4 * NORMS,
}  # fmt: skip


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_weights_are_the_parameters_in_their_format_or_a_mixture(dtype):
    assert weights(LLAMA, dtype=dtype) == math.ceil(WEIGHTS[dtype])


@pytest.mark.parametrize(("dtype", "gigabytes"), [
    ("q3_k_s", 3.66), ("q3_k_m", 4.02), ("q3_k_l", 4.32), ("q4_0", 4.66), ("q4_k_s", 4.69),
    ("q4_k_m", 4.92), ("q5_k_s", 5.60), ("q5_k_m", 5.73), ("q6_k", 6.60), ("q8_0", 8.54),
])  # fmt: skip
def test_files_of_llama_8b_are_as_large_as_they_are_commonly_listed(dtype, gigabytes):
    held = weight_bytes(LLAMA_8B(), FitOptions(memory=1, dtype=dtype))
    assert held / 1e9 == pytest.approx(gigabytes, abs=0.012)


@pytest.mark.parametrize(("layers", "finer"), [(8, 4), (32, 16), (24, 12), (28, 14)])
def test_about_half_of_the_layers_are_finer(layers, finer):
    assert finer_layers(layers) == finer


@pytest.mark.parametrize(("tensor", "expert", "share"), [
    (1, 8, 8), (2, 8, 8), (2, 4, 4), (4, 2, 4), (1, 1, 1), (2, 1, 2), (1, 3, 8 / 3),
])  # fmt: skip
def test_experts_are_shared_by_the_same_ranks_as_all_else(tensor, expert, share):
    model = fit_model(QWEN)
    options = FitOptions(memory=1, tensor_parallel=tensor, expert_parallel=expert)
    held = entries_of_rank(model, options)
    assert float(held["expert"]) == pytest.approx(3 * 8 * 3 * 64 * 24 / share)
    keys = 2 * max(1, 2 / tensor)  # of two heads of keys and values, one at least
    assert held["attention"] == 3 * 64 * 16 * (2 * 4 / tensor + keys)
    assert options.ranks == max(tensor, expert)


def test_experts_alone_are_in_mxfp4():
    experts = 3 * 8 * 3 * 64 * 24
    assert weights(QWEN) - weights(QWEN, dtype="mxfp4") == 2 * experts - experts * 17 // 32


def grouped(**weights):
    """A table of compressed-tensors, whose matrices are all in one group of settings."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


#: Tables of files, the format that they name, and bits of an entry of a matrix by hand: its own
#: and its part of the scale and zero point of a group.
FORMATS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4", 4 + 20 / 32),
    "numbers as texts": ({"quant_method": "gptq", "bits": "4", "group_size": "64"}, "int4",
                         4 + 20 / 64),
    "three bits": ({"quant_method": "auto-round", "bits": 3, "group_size": 128}, "int3",
                   3 + 19 / 128),
    "blocks": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, "fp8", 8 + 32 / 32**2),
    "blocks of nothing": ({"quant_method": "fp8", "weight_block_size": [0, 32]}, "fp8", 8),
    "absolute maxima": ({"load_in_4bit": True}, "nf4", 4 + 32 / 64),
    "doubly quantised": ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4",
                         4 + 8 / 64 + 32 / (64 * 256)),
    "symmetric": (grouped(num_bits=4, type="int", group_size=128, strategy="group", symmetric=True),
                  "int4", 4 + 16 / 128),
    "by channels": (grouped(num_bits=8, type="int", strategy="channel"), "int8", 8),
    "microscaled": (grouped(num_bits=4, type="float", group_size=32), "mxfp4-pack", 4 + 8 / 32),
    "nvfp4": (grouped(num_bits=4, type="float", group_size=16), "nvfp4", 4 + 8 / 16),
    "fp8 in blocks": (grouped(num_bits=8, type="float", block_structure=[16, 16]), "fp8",
                      8 + 32 / 16**2),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4 + 8 / 16),
    "activations in fp8": ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8", 8),
    "mxfp8": (grouped(num_bits=8, type="float", group_size=32), "mxfp8", 8 + 8 / 32),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_says_the_format_of_its_weights(name):
    table, said, bits = FORMATS[name]
    report = attnprof.fit({**LLAMA, "quantization_config": table}, memory="1GB")
    assert report.dtype == said
    assert report.records[0].bytes == math.ceil(MATRICES * Fraction(bits) / 8) + 2 * (
        TABLES + NORMS
    )


UNKNOWN = {"quant_method": "hqq"}, {"quant_method": "torchao", "config_groups": {"g": ["Linear"]}}


@pytest.mark.parametrize("table", UNKNOWN)
def test_a_format_that_is_not_known_is_said_and_not_taken_for_the_default(table):
    report = attnprof.fit({**LLAMA, "quantization_config": table}, memory="1GB")
    method = table["quant_method"]
    assert any(f"quantization_config ({method})" in note for note in report.summary["notes"])
    typed = attnprof.fit({**LLAMA, "quantization_config": table}, memory="1GB", dtype="int4")
    assert not any("quantization_config" in note for note in typed.summary["notes"])


def test_what_does_not_fit_is_an_answer():
    report = attnprof.fit(LLAMA, memory="100kB")
    assert report.fits is False
    assert "does not fit" in report.answer
    assert "its weights leave no room" in report.answer
    crowd = attnprof.fit(LLAMA, memory="1MB", seq_len=16, batch_size=2**20)
    assert crowd.longest_context == 0 < crowd.largest_batch
    assert f"at 16 tokens {crowd.largest_batch} requests would" in crowd.answer


def test_training_in_mixed_precision_is_sixteen_bytes_a_parameter():
    parts = parts_of(LLAMA, train=True, seq_len=32)
    held = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert held == 16 * (MATRICES + TABLES + NORMS)
    layer = 4 * 64 + 3 * 96 + (4 + 2) * 32
    assert parts["activations"] == 32 * (2 * 3 * layer + 100 * 10)


@pytest.mark.parametrize(("shard", "share"), [
    ("zero1", (1, 1, 8)), ("zero2", (1, 8, 8)), ("zero3", (8, 8, 8)),
])  # fmt: skip
def test_shards_divide_what_they_say(shard, share):
    whole, parts = (
        parts_of(LLAMA, train=True, **how) for how in ({}, {"shard": shard, "data_parallel": 8})
    )
    for name, ranks in zip(("weights", "gradients", "optimizer"), share, strict=True):
        assert parts[name] == -(-whole[name] // ranks)


@pytest.mark.parametrize(("name", "value"), [
    ("dtype", "fp8"), ("cache_dtype", "fp8"), ("block_size", 32), ("chunk", 64), ("uncapped", True),
])  # fmt: skip
def test_options_of_serving_are_refused_in_training_with_what_to_leave_out(name, value):
    flag = "--" + name.removesuffix("_size").replace("_", "-")
    with pytest.raises(RequestError, match=f"leave {flag} or --train out"):
        attnprof.fit(LLAMA, memory="1GB", train=True, **{name: value})


def test_a_format_that_training_has_may_be_typed():
    assert parts_of(LLAMA, train=True) == parts_of(LLAMA, train=True, dtype="bf16")


def test_recomputation_keeps_less():
    kept = [
        parts_of(LLAMA, train=True, seq_len=64, recompute=how)["activations"]
        for how in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] - kept[1] == 64 * 2 * 3 * 4 * 64  # a row of probabilities for every head


def test_gradients_in_float32_and_inputs_on_every_rank_take_more():
    parts = [
        parts_of(LLAMA, train=True, seq_len=32, tensor_parallel=2, **how)
        for how in ({}, {"gradient_dtype": "float32"}, {"sequence_parallel": False})
    ]
    assert parts[1]["gradients"] == 2 * parts[0]["gradients"]
    assert parts[2]["activations"] - parts[0]["activations"] == 32 * 3 * 4 * 64 * 2 // 2


def test_a_layer_of_gpt_with_dropout_keeps_34_bytes_and_five_for_each_score():
    gpt = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    kept = [
        activation_bytes_per_token(
            fit_model(fields), TrainingOptions(memory=1, recompute=how), 32
        )
        for fields in (gpt, {**gpt, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                             "summary_first_dropout": 0.0})
        for how in ("selective", "none")
    ]  # fmt: skip
    assert kept == [
        2 * 34 * 64,
        2 * (34 * 64 + 5 * 4 * 32),
        2 * 32 * 64,
        2 * (32 * 64 + 2 * 4 * 32),
    ]


@pytest.mark.parametrize("wrong", [
    {"seq_len": 0}, {"dtype": "int3"}, {"cache_dtype": "int4"}, {"utilization": 2.0},
    {"tensor_parallel": -1}, {"train": True, "optimizer": "adagrad"},
    {"train": True, "shard": "zero4"}, {"pipeline": 4}, {"tensor_parallel": 3}, {"unknown": 1},
    {"expert_parallel": 2}, {"cache_dtype": "fp8,int4"},
    {"cache_dtype": "fp8,fp8,fp8"}, {"train": True, "gradient_dtype": "int8"},
])  # fmt: skip
def test_a_wrong_request_is_refused(wrong):
    with pytest.raises(RequestError):
        attnprof.fit(LLAMA, memory="1GB", **wrong)


@pytest.mark.parametrize(("words", "said"), [
    (["fit"], "needs a model"), (["fit", "llama"], "--memory"),
    (["fit", "llama", "--on", "h999"], "h999"), (["fit", "llama", "--memory", "much"], "2GiB"),
    (["fit", "llama", "--memory", "1GB", "--shard", "zero1"], "--train"),
    (["fit", "no-such-model", "--memory", "1GB"], "no-such-model"),
    (["fit", "001-lm-dot", "--memory", "1GB"], "only models of transformers"),
    (["fit", "llama", "--on", "h999"], "type its memory, too, like --memory 16GB"),
    (["fit", "llama-3.2-1b", "--memory", "99999999TB"], "2**50"),
])  # fmt: skip
def test_the_command_says_what_to_type(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_step_is_bounded_by_what_it_reads(capsys):
    speed = answered(capsys, "llama-3.2-1b", "--on", "h100", "--seq", "1024")[0]["speed"]
    model = fit_model("llama-3.2-1b")
    options = FitOptions(memory=80 * 10**9, seq_len=1024)
    read = weight_bytes(model, options) + cache_bytes(model, options, 1024)  # its table is tied
    assert speed["request_tokens_per_s"] == pytest.approx(3350e9 / read)
    assert fit_report(model, options).fits


def test_the_command_that_checks_a_speed_has_the_model_formats_and_ranks_that_are_asked(capsys):
    words = ["--dtype", "fp8", "--cache-dtype", "fp8", "--tensor-parallel", "2"]
    asked = ["Llama-3.2-1B", "--on", "h100", "--seq", "512", *words]
    command = answered(capsys, *asked)[0]["speed"]["checks"]["tokens a second"]
    assert command == (
        "vllm bench latency --model meta-llama/Llama-3.2-1B --input-len 512 "
        "--tensor-parallel-size 2 --quantization fp8 --kv-cache-dtype fp8 --output-len 128 "
        "--batch-size 1"
    )


@pytest.mark.parametrize(("name", "width"), [
    ("gpt2", 2 * 4 * 768), ("llama-3.2-1b", 3 * 8192), ("qwen3-30b-a3b", 3 * 8 * 768),
])  # fmt: skip
def test_networks_make_what_their_matrices_say(name, width):
    assert fit_model(name).inner == width


@pytest.mark.parametrize(("config", "width"), [
    (DEEPSEEK, 3 * 96), ({**QWEN, "decoder_sparse_step": 2}, 3 * 96),
    ({**QWEN, "moe_intermediate_size": 80, "mlp_only_layers": [1]}, 3 * 2 * 80),
    ({**QWEN, "num_experts": 0}, 3 * 96),
])  # fmt: skip
def test_the_widest_network_of_a_layer_is_at_work_at_once(config, width):
    """Activations at once are those of one layer, not an average; without experts it is dense."""
    options = FitOptions(memory=10**9, seq_len=10)
    assert activation_bytes(fit_model(config), options)[0] == 2 * (4 * 64 + width) * 10 + 6 * 100


@pytest.mark.parametrize(("words", "has_cache"), [(["--chunk", "1"], True), (["--train"], False)])
def test_numbers_of_caches_are_of_serving(words, has_cache, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "llama-3.2-1b", "--memory", "80GB", *words])
    shown = capsys.readouterr().out
    assert ("cache a token" in shown) == has_cache
    assert ("at most 1 token at once" in shown) == has_cache


def test_terabytes_are_a_memory_and_a_card_is_found_without_a_space(capsys):
    assert attnprof.fit(LLAMA, memory="2TB").fits
    with pytest.raises(SystemExit):
        main(["fit", "llama-3.2-1b", "--on", "rtx4090"])
    assert "RTX 4090" in capsys.readouterr().out


def test_more_ranks_than_heads_of_keys_hold_a_head_each():
    config = {**LLAMA, "num_attention_heads": 8, "head_dim": 16, "num_key_value_heads": 2}
    rest = 3 * 3 * 64 * 96 + TABLES
    for ranks, keys in ((1, 2), (2, 1), (8, 1)):
        held = 3 * 64 * (2 * 8 // ranks * 16 + 2 * keys * 16)
        bytes_held = weights(config, tensor_parallel=ranks)
        assert bytes_held == 2 * (held + rest // ranks + NORMS)


def test_a_decoded_token_scores_latent_rows_without_expanding_them():
    assert token_scores(fit_model(DEEPSEEK), 50) == 2 * 2 * 4 * (2 * 32 + 8) * 50
    assert token_scores(fit_model(LLAMA), 50) == 2 * 3 * 4 * 2 * 16 * 50
    assert token_scores(fit_model(MISTRAL), 50) == 2 * 3 * 4 * 2 * 16 * 32


#: A model, options, and the bytes of its cache that a decoded token reads as the 77th.
SPARSE = {
    **DEEPSEEK, "model_type": "deepseek_v32", "index_topk": 8, "index_n_heads": 16,
    "index_head_dim": 12,
}  # fmt: skip
CHUNKED = {
    **LLAMA, "model_type": "llama4_text", "num_hidden_layers": 4, "attention_chunk_size": 32,
    "num_local_experts": 1, "num_experts_per_tok": 1, "intermediate_size_mlp": 40,
}  # fmt: skip
READ = {
    "no empty places of pages": (QWEN_NEXT, {}, 77 * ROW + 3 * STATE),
    "windows that are kept whole": (GEMMA, {"uncapped": True}, (77 + 2 * 20) * ROW),
    "a chunk's 13 tokens": (CHUNKED, {}, (77 + 3 * 13) * ROW),
    "rows that an indexer picks": (SPARSE, {}, 2 * (8 * (32 + 8) * 2 + 77 * (12 + 4))),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_decoded_token_reads_what_it_sees(name):
    config, options, read = READ[name]
    assert rows_read(fit_model(config), FitOptions(memory=1, **options), 77) == read


def test_a_decoded_token_reads_the_rows_for_several_tokens_that_its_indexer_picks():
    """DeepSeek-V4: windows of 5, whose keys are the values; 6 of 64 rows and 64 keys; 2 rows."""
    entries = 5 * 8 + (5 + 6 + 64) * 8 + (5 + 2) * 8
    assert rows_read(fit_model(fields_of("deepseek_v4")), FitOptions(memory=1), 256) == 2 * entries


def test_a_decoded_token_updates_states_in_one_step():
    """Three layers of 4 heads of 8 by 8: what a key has, the update, and what a query sees."""
    model = fit_model(QWEN_NEXT)
    products = model.sizes.active(*MATRIX_ROLES, "convolution") + 3 * 4 * 3 * 8 * 8
    assert token_flops(model, 50) == 2 * products + token_scores(model, 50)


#: A model of images, whose text is a part of it.
IMAGES = {
    "model_type": "llava", "text_config": LLAMA, "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "image_size": 28, "patch_size": 14,
    },
}  # fmt: skip


def test_weights_of_vision_are_held_and_not_read_or_trained_by_text():
    config = configuration(IMAGES, "tiny")
    parameters = sum(x.numel() for x in class_of(config)(config).parameters())
    idle = parameters - (MATRICES + TABLES + NORMS)
    assert weights(IMAGES) == 2 * parameters
    assert weights(IMAGES, tensor_parallel=2) - weights(LLAMA, tensor_parallel=2) == idle
    trained = attnprof.fit(IMAGES, memory="1GB", train=True)
    by_part = {row.part: row.bytes for row in trained.records}
    assert by_part["weights"] == 2 * parameters
    assert by_part["optimizer"] == 12 * (parameters - idle)
    assert any("held, though text does not run it" in note for note in trained.notes)


def test_latent_rows_of_the_text_of_a_model_of_images_are_latent():
    images = {**IMAGES, "text_config": DEEPSEEK}
    assert [one.latent for one in fit_model(images).caches] == [True]
    assert token_scores(fit_model(images), 50) == token_scores(fit_model(DEEPSEEK), 50)


def notes_of(fields, **how):
    return "; ".join(attnprof.fit(fields, memory="1GB", **how).notes)


def test_what_is_left_out_or_assumed_is_said():
    long = {**LLAMA, "max_position_embeddings": 4096}
    assert "at most 4,096 tokens" in notes_of(long)
    assert "at most" not in notes_of(long, batch_size=2**20)
    assert "2 layers for multi-token" in notes_of({**DEEPSEEK, "num_nextn_predict_layers": 2})
    for scheme in ({"kv_cache_scheme": {"num_bits": 8}}, {"kv_cache_quant_algo": "FP8"}):
        table = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", **scheme}}
        assert "--cache-dtype fp8" in notes_of({**LLAMA, **table})
        assert "--cache-dtype" not in notes_of({**LLAMA, **table}, cache_dtype="bfloat16")


def test_rows_go_to_experts_in_layers_that_have_some():
    model = fit_model(DEEPSEEK)  # the first of its two layers has none
    sent = attnprof.fit(DEEPSEEK, memory="1GB", expert_parallel=4).bytes_sent_per_step
    assert model.expert_layers == 1
    assert sent == 1 * 2 * 3 * (2 * 64) * 2 // 4


def test_heads_of_keys_that_queries_cannot_share_are_refused():
    with pytest.raises(RequestError, match="4 heads of queries cannot share 3 heads of keys"):
        attnprof.fit({**LLAMA, "num_key_value_heads": 3}, memory="1GB")


def test_latent_formats_are_of_latent_rows():
    with pytest.raises(RequestError, match="fp8_ds_mla"):
        attnprof.fit(LLAMA, memory="1GB", cache_dtype="fp8_ds_mla")
    assert attnprof.fit(DEEPSEEK, memory="1GB", cache_dtype="fp8_ds_mla").fits


@pytest.mark.parametrize("model_type", ["t5", "switch_transformers"])
def test_a_decoder_keeps_its_encoders_rows(model_type):
    fields = {"model_type": model_type, "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2,
              "num_decoder_layers": 2, "d_ff": 48, "vocab_size": 50}  # fmt: skip
    report = attnprof.fit(fields, memory="1GB", seq_len=32)
    assert report.cache_bytes_per_token == 2 * 2 * (2 * 4 * 8) * 2
    assert any("encoder" in note for note in report.notes)


# -- with mechanisms of ours in some layers --------------------------------------------------
FOUR = {**LLAMA, "num_hidden_layers": 4}


def test_layers_that_alternate_keep_what_each_mechanism_does():
    """Three of four layers with a state of 4 heads, 16 by 16 in float32, and convolutions."""
    asked = {"memory": "1GB", "block_size": 1, "seq_len": 40}
    settings = {"chunk": 16}
    report = attnprof.fit(FOUR, swap="gated-deltanet@pattern=3:1", settings=settings, **asked)
    spec, work = registry.get("gated-deltanet", chunk=16), Workload(40, 4, 16, phase="decode")
    tails = spec.layer_entries(work)
    parts = {row.part: row.bytes for row in report.records}
    assert parts["cache"] == 3 * (4 * 4 * 16 * 16 + 2 * tails) + 40 * 2 * 2 * 16 * 2
    assert report.layers == {"state": 3, "full": 1}
    attention = LAYER - 3 * 64 * 96  # the model's attention of a layer, of which one is left
    swapped = spec.parameters(work)
    assert parts["weights"] == 2 * (4 * LAYER - 3 * attention + 3 * swapped + TABLES + 9 * 64)
    assert any("attnprof model with the same --swap" in note for note in report.notes)


@pytest.mark.parametrize(("swap", "settings", "kept"), [
    ("sliding@pattern=1:1", {"window": 5}, lambda n: 2 * (n + min(n, 5)) * 64 * 2),
    ("moba@even", {"block": 8}, lambda n: 2 * (2 * n * 64 + -(-n // 8) * 32) * 2),
    ("mla@0-1", {"kv_rank": 24, "rope_dim": 8}, lambda n: 2 * (n * 32 + n * 64) * 2),
    ("dsa@3", {"kv_rank": 24, "rope_dim": 8, "index_dim": 4},
     lambda n: (n * 36 + 3 * n * 64) * 2),
    ("topk", {"index_dim": 4}, lambda n: 4 * n * (64 + 4) * 2),  # of the model's two heads of keys
])  # fmt: skip
@pytest.mark.parametrize("tokens", [3, 48])
def test_a_swapped_layer_keeps_rows_a_window_or_latents(swap, settings, kept, tokens):
    report = attnprof.fit(
        FOUR, memory="1GB", swap=swap, settings=settings, seq_len=tokens, block_size=1
    )
    held = next(row.bytes for row in report.records if row.part == "cache")
    assert held == pytest.approx(kept(tokens), abs=2 * 2 * 32)  # sums of whole blocks


def test_the_command_takes_patterns_and_refuses_what_it_does_not_lay_out(capsys):
    asked = ["llama-3.2-1b", "--memory", "8GB", "--seq", "65536"]
    plain, hybrid = (
        answered(capsys, *asked, *more)[0]
        for more in ((), ("--swap", "gated-deltanet@pattern=3:1", "--block", "1"))
    )
    assert hybrid["cache_bytes_per_token"] == plain["cache_bytes_per_token"] // 4
    assert hybrid["longest_context"] > 3 * plain["longest_context"]
    for more, said in (
        (["--train"], "attnprof model"),
        (["--on", "cpu", "--measure"], "as it is"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["fit", *asked, "--swap", "linear@odd", *more])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_a_mechanism_that_does_not_decode_does_not_fit():
    with pytest.raises(CannotRunError, match="sparse needs a stride"):
        attnprof.fit(FOUR, memory="1GB", swap="sparse")
