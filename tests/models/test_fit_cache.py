"""Caches that ``fit`` lays out, and parameters, against those of real models of many families."""

from fractions import Fraction

import pytest
import torch
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

import attnprof
from attnprof.errors import CannotRunError
from attnprof.models.conventions import MATRICES
from attnprof.models.fit_layout import fit_model
from attnprof.models.fit_options import FitOptions
from attnprof.models.fit_parts import cache_bytes, entries_of_rank
from tests.models.tiny import EXPERTS, TINY, fields_of, real

#: Types whose layers keep other things than keys and values of all tokens.
TYPES = (
    "mistral", "gemma3n_text", "deepseek_v3", "glm_moe_dsa", "deepseek_v4", "minimax_m3_vl_text",
    "minimax", "bamba", "falcon_h1", "lfm2",
)  # fmt: skip
WINDOW = 5
TOKENS = 511  # whole blocks of compressed rows and, less one, as many that wait as can be


def kept(cache):
    """Bytes of a real cache as engines keep it: states in float32, the rest in half precision.

    An indexer's keys are in fp8 with a scale each. transformers keeps one row less of a window, and
    one more of a convolution's tail.
    """
    held, seen = Fraction(0), set()
    for layer in [vars(x) for x in cache.layers] + [vars(cache)]:
        keys, values = layer.get("keys"), layer.get("values")
        is_one = values is not None and values.shape == keys.shape and torch.equal(keys, values)
        for name, value in layer.items():
            if name == "layers" or (name == "values" and is_one):  # DeepSeek-V4's are the keys
                continue
            for x in tree_leaves(value):
                if not torch.is_tensor(x) or not x.is_floating_point() or x.data_ptr() in seen:
                    continue
                seen |= {x.data_ptr()} if x.numel() else set()
                size = Fraction(
                    x.numel() * (4 if name in ("recurrent_states", "linear_cache") else 2)
                )
                if name == "indexer_keys":
                    size = Fraction(x.numel() * (x.shape[-1] + 4), x.shape[-1])
                if name == "conv_states":
                    size *= Fraction(x.shape[-1] - 1, x.shape[-1])
                in_window = layer.get("sliding_window") and name in ("keys", "values")
                held += size * Fraction(WINDOW, WINDOW - 1) if in_window else size
    return held


@pytest.mark.parametrize("model_type", TYPES)
def test_caches_and_parameters_are_those_of_the_real_model(model_type):
    fields = fields_of(model_type)
    built = real(fields)
    with torch.no_grad():
        cache = built(torch.randint(3, 90, (1, TOKENS)), use_cache=True).past_key_values
    biases = [x for name, x in built.named_buffers() if name.endswith("correction_bias")]
    model = fit_model(fields)
    ours = cache_bytes(model, FitOptions(memory=1, block_size=1), TOKENS)
    assert 0 <= ours - kept(cache) < 2 * len(cache.layers)  # an entry of a layer is whole
    entries = sum(x.numel() for x in (*built.parameters(), *biases))
    assert sum(x.entries for x in model.sizes.weights.values()) == entries


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "fp8", "fp8_ds_mla"])
def test_an_indexers_key_is_in_fp8_whatever_the_rows_are_in(cache_dtype):
    """DeepSeek-V3.2's 132 B a token: 128 numbers of a byte, and a scale."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    model = fit_model(fields_of("deepseek_v32", **sizes))
    options = FitOptions(memory=1, block_size=1, cache_dtype=cache_dtype)
    row = 576 * 2 if cache_dtype == "bfloat16" else 656
    assert cache_bytes(model, options, 7) == 3 * 7 * (row + 132)


def test_ranks_divide_projections_of_groups_of_heads():
    """The first of DeepSeek-V4's two output maps has 8 columns a group and rank of its latent."""
    narrow, wide = (
        [entries_of_rank(fit_model(fields_of("deepseek_v4", o_lora_rank=rank)),
                         FitOptions(memory=1, tensor_parallel=ranks))["attention"]
         for ranks in (1, 2)]
        for rank in (8, 16)
    )  # fmt: skip
    more = [after - before for before, after in zip(narrow, wide, strict=True)]
    assert more == [3 * 4 * 8 * (8 + 32), 3 * 4 * 8 * (8 + 32) / 2]


