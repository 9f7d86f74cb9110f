"""Modules that ``quantization_config`` leaves as they are or puts into groups: bytes by hand."""

import math
from fractions import Fraction

import pytest

import attnprof
from tests.models.test_fit import DEEPSEEK, LLAMA, QWEN

pytest.importorskip("transformers")

#: Matrices of DEEPSEEK: a layer's attention, the dense layer, the experts and what is shared.
ATTENTION = 64 * 24 + 24 * 4 * 24 + 64 * 40 + 32 * 4 * 32 + 4 * 16 * 64
DENSE, EXPERTS, SHARED, HEAD = 3 * 64 * 96, 4 * 3 * 64 * 24, 3 * 64 * 24, 100 * 64
ALL = 2 * ATTENTION + DENSE + EXPERTS + SHARED
INT4, FP8, BLOCKS = Fraction(4 * 32 + 16, 8 * 32), Fraction(1), 1 + Fraction(4, 16 * 16)


def group(*targets, bits=4, kind="int"):
    """A group of compressed-tensors, in integers with a scale for 32 or in fp8."""
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "group"}
    return {"targets": list(targets), "weights": {**weights, "group_size": 32 if bits == 4 else 0}}


def groups(*tables, ignore=("lm_head",)):
    return {
        "quant_method": "compressed-tensors", "ignore": list(ignore),
        "config_groups": {f"group_{n}": table for n, table in enumerate(tables)},
    }  # fmt: skip


def fp8(*names):
    return {"quant_method": "fp8", "modules_to_not_convert": list(names)}


ALL_BUT_EXPERTS = (
    "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
)  # fmt: skip
KERNELS = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
#: Tables of files, and the entries of DEEPSEEK by the bytes of each; others are in bfloat16.
TABLES = {
    "all but experts": (groups(group("Linear"), ignore=ALL_BUT_EXPERTS), {INT4: EXPERTS}),
    "the head, too": (groups(group("Linear"), ignore=[]), {INT4: ALL + HEAD}),
    "a matrix by its name": (
        groups(group("Linear"), ignore=["lm_head", "model.layers.0.self_attn.o_proj"]),
        {INT4: ALL - 4 * 16 * 64},
    ),
    "a name is no beginning": (groups(group("Linear"), ignore=["lm_head", "model.layers.0"]),
                               {INT4: ALL}),
    "two groups": (
        groups(group(r"re:.*mlp\.experts\..*"), group("re:.*self_attn", bits=8, kind="float")),
        {INT4: EXPERTS, FP8: 2 * ATTENTION},
    ),
    "a group of what is left": (
        groups(group("Linear"), group("re:.*self_attn", bits=8, kind="float")),
        {INT4: ALL - 2 * ATTENTION, FP8: 2 * ATTENTION},
    ),
    "a group without weights": (
        groups(group("Linear"), {"targets": ["re:.*self_attn$"], "weights": None}), {INT4: ALL},
    ),
    "a layer": (fp8("model.layers.0"), {FP8: ALL - ATTENTION - DENSE}),
    "an ending": (fp8("kv_b_proj", "lm_head"), {FP8: ALL - 2 * 32 * 4 * 32}),
    "an expression": (fp8("model.layers.*.self_attn"), {FP8: ALL - 2 * ATTENTION}),
    "a part of a name": (fp8("mlp.gate"), {FP8: ALL}),
    "experts": (fp8("model.layers.1.mlp.experts"), {FP8: ALL - EXPERTS}),
    "an expert's matrix": (fp8("mlp.experts.0.gate_proj"), {FP8: ALL - EXPERTS}),
    "a model of images": (fp8("model.language_model.layers.0.mlp", "visual"), {FP8: ALL - DENSE}),
    "no expression": (fp8("*self_attn*"), {FP8: ALL - 2 * ATTENTION}),
    "no names": ({"quant_method": "fp8", "modules_to_not_convert": None}, {FP8: ALL}),
    "blocks": ({**fp8("kv_b_proj"), "weight_block_size": [16, 16]},
               {BLOCKS: ALL - 2 * 32 * 4 * 32}),
    "wildcards": ({**KERNELS, "ignore": ["lm_head", "model.layers.*.self_attn*"]},
                  {Fraction(9, 16): ALL - 2 * ATTENTION}),
    "modules to exclude": ({**KERNELS, "exclude_modules": ["shared_experts"]},
                           {Fraction(9, 16): ALL - SHARED}),
    "Nemotron-H's names": ({**KERNELS, "ignore": ["backbone.layers.0.self_attn"]},
                           {Fraction(9, 16): ALL - ATTENTION}),
    "halves": ({"load_in_8bit": True, "llm_int8_skip_modules": ["self_attn.o_proj"]},
               {FP8: ALL - 2 * 4 * 16 * 64}),
    "bits of a module": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128,
         "extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16},
                          "model.layers.0.mlp.down_proj": {"bits": 8}}},
        {Fraction(4 * 128 + 20, 8 * 128): ALL - 2 * 64 * 96,
         Fraction(8 * 128 + 24, 8 * 128): 64 * 96},
    ),
    "rules of which the first counts": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {
            r"-:model\.layers\.0\.": {}, r"+:.*\.o_proj": {"bits": 8}, r".*o_proj": {"bits": 2}}},
        {Fraction(4 * 32 + 20, 8 * 32): ALL - ATTENTION - DENSE - 4 * 16 * 64,
         Fraction(8 * 32 + 24, 8 * 32): 4 * 16 * 64},
    ),
    "every module by its name": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
            **{f"model.layers.1.mlp.experts.{n}.{x}_proj": {"quant_algo": "NVFP4", "group_size": 16}
               for n in range(4) for x in ("gate", "up", "down")}}},
        {Fraction(9, 16): EXPERTS, FP8: 4 * 16 * 64},
    ),
}  # fmt: skip


def weights(fields):
    return attnprof.fit(fields, memory="1GB").records[0].bytes


@pytest.mark.parametrize("name", TABLES)
def test_modules_that_a_file_does_not_quantise_stay_in_bfloat16(name):
    table, entries = TABLES[name]
    others = weights(DEEPSEEK) - 2 * sum(entries.values())
    expected = others + sum(each * number for each, number in entries.items())
    assert weights({**DEEPSEEK, "quantization_config": table}) == math.ceil(expected)


def test_a_layer_is_not_another_whose_number_begins_alike():
    llama = {**LLAMA, "num_hidden_layers": 12}
    left = {**llama, "quantization_config": fp8("model.layers.1")}
    none = {**llama, "quantization_config": fp8()}
    assert weights(left) - weights(none) == 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96


def test_a_table_that_is_the_head_is_not_quantised():
    tied = {**LLAMA, "tie_word_embeddings": True}
    left, taken = (
        weights({**tied, "quantization_config": groups(group("Linear"), ignore=names)})
        for names in (["lm_head"], [])
    )
    assert left == taken


def test_experts_alone_are_in_the_microscaled_format_of_a_file():
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    table = {"quant_method": "mxfp4", "modules_to_not_convert": names}
    experts = 3 * 8 * 3 * 64 * 24
    saved = weights(QWEN) - weights({**QWEN, "quantization_config": table})
    assert saved == 2 * experts - experts * 17 // 32


def test_a_format_of_a_part_of_a_model_of_images_is_read():
    table = fp8("model.layers.0")
    inner = {**LLAMA, "quantization_config": table}
    fields = {"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 16,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
              "image_size": 28, "patch_size": 14}}  # fmt: skip
    plain = {**fields, "text_config": LLAMA}
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96
    assert weights(plain) - weights(fields) == 2 * layer
