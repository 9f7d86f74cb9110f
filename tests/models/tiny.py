"""Small models, of transformers and of ours, and products of a model: torch's count, and ours."""

from collections import OrderedDict

import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof import models
from attnprof.models.hub_config import class_of, configuration
from attnprof.models.sources import hub_subject
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count

SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {**SIZES, **TOKENS}
#: Fields of experts beside their number, of experts in groups, and of latent attention.
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GROUPS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **MOE}
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip
_INDEXER = {"index_topk": 6, "index_n_heads": 2, "index_head_dim": 8}
_DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 2,
    "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_d_conv": 3,
}  # fmt: skip
#: Fields beside SIZES or TINY, by type.
FIELDS = {
    **{
        name: {} for name in (
            "llama", "qwen2", "qwen3", "phi3", "gemma", "glm4", "granite", "helium", "olmo2",
            "bert",
        )
    },
    "mistral": {"sliding_window": 5},
    "ministral": {"sliding_window": 5},
    "starcoder2": {"sliding_window": 7},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 5, "num_hidden_layers": 7},
    "gemma4_text": {"sliding_window": 5, "num_key_value_heads": 2, "global_head_dim": 8,
                    "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 4,
                    "num_kv_shared_layers": 0},
    "cohere2": {"sliding_window": 4, "num_hidden_layers": 4},
    "olmo3": {"sliding_window": 6, "num_hidden_layers": 4},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "modernbert": {"local_attention": 8, **TOKENS, "cls_token_id": 1, "sep_token_id": 2},
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 4},
    "bloom": {"n_layer": 3, "n_head": 4},  # its attention asks no registry
    "codegen": {"n_layer": 3, "n_embd": 32, "n_head": 4, "rotary_dim": 4},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 32},
    "t5": {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": 3},
    "gpt_oss": {"sliding_window": 5, **EXPERTS},
    "mixtral": EXPERTS,
    "qwen3_moe": {"num_experts": 4, **MOE},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 24, **MOE},
    "llama4_text": {
        "attention_chunk_size": 6, "num_local_experts": 1, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40, "num_hidden_layers": 4,
    },
    "deepseek_v2": {**LATENT, **GROUPS, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, **GROUPS},
    "deepseek_v32": {**LATENT, **GROUPS, **_INDEXER},
    "glm_moe_dsa": {**LATENT, **GROUPS, **_INDEXER},
    "deepseek_v4": {
        **MOE, **_INDEXER, "n_routed_experts": 4, "sliding_window": 5, "num_key_value_heads": 1,
        "q_lora_rank": 12, "o_lora_rank": 8, "o_groups": 4, "layer_types": [
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
        ],
    },
    "minimax_m3_vl_text": {
        **MOE, **TOKENS, **_INDEXER, "num_local_experts": 4, "index_block_size": 4,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_topk_blocks": 3, "shared_intermediate_size": 12, "dense_intermediate_size": 48,
    },
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_kv_shared_layers": 1, "sliding_window": 5, "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 96, "laurel_rank": 4, "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 3, "intermediate_size": [48] * 3,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 5},
    "qwen3_next": {**MOE, "num_experts": 4, **_DELTA, "shared_expert_intermediate_size": 20},
    "qwen3_5_text": _DELTA,
    "olmo_hybrid": {**_DELTA, "linear_num_value_heads": 4, "linear_num_key_heads": 4},
    "kimi_linear": {
        "linear_num_heads": 4, "linear_head_dim": 8, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 4, **EXPERTS,
        "moe_intermediate_size": 20, "n_group": 1, "topk_group": 1,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    },
    "mamba2": {
        "num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "chunk_size": 8, "expand": 2,
    },
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **_MAMBA2, "layer_types": ["mamba", "attention", "mamba"], **EXPERTS,
        "shared_intermediate_size": 20,
    },
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 64},
    "nemotron_h": {
        "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 6, "n_groups": 2,
        "chunk_size": 8, "layers_block_type": ["mamba", "attention", "mamba"],
    },
    "zamba2": {
        "mamba_d_state": 6, "mamba_ngroups": 2, "n_mamba_heads": 8, "mamba_expand": 2,
        "chunk_size": 8, "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1],
        "attention_hidden_size": 64, "attention_head_dim": 16, "num_mem_blocks": 1,
        "use_shared_attention_adapter": False, "num_key_value_heads": 4, "adapter_rank": 4,
    },
    "mamba": {"state_size": 6, "time_step_rank": 3},
    "falcon_mamba": {"state_size": 6, "time_step_rank": 3},
    "jamba": {
        "mamba_d_state": 6, "mamba_dt_rank": 3, "num_experts": 4, "num_experts_per_tok": 2,
        "attn_layer_period": 3, "attn_layer_offset": 1,
    },
    "minimax": {  # its masks of a token are right only if the first layer keeps keys
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "block_size": 8, **EXPERTS,
    },
}  # fmt: skip


def fields_of(model_type, **more):
    """The fields of a small model of a type."""
    return {**TINY, **FIELDS.get(model_type, {}), "model_type": model_type, **more}


def small(model_type, kernel=None, **more):
    """A small model of a type, to be counted."""
    return hub_subject(fields_of(model_type, **more), "tiny", kernel)


def real(fields, kernel="eager"):
    """Transformers' model on real tensors, whose experts run as torch counts them."""
    config = configuration(fields, "tiny")
    config._attn_implementation, config._experts_implementation = kernel, "eager"
    torch.manual_seed(0)
    return class_of(config)(config).eval()


def in_layers(layers):
    """A model of such layers, one after the other."""
    return torch.nn.Sequential(OrderedDict(layers=torch.nn.Sequential(*layers)))


def dispatched(call, *args, **inputs):
    """The FLOPs of products that torch counts in a call, and the call's result."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = call(*args, **inputs)
    return counter.get_total_flops(), result


def counted(subject, sizes, phase="forward"):
    """The run of a phase of a model at sizes, or of a copy of its ``cache``, as we count it."""
    if phase == "cache":
        return count(subject.cache(), sizes, "forward", compare_real=False)
    return count(subject.target(phase), sizes, phase, compare_real=False)


def products(subject, sizes, phase="forward"):
    """The FLOPs of products that we count in a phase of a model."""
    return totals(counted(subject, sizes, phase), phase)["matmul_flops"]


def check_formulas(report, subject, sizes, phase="forward", without=(), **layers):
    """Hold formulas of the whole in a report against all that is counted in a phase at sizes."""
    ours = totals(counted(subject, sizes, phase), phase)
    at = {name: sympy.Integer(size) for name, size in {**sizes, **layers}.items()}
    for row in report.records:
        if (row.part, row.phase) == ("total", phase) and row.quantity in ours.keys() - {*without}:
            assert sympy.sympify(row.expression, at) == ours[row.quantity], row.quantity


#: Sizes of small models of ours.
SMALL = {"d_model": 8, "hidden_dim": 12, "seq_len": 12, "vocab_size": 11}


def built(config):
    """A shrunken model in evaluation mode: two layers, 12 tokens, or 16 patches of 2 x 2."""
    heads = min(config.num_heads, 2)
    changed = {**SMALL, "num_heads": heads, "num_layers": min(config.num_layers, 2)}
    if config.image_size:
        changed |= {"image_size": 8, "patch_size": 2}
    if config.num_classes:
        changed["num_classes"] = 3
    if config.head_hidden:
        changed["head_hidden"] = 5
    return models.build(config.with_(**changed)).eval()
