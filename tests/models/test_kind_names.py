"""Names of kinds of layers: how they mix rows, and their experts."""

from collections import Counter

import pytest
import torch

from attnprof.models.parts import distinct_names, layer_names, places
from attnprof.models.sources import hub_subject

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 96, "num_hidden_layers": 4,
    "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 20,
}  # fmt: skip
NAMES = [
    ("llama", {}, {"full": 4}),
    ("mistral", {"sliding_window": 5}, {"sliding 5": 4}),
    ("mistral", {"sliding_window": None}, {"full": 4}),
    ("gemma3_text", {"sliding_window": 7, "layer_types": ["sliding_attention"] * 3
                     + ["full_attention"]}, {"sliding 7": 3, "full": 1}),
    ("gpt_oss", {"sliding_window": 6, "num_local_experts": 8, "num_experts_per_tok": 3},
     {"sliding 6 · moe 8/3": 2, "full · moe 8/3": 2}),
    ("llama4_text", {"attention_chunk_size": 16, "num_local_experts": 4, "num_experts_per_tok": 1,
                     "interleave_moe_layer_step": 2},
     {"chunked 16": 2, "chunked 16 · moe 4/1": 1, "full · moe 4/1": 1}),
    ("deepseek_v3", LATENT, {"latent": 1, "latent · moe 8/2": 3}),
    ("qwen3_next", {"num_experts": 4, "num_experts_per_tok": 2, "layer_types":
                    ["linear_attention"] * 3 + ["full_attention"]},
     {"gated delta · moe 4/2": 3, "full · moe 4/2": 1}),
    ("kimi_linear", {
        "linear_num_heads": 4, "linear_head_dim": 8, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "n_group": 1,
     }, {"kimi delta": 1, "kimi delta · moe 4/2": 2, "latent · moe 4/2": 1}),
    ("mamba", {"state_size": 4}, {"mamba": 4}),
    ("mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 1}, {"mamba-2": 4}),
    ("bamba", {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8,
               "mamba_n_groups": 1}, {"mamba-2": 3, "full": 1}),
    ("bart", {"encoder_layers": 2, "decoder_layers": 3}, {"full": 2, "full + cross": 3}),
]  # fmt: skip


def subject_of(model_type, fields):
    sizes = {} if model_type == "bart" else SIZES
    return hub_subject({**sizes, **fields, "model_type": model_type}, "tiny")


def built(subject):
    with torch.device("meta"):
        return subject.build()


@pytest.mark.parametrize(("model_type", "fields", "expected"), NAMES)
def test_layers_are_named_by_what_their_modules_do(model_type, fields, expected):
    subject = subject_of(model_type, fields)
    model = built(subject)
    where = places(model)
    layers = list(dict.fromkeys(place.layer for place in where.values() if place.layer))
    types = subject.layer_types if len(subject.layer_types) == len(layers) else ()
    assert Counter(layer_names(model, layers, where, types)) == expected


def test_windows_of_a_model_of_images_are_named_by_their_width():
    model = built(hub_subject({"model_type": "swin", "image_size": 224, "window_size": 7}, "tiny"))
    where = places(model)
    layers = list(dict.fromkeys(place.layer for place in where.values() if place.layer))
    assert set(layer_names(model, layers, where, ())) == {"window 7"}


def _layer(width, *, bias=True, stride=1):
    layer = torch.nn.Module()
    layer.up_proj = torch.nn.Linear(4, width, bias=bias)
    layer.stride = stride
    return layer


@pytest.mark.parametrize(
    ("other", "title"),
    [
        (_layer(16), "full · up_proj 16"),
        (_layer(8, bias=False), "full · without up_proj bias"),
        (_layer(8, stride=2), "full · stride 2"),
        (_layer(8), "full · at 3, 5"),
    ],
)
def test_kinds_of_one_name_are_told_apart_by_what_differs(other, title):
    modules = {"layers.0": _layer(8), "layers.3": other, "layers.5": other}
    kinds = [["layers.0"], ["layers.3", "layers.5"]]
    assert distinct_names(modules, "full", kinds) == ["full", title]


def test_three_kinds_of_one_name_have_three_names():
    modules = {f"layers.{n}": _layer(8) for n in range(3)}
    names = distinct_names(modules, "full", [[path] for path in modules])
    assert names == ["full", "full · at 1", "full · at 2"]
