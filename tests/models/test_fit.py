"""``attnprof fit``: every number by hand for six models and three devices, and its requests."""

import json
import math
import re

import pytest

import attnprof
from attnprof.cli.app import main
from attnprof.errors import RequestError
from attnprof.models.fit import fit_report
from attnprof.models.fit_parts import FitOptions, cache_bytes, fit_model, weight_bytes

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
QWEN_NEXT = {
    **QWEN, "model_type": "qwen3_next", "num_hidden_layers": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 24,
}  # fmt: skip


def blocks(tokens, block=16):
    return -(-tokens // block) * block


#: Bytes of the cache of one sequence of n tokens in bfloat16, by hand.
CACHES = {
    "llama": (LLAMA, lambda n: 3 * blocks(n) * 2 * 2 * 16 * 2),
    "qwen3_moe": (QWEN, lambda n: 3 * blocks(n) * 2 * 2 * 16 * 2),
    "mistral": (MISTRAL, lambda n: 3 * blocks(min(n, 32)) * 2 * 2 * 16 * 2),
    "gemma3": (GEMMA, lambda n: (blocks(n) + 2 * blocks(min(n, 20))) * 2 * 2 * 16 * 2),
    "deepseek_v3": (DEEPSEEK, lambda n: 2 * blocks(n) * (32 + 8) * 2),
    "qwen3_next": (QWEN_NEXT, lambda n: blocks(n) * 2 * 2 * 16 * 2
                   + 3 * (4 * 8 * 8 * 4 + (2 * 2 * 8 + 4 * 8) * 3 * 2)),
}  # fmt: skip
DEVICES = {"h100": 80 * 10**9, "l4": 24 * 10**9, "h200": 141 * 10**9}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("tokens", [1, 16, 77])
def test_a_cache_is_the_sum_by_hand(name, tokens):
    config, by_hand = CACHES[name]
    options = FitOptions(memory=10**9)
    assert cache_bytes(fit_model(config), options, tokens) == by_hand(tokens)


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_fits_a_device_follows_from_the_parts(name, device, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CACHES[name][0]))
    with pytest.raises(SystemExit) as ended:
        main(["fit", str(path), "--on", device, "--seq", "48", "-f", "json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    summary, parts = report["summary"], {row["part"]: row["bytes"] for row in report["records"]}
    memory = DEVICES[device]
    assert parts["cache"] == CACHES[name][1](48)
    assert parts["reserve"] == memory - int(memory * 0.9)
    assert parts["total"] == sum(number for part, number in parts.items() if part != "total")
    room = memory - parts["reserve"] - parts["weights"]
    each, by_hand = re.findall(r"\d+", report["records"][2]["formula"]), CACHES[name][1]

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
    two = FitOptions(memory=1, pipeline=2)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    # Two of three layers with the norms that they have of seven, and the embedding.
    norms = 7 * 64 * 2 / 3
    assert weight_bytes(fit_model(LLAMA), two) == math.ceil(2 * (2 * layer + 100 * 64 + norms))
    row = 2 * 2 * 16 * 2
    assert cache_bytes(fit_model(LLAMA), two, 48) == 2 * 48 * row
    report = attnprof.fit(LLAMA, memory="1GB", pipeline=2)
    assert report.cache_bytes_per_token == 2 * row


def test_stages_do_not_hasten_a_single_request(capsys):
    speeds = []
    for stages in ("1", "4"):
        with pytest.raises(SystemExit):
            main(["fit", "llama-3.2-1b", "--on", "h100", "--pipeline", stages, "-f", "json"])
        speeds.append(json.loads(capsys.readouterr().out)["summary"]["speed"])
    one, four = (speed["request_tokens_per_s"] for speed in speeds)
    assert four <= one


def test_weights_are_the_parameters_in_their_format():
    model = fit_model(LLAMA)
    matrices = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    tables, norms = 2 * 100 * 64, 7 * 64
    for dtype, each in {"bfloat16": 2, "float32": 4}.items():
        found = weight_bytes(model, FitOptions(memory=1, dtype=dtype))
        assert found == each * (matrices + tables + norms)
    for dtype, each in {"fp8": 1, "q8_0": 34 / 32, "int4": 0.5 + 2.5 / 128}.items():
        of_tables = 34 / 32 if dtype == "q8_0" else 2
        of_norms = 4 if dtype == "q8_0" else 2
        found = weight_bytes(model, FitOptions(memory=1, dtype=dtype))
        assert found == math.ceil(each * matrices + of_tables * tables + of_norms * norms)


def test_experts_alone_are_in_mxfp4():
    model = fit_model(QWEN)
    experts = 3 * 8 * 3 * 64 * 24
    whole = weight_bytes(model, FitOptions(memory=1))
    small = weight_bytes(model, FitOptions(memory=1, dtype="mxfp4"))
    assert whole - small == 2 * experts - experts * 17 // 32


def test_the_file_says_the_format_of_its_weights():
    quantized = {
        **LLAMA,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    }
    report = attnprof.fit(quantized, memory="1GB")
    assert report.dtype == "int4"
    matrices = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    rest = 2 * (2 * 100 * 64 + 7 * 64)
    assert report.records[0].bytes == matrices // 2 + matrices // 32 * 5 // 2 + rest


def test_ranks_share_heads_but_hold_one_at_least_and_a_latent_whole():
    two, eight = (FitOptions(memory=1, tensor_parallel=t) for t in (2, 8))
    llama, deepseek = fit_model(LLAMA), fit_model(DEEPSEEK)
    whole = cache_bytes(llama, FitOptions(memory=1), 64)
    assert 2 * cache_bytes(llama, two, 64) == whole
    assert cache_bytes(llama, eight, 64) == cache_bytes(llama, two, 64)
    latent = cache_bytes(deepseek, FitOptions(memory=1), 64)
    assert cache_bytes(deepseek, eight, 64) == latent


def test_a_window_that_is_not_capped_keeps_all_tokens():
    model = fit_model(MISTRAL)
    assert cache_bytes(model, FitOptions(memory=1, uncapped=True), 160) == 3 * 160 * 128


def test_what_does_not_fit_is_an_answer():
    report = attnprof.fit(LLAMA, memory="100kB")
    assert report.fits is False
    assert "does not fit" in report.answer


def test_training_in_mixed_precision_is_sixteen_bytes_a_parameter():
    report = attnprof.fit(LLAMA, memory="1GB", train=True, seq_len=32)
    parts = {row.part: row.bytes for row in report.records}
    parameters = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) + 2 * 100 * 64 + 7 * 64
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == 16 * parameters
    layer = 4 * 64 + 3 * 96 + (4 + 2) * 32
    assert parts["activations"] == 32 * (2 * 3 * layer + 100 * 10)


@pytest.mark.parametrize(("shard", "share"), [
    ("zero1", (1, 1, 8)), ("zero2", (1, 8, 8)), ("zero3", (8, 8, 8)),
])  # fmt: skip
def test_shards_divide_what_they_say(shard, share):
    whole = attnprof.fit(LLAMA, memory="1GB", train=True, seq_len=32)
    parts = attnprof.fit(LLAMA, memory="1GB", train=True, seq_len=32, shard=shard, data_parallel=8)
    for before, after, ranks in zip(whole.records[:3], parts.records[:3], share, strict=True):
        assert after.bytes == -(-before.bytes // ranks)


def test_recomputation_keeps_less():
    kept = [
        attnprof.fit(LLAMA, memory="1GB", train=True, seq_len=64, recompute=how).records[3].bytes
        for how in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] - kept[1] == 64 * 2 * 3 * 4 * 64  # a row of probabilities for every head


@pytest.mark.parametrize("wrong", [
    {"seq_len": 0}, {"dtype": "int3"}, {"cache_dtype": "int4"}, {"utilization": 2.0},
    {"tensor_parallel": -1}, {"train": True, "optimizer": "adagrad"},
    {"train": True, "shard": "zero4"}, {"pipeline": 4}, {"tensor_parallel": 3}, {"unknown": 1},
])  # fmt: skip
def test_a_wrong_request_is_refused(wrong):
    with pytest.raises(RequestError):
        attnprof.fit(LLAMA, memory="1GB", **wrong)


@pytest.mark.parametrize(("words", "said"), [
    (["fit"], "needs a model"), (["fit", "llama"], "--memory"),
    (["fit", "llama", "--on", "h999"], "h999"), (["fit", "llama", "--memory", "much"], "2GiB"),
    (["fit", "llama", "--memory", "1GB", "--shard", "zero1"], "--train"),
    (["fit", "no-such-model", "--memory", "1GB"], "no-such-model"),
])  # fmt: skip
def test_the_command_says_what_to_type(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_step_is_bounded_by_what_it_reads(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "llama-3.2-1b", "--on", "h100", "--seq", "1024", "-f", "json"])
    speed = json.loads(capsys.readouterr().out)["summary"]["speed"]
    model = fit_model("llama-3.2-1b")
    options = FitOptions(memory=80 * 10**9, seq_len=1024)
    read = weight_bytes(model, options) + cache_bytes(model, options, 1024)  # its table is tied
    assert speed["request_tokens_per_s"] == pytest.approx(3350e9 / read)
    assert fit_report(model, options).fits


@pytest.mark.parametrize(("name", "width"), [
    ("gpt2", 2 * 4 * 768), ("llama-3.2-1b", 3 * 8192), ("qwen3-30b-a3b", 3 * 8 * 768),
])  # fmt: skip
def test_networks_make_what_their_matrices_say(name, width):
    assert fit_model(name).inner == width


def test_terabytes_are_a_memory_and_a_card_is_found_without_a_space(capsys):
    assert attnprof.fit(LLAMA, memory="2TB").fits
    with pytest.raises(SystemExit):
        main(["fit", "llama-3.2-1b", "--on", "rtx4090"])
    assert "RTX 4090" in capsys.readouterr().out


def test_more_ranks_than_heads_of_keys_hold_a_head_each():
    model = fit_model({**LLAMA, "num_attention_heads": 8, "head_dim": 16, "num_key_value_heads": 2})
    attention = 3 * 64 * (2 * 8 * 16 + 2 * 2 * 16)
    rest = 3 * 3 * 64 * 96 + 2 * 100 * 64
    for ranks, keys in ((2, 1), (8, 1)):
        held = 3 * 64 * (2 * 8 // ranks * 16 + 2 * keys * 16)
        found = weight_bytes(model, FitOptions(memory=1, tensor_parallel=ranks))
        assert found == 2 * (held + rest // ranks + 7 * 64)
    assert weight_bytes(model, FitOptions(memory=1)) == 2 * (attention + rest + 7 * 64)


def test_rows_go_to_experts_in_layers_that_have_some():
    model = fit_model(DEEPSEEK)  # the first of its two layers has none
    sent = attnprof.fit(DEEPSEEK, memory="1GB", expert_parallel=4).bytes_sent_per_step
    assert model.expert_layers == 1
    assert sent == 1 * 2 * 3 * (2 * 64) * 2 // 4


def test_latent_formats_are_of_latent_rows():
    with pytest.raises(RequestError, match="fp8_ds_mla"):
        attnprof.fit(LLAMA, memory="1GB", cache_dtype="fp8_ds_mla")
    assert attnprof.fit(DEEPSEEK, memory="1GB", cache_dtype="fp8_ds_mla").fits


def test_a_decoder_keeps_its_encoders_rows():
    t5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2,
          "d_ff": 48, "vocab_size": 50}  # fmt: skip
    report = attnprof.fit(t5, memory="1GB", seq_len=32)
    assert report.cache_bytes_per_token == 2 * 2 * (2 * 4 * 8) * 2
    assert any("encoder" in note for note in report.notes)