#: Models whose results have other caches than keys and values, or none, or whose prompts depend on
#: values. XLNet's configuration takes no most tokens.
LED = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_hidden_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "attention_window": [64], "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
}  # fmt: skip
OTHERS = {
    "recurrent_gemma": {"lru_width": 24, "attention_window_size": WINDOW, "num_key_value_heads": 1},
    "xlnet": {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 40},
    "led": LED, "jetmoe": {**EXPERTS, "kv_channels": 8},
}  # fmt: skip
#: Entries by hand: of JetMoE a token's 2 of 4 experts, in attention and after it; of LED all but
#: the maps of global tokens, once, though the source of a short run is padded to a window.
MATRICES_MET = {
    "jetmoe": 3 * (2 * (2 * 16 * 32 + (2 * 48 + 48) * 32) + 2 * 4 * 32 + 2 * 16 * 32) + 96 * 32,
    "led": 12 * 32 * 32 + 4 * 32 * 40 + 96 * 32,
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_caches_are_those_of_the_real_model(model_type):
    fields = fields_of(model_type, **OTHERS[model_type])
    if model_type == "xlnet":
        del fields["max_position_embeddings"]
    built, ids = real(fields), torch.randint(3, 90, (1, 40))
    inputs = {"decoder_input_ids": ids} if model_type == "led" else {}
    if model_type == "recurrent_gemma":
        inputs["past_key_values"] = DynamicCache(config=built.config)
    with torch.no_grad():
        result = built(ids, use_cache=True, **inputs)
    caches = [result.get("past_key_values", inputs.get("past_key_values"))]
    if model_type == "led":
        caches = [caches[0].self_attention_cache, caches[0].cross_attention_cache]
    held = (
        sum(2 * x.numel() for x in result.mems) if model_type == "xlnet" else sum(map(kept, caches))
    )
    for module in built.modules():  # RecurrentGemma's states and tails
        for name, size in (("recurrent_states", 4), ("conv1d_state", 2)):
            held += size * vars(module)[name].numel() if name in vars(module) else 0
    model = fit_model(fields)
    assert cache_bytes(model, FitOptions(memory=1, block_size=1), 40) == held
    weights = model.sizes.weights
    entries = (
        sum(x.entries for x in weights.values()) + model.idle
    )  # LED has weights of global tokens
    assert entries == sum(x.numel() for x in built.parameters())
    matrices = sum(weights[role].active for role in MATRICES if role in weights)
    assert matrices == MATRICES_MET.get(model_type, matrices)


def test_windows_alone_may_keep_one_tensor_for_keys_and_values():
    """Layers of DeepSeek-V4 that compress nothing, in a model without others."""
    fields = fields_of("deepseek_v4", layer_types=["sliding_attention"] * 3)
    held = cache_bytes(fit_model(fields), FitOptions(memory=1, block_size=1), 40)
    assert held == 3 * WINDOW * 8 * 2


WITHOUT_CACHE = {"bert": "gives no cache", "rwkv": "in a form that is not known"}


@pytest.mark.parametrize("model_type", WITHOUT_CACHE)
def test_a_model_whose_cache_is_not_laid_out_says_what_to_type_and_is_trained(model_type):
    fields = {**TINY, "model_type": model_type, "attention_hidden_size": 32}
    with pytest.raises(CannotRunError, match=WITHOUT_CACHE[model_type]) as refused:
        attnprof.fit(fields, memory="1GB")
    assert "type attnprof model" in str(refused.value)
    parameters = sum(x.numel() for x in real(fields).parameters())
    trained = attnprof.fit(fields, memory="1GB", train=True)
    by_part = {record.part: record.bytes for record in trained.records}
    assert by_part["weights"] == 2 * parameters
    assert by_part["optimizer"] == 12 * parameters
