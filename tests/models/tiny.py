"""Sizes of small models of transformers, and products of a model: torch's count, and ours."""

import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.trace.events import totals
from attnprof.trace.solve.count import count

SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {**SIZES, **TOKENS}
#: Fields of experts beside their number, and of latent attention.
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip


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
