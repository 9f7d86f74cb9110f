"""Models described by sizes alone: the type that has such layers, parameters by arithmetic."""

import json

import pytest

from attnprof.errors import RequestError
from attnprof.models.described import as_typed
from attnprof.models.hub_config import read_configuration
from attnprof.models.names import released
from attnprof.models.sources import hub_subject

#: Small sizes that no release has: parameters are summed by hand below.
_L, _H, _HEADS, _KV, _D, _FF, _V = 6, 64, 4, 2, 24, 80, 96
SIZES = {
    "num_hidden_layers": _L, "hidden_size": _H, "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV, "head_dim": _D, "intermediate_size": _FF, "vocab_size": _V,
    "tie_word_embeddings": False,
}  # fmt: skip
_ATTENTION = 2 * _H * _D * (_HEADS + _KV)
_QKV, _MLP, _TABLES = _D * (_HEADS + 2 * _KV), 3 * _H * _FF, 2 * _V * _H + _H
_WINDOWS = {"sliding_window": 8, "full_attention_layers": 2}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_MOE = 8 * 3 * _H * 20 + 8 * _H
_MLA = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10}
_LATENT = _HEADS * (12 + 4) * _H + _H * (16 + 4) + 16 + 16 * _HEADS * (12 + 10) + _HEADS * 10 * _H
_NO_KV = {key: SIZES[key] for key in SIZES if key not in ("num_key_value_heads", "head_dim")}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
    "qk_norm": "head", "full_attention_layers": 2,
}  # fmt: skip
_CHANNELS = 2 * 2 * 8 + 4 * 6
_GATED = _H * (_CHANNELS + 4 * 6 + 2 * 4) + 4 * _CHANNELS + 2 * 4 + 6 + 4 * 6 * _H
_DENSE = _ATTENTION + _MLP + 2 * _H

#: Fields beside the sizes, the type they need, and the parameters, by hand.
CASES = {
    "plain": ({}, "llama", _L * _DENSE + _TABLES),
    "biases": (
        {"attention_bias": "qkvo", "mlp_bias": True}, "llama",
        _L * (_DENSE + _QKV + _H + 2 * _FF + _H) + _TABLES,
    ),
    "window": ({"sliding_window": 8}, "mistral", _L * _DENSE + _TABLES),
    "windows": (_WINDOWS, "ministral", _L * _DENSE + _TABLES),
    "qkv": ({"attention_bias": "qkv"}, "qwen2", _L * (_DENSE + _QKV) + _TABLES),
    "qkv and windows": (
        {"attention_bias": "qkv", **_WINDOWS}, "qwen2", _L * (_DENSE + _QKV) + _TABLES,
    ),
    "norms of heads": ({"qk_norm": "head"}, "qwen3", _L * (_DENSE + 2 * _D) + _TABLES),
    "four norms": (
        {"norms_per_layer": 4, "tie_word_embeddings": True}, "gemma2",
        _L * (_DENSE + 2 * _H) + _TABLES - _V * _H,
    ),
    "four norms and those of heads": (
        {"norms_per_layer": 4, "qk_norm": "head", **_WINDOWS, "tie_word_embeddings": True},
        "gemma3_text", _L * (_DENSE + 2 * _H + 2 * _D) + _TABLES - _V * _H,
    ),
    "one norm": (
        {"norms_per_layer": 1, "tie_word_embeddings": True}, "cohere",
        _L * (_DENSE - _H) + _TABLES - _V * _H,
    ),
    "two maps": ({"glu": False}, "arcee", _L * (_DENSE - _H * _FF) + _TABLES),
    "two maps, biases in norms": (
        {"glu": False, "norm_bias": True}, "nemotron",
        _L * (_DENSE - _H * _FF + 2 * _H) + _TABLES + _H,
    ),
    "two maps, biases everywhere": (
        {"glu": False, "norm_bias": True, "mlp_bias": True, "attention_bias": "qkvo"}, "nemotron",
        _L * (_DENSE - _H * _FF + 2 * _H + _QKV + _H + _FF + _H) + _TABLES + _H,
    ),
    "experts": (_EXPERTS, "mixtral", _L * (_DENSE - _MLP + _MOE) + _TABLES),
    "experts and norms of heads": (
        {**_EXPERTS, "qk_norm": "head"}, "qwen3_moe",
        _L * (_DENSE - _MLP + _MOE + 2 * _D) + _TABLES,
    ),
    "a gated shared expert": (
        {**_EXPERTS, "shared_expert_intermediate_size": 36, "shared_expert_gate": True},
        "qwen2_moe", _L * (_DENSE - _MLP + _MOE + 3 * _H * 36 + _H) + _TABLES,
    ),
    "dense layers first, a shared expert": (
        {**_EXPERTS, "shared_expert_intermediate_size": 40, "first_k_dense_replace": 2},
        "glm4_moe", _L * _DENSE + 4 * (_MOE + 3 * _H * 40 - _MLP) + _TABLES,
    ),
    "dense layers first": (
        {**_EXPERTS, "router_bias": True, "first_k_dense_replace": 2}, "ernie4_5_moe",
        _L * _DENSE + 4 * (_MOE + 8 - _MLP) + _TABLES,
    ),
    "sinks": (
        {**_EXPERTS, **_WINDOWS, "attention_sinks": True, "expert_bias": True,
         "router_bias": True, "attention_bias": "qkvo"}, "gpt_oss",
        _L * (_DENSE - _MLP + _MOE + _QKV + _H + _HEADS + 8 + 8 * (2 * 20 + _H)) + _TABLES,
    ),
    "chunks": (
        {**_EXPERTS, "shared_expert_intermediate_size": 20, "attention_chunk_size": 16,
         "full_attention_layers": 1, "moe_layers": 3}, "llama4_text",
        _L * _DENSE + 3 * (_MOE + 3 * _H * 20 - _MLP) + _TABLES,
    ),
    "gated delta": (
        _DELTA, "qwen3_5_text",
        _L * (_MLP + 2 * _H) + 4 * _GATED + 2 * (_ATTENTION + _HEADS * _D * _H + 2 * _D) + _TABLES,
    ),
}  # fmt: skip
#: The same for descriptions without heads of keys and values.
LATENT = {
    "latent": (_MLA, "deepseek_v3", _L * (_LATENT + _MLP + 2 * _H) + _TABLES),
    "latent queries": (
        {**_MLA, "q_lora_rank": 20}, "deepseek_v3",
        _L * (_LATENT - _HEADS * 16 * _H + 20 * _H + 20 + _HEADS * 16 * 20 + _MLP + 2 * _H)
        + _TABLES,
    ),
    "latent and experts": (
        {**_MLA, **_EXPERTS, "first_k_dense_replace": 1, "shared_expert_intermediate_size": 20},
        "deepseek_v3", _L * (_LATENT + 2 * _H) + _MLP + 5 * (_MOE + 3 * _H * 20) + _TABLES,
    ),
    "one norm, two maps, as many heads of keys": (
        {"glu": False, "norm_bias": True, "norms_per_layer": 1}, "falcon",
        _L * (4 * _H * _H + 2 * _H * _FF + 2 * _H) + _TABLES + _H,
    ),
    "one norm, two maps, one head of keys": (
        {"glu": False, "norm_bias": True, "norms_per_layer": 1, "num_key_value_heads": 1}, "falcon",
        _L * (2 * _H * _H + 2 * _H * 16 + 2 * _H * _FF + 2 * _H) + _TABLES + _H,
    ),
    "as many heads of keys": (
        {"qk_norm": "head"}, "qwen3",
        _L * (4 * _H * _H + _MLP + 2 * _H + 2 * 16) + _TABLES,
    ),
    "GPT": (
        {"tie_word_embeddings": True, "max_position_embeddings": 32}, "gpt2",
        _L * (4 * _H * _H + 2 * _H * _FF + 9 * _H + _FF) + (_V + 32) * _H + 2 * _H,
    ),
}  # fmt: skip


