"""FLOPs executed, against torch's counter on real models of many types with attention by math.

Math attention computes masked pairs too; they are counted from the probabilities that the model
returns, which are 0 there, and taken off.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.models.hub_config import class_of, configuration
from attnprof.models.mfu import flops_of
from attnprof.models.mfu_sizes import sizes_of

pytest.importorskip("transformers")

TINY = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip
#: Fields beside TINY, and entries of a key and a value together, by type.
CASES = {
    "llama": ({}, 16),
    "qwen3": ({}, 16),
    "mistral": ({"sliding_window": 5}, 16),
    "gemma3_text": ({"sliding_window": 5, "num_hidden_layers": 7}, 16),
    "gpt2": ({"n_layer": 3, "n_embd": 32, "n_head": 4}, 16),
    "bert": ({}, 16),
    "modernbert": ({"local_attention": 8, **_TOKENS, "cls_token_id": 1, "sep_token_id": 2}, 16),
    "t5": ({"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": 3}, 16),
    "bloom": ({"n_layer": 3, "n_head": 4}, 16),  # its attention asks no registry
    "codegen": ({"n_layer": 3, "n_embd": 32, "n_head": 4, "rotary_dim": 4}, 16),
    "gemma4_text": ({"sliding_window": 5, "num_key_value_heads": 2, "global_head_dim": 8,
                     "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 4,
                     "num_kv_shared_layers": 0}, 16),
    "olmo2": ({}, 16),
    "granite": ({}, 16),
    "opt": ({"ffn_dim": 40, "word_embed_proj_dim": 32}, 16),
    "phi3": (_TOKENS, 16),
    "mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, 16),
    "qwen2_moe": ({"num_experts": 4, "shared_expert_intermediate_size": 24, **_MOE}, 16),
    "gpt_oss": ({"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2}, 16),
    "deepseek_v3": (
        {**_LATENT, **_MOE, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
         "first_k_dense_replace": 1}, 15,
    ),
    "llama4_text": (
        {"attention_chunk_size": 6, "num_local_experts": 1, "num_experts_per_tok": 1,
         "intermediate_size_mlp": 40, "num_hidden_layers": 4}, 16,
    ),
}  # fmt: skip


def counted(fields, tokens, **how):
    """Torch's count of a forward pass of the real model, and what it returned."""
    config = configuration(fields, "tiny")
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    torch.manual_seed(0)
    model = class_of(config)(config).eval()
    inputs = {"input_ids": torch.randint(3, 90, (1, tokens))}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = model(**inputs, **how)
    return counter.get_total_flops(), result


@pytest.mark.parametrize("tokens", [4, 23])
@pytest.mark.parametrize("model_type", CASES)
def test_executed_is_what_torch_counts_less_masked_pairs(model_type, tokens):
    more, widths = CASES[model_type]
    fields = {**TINY, **more, "model_type": model_type}
    total, result = counted(fields, tokens, output_attentions=True)
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    probabilities = [x for name in names for x in getattr(result, name, None) or ()]
    masked = sum(int((x == 0).sum()) for x in probabilities)
    assert len(probabilities) >= fields["num_hidden_layers"]
    executed = flops_of(sizes_of(fields), [tokens], "executed", "forward")
    assert executed == total - 2 * widths * masked


def test_mamba_2_is_its_chunked_form_where_heads_of_a_group_share_keys():
    heads, width, state, groups, chunk, tokens, kernel = 8, 8, 16, 2, 8, 24, 4
    fields = {
        "model_type": "mamba2", "num_hidden_layers": 3, "hidden_size": 32, "vocab_size": 96,
        "num_heads": heads, "head_dim": width, "state_size": state, "n_groups": groups,
        "chunk_size": chunk, "expand": 2, "conv_kernel": kernel,
    }  # fmt: skip
    total, _ = counted(fields, tokens)
    channels = heads * width + 2 * groups * state
    padding = 2 * channels * kernel * (kernel - 1)  # torch counts outputs that are cut off
    unshared = 2 * tokens * (heads - groups) * chunk * state  # the file repeats keys
    between_chunks = 2 * heads * (tokens // chunk + 1) ** 2 * width * state
    beyond = padding + unshared + between_chunks
    assert flops_of(sizes_of(fields), [tokens], "executed", "forward") == total - 3 * beyond


def test_gated_delta_layers_have_the_products_that_their_file_solves_for():
    keys, values, dk, dv, chunk, kernel = 2, 4, 8, 6, 64, 4
    fields = {
        **TINY, **_MOE, "model_type": "qwen3_next", "num_hidden_layers": 4, "num_experts": 4,
        "linear_num_key_heads": keys, "linear_num_value_heads": values, "linear_key_head_dim": dk,
        "linear_value_head_dim": dv, "linear_conv_kernel_dim": kernel,
        "shared_expert_intermediate_size": 24,
    }  # fmt: skip
    total, _ = counted(fields, chunk)
    channels = 2 * keys * dk + values * dv
    padding = 2 * channels * kernel * (kernel - 1)
    solved = 2 * chunk * chunk * values * (dk + dv)  # by triangular solves, 0 to torch
    masked = 4 * 16 * chunk * (chunk - 1)  # 4 heads of one layer, widths 8 + 8, half the pairs
    executed = flops_of(sizes_of(fields), [chunk], "executed", "forward")
    assert executed == total - masked + 3 * (solved - padding)


def test_training_is_three_times_products_and_three_and_a_half_times_attention():
    sizes = sizes_of({**TINY, "model_type": "llama"})
    n, pairs = 100, 3 * 4 * (8 + 8) * 100 * 101 // 2
    forward, train = (flops_of(sizes, [n], "executed", phase) for phase in ("forward", "train"))
    assert 2 * train == 6 * (forward - 2 * pairs) + 7 * 2 * pairs


def test_attention_with_wide_keys_recomputes_the_wide_products():
    more, _ = CASES["deepseek_v3"]
    sizes = sizes_of({**TINY, **more, "model_type": "deepseek_v3"})
    n, pairs = 100, 3 * 4 * 100 * 101 // 2
    forward, train = (flops_of(sizes, [n], "executed", phase) for phase in ("forward", "train"))
    products = forward - 2 * pairs * (10 + 5)
    assert train == 3 * products + 2 * pairs * (4 * 10 + 3 * 5)
