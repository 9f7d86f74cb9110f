"""Small models, of transformers and of ours, and products of a model: torch's count, and ours."""

from collections import OrderedDict

import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof import models
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
GROUPS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **MOE}
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip


def in_layers(layers):
    """A model of such layers, one after the other."""
    return torch.nn.Sequential(OrderedDict(layers=torch.nn.Sequential(*layers)))


def dispatched(call, *args, **inputs):
    """The FLOPs of products that torch counts in a call, and the call's result."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = call(*args, **inputs)
    return counter.get_total_flops(), result


def products(subject, sizes, phase="forward"):
    """The FLOPs of products that we count in a phase of a model."""
    return totals(count(subject.target(phase), sizes, phase, compare_real=False), phase)[
        "matmul_flops"
    ]


def check_formulas(report, subject, sizes, phase="forward", without=(), **layers):
    """Hold formulas of the whole in a report against all that is counted in a phase at sizes."""
    ours = totals(count(subject.target(phase), sizes, phase, compare_real=False), phase)
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