def parameters(fields):
    model = hub_subject(fields, "described").on_meta
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("case", [*CASES, *LATENT])
def test_fields_decide_the_type_and_its_parameters_are_those_of_arithmetic(case):
    more, model_type, count = {**CASES, **LATENT}[case]
    fields = {**(SIZES if case in CASES else _NO_KV), **more}
    assert as_typed(fields, case)[0]["model_type"] == model_type
    assert parameters(fields) == count


@pytest.mark.parametrize(
    ("layers", "full", "places"),
    [
        (6, 2, [2, 5]),
        (62, 10, range(5, 60, 6)),
        (27, 7, [3, 7, 11, 15, 19, 23, 26]),
        (4, 4, range(4)),
    ],
)
def test_full_layers_are_spread_by_a_period(layers, full, places):
    sizes = {**SIZES, "num_hidden_layers": layers, "sliding_window": 8}
    types = as_typed({**sizes, "full_attention_layers": full}, "x")[0]["layer_types"]
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == [*places]


#: Whole descriptions of releases, and the parameters of transformers' model of them.
RELEASES = {
    "kimi-linear-48b-a3b": {
        "num_hidden_layers": 27, "full_attention_layers": 7, "hidden_size": 2304,
        "num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "kda_num_heads": 32, "kda_head_dim": 128,
        "kda_conv_kernel": 4, "vocab_size": 163840, "intermediate_size": 9216,
        "first_k_dense_replace": 1, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
    },
    "qwen3-next-80b-a3b": {
        "num_hidden_layers": 48, "full_attention_layers": 12, "hidden_size": 2048,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
        "attn_output_gate": True, "qk_norm": "head", "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "shared_expert_gate": True,
    },
    "glm-4.5": {
        "num_hidden_layers": 92, "hidden_size": 5120, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552, "qk_norm": "head",
        "intermediate_size": 12288, "attention_bias": "qkv", "first_k_dense_replace": 3,
        "num_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
        "shared_expert_intermediate_size": 1536,
    },
    "deepseek-v2-lite": {
        "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 102400, "intermediate_size": 10944, "first_k_dense_replace": 1,
        "num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 2816,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_described_by_sizes_has_its_parameters(name):
    assert parameters(RELEASES[name]) == released()[name].parameters


def test_a_note_names_the_type_and_the_sizes_that_are_not_given():
    fields = {key: SIZES[key] for key in SIZES if key not in ("vocab_size", "intermediate_size")}
    note = as_typed(fields, "x")[1]
    assert "llama" in note
    assert "defaults stand for intermediate_size, vocab_size" in note


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"share_q_dim": 8}, "share_q_dim is not understood"),
        ({"qk_norm": "everything"}, "type head"),
        ({"num_experts": "many"}, "whole numbers"),
        ({"attention_sinks": True}, "attention_sinks"),
        ({"full_attention_layers": 2}, "ministral without sliding_window"),
        ({"sliding_window": 8, "full_attention_layers": 9}, "more than num_hidden_layers 6"),
        ({**_EXPERTS, "shared_expert_intermediate_size": 30}, "no multiple of 20"),
    ],
)
def test_fields_that_no_type_has_are_refused_by_name(more, message):
    with pytest.raises(RequestError, match=message) as error:
        as_typed({**SIZES, **more}, "x")
    assert "\n" not in str(error.value)


def test_a_file_without_a_type_is_read_as_a_description(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(SIZES), "utf-8")
    assert parameters(read_configuration(file)) == CASES["plain"][2]
