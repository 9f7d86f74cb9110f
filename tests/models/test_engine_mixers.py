"""What the engine's view leaves as torch runs it, by the class of a module."""

import pytest
import torch

from attnprof.models.engine import mixer_classes, notes
from attnprof.models.sources import hub_subject

pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 96, "num_hidden_layers": 2,
    "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
LEFT = [
    ("llama", {}, []),
    ("gpt_oss", {"num_local_experts": 4}, []),
    ("bert", {}, []),
    ("qwen3_next", {"num_experts": 4, "layer_types": ["linear_attention", "full_attention"]}, []),
    ("mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 1}, []),
    ("minimax", {"num_local_experts": 4}, []),
    ("mamba", {"state_size": 4}, []),
    ("xlstm", {"num_heads": 4, "num_blocks": 2}, ["xLSTMLayer"]),
    ("rwkv", {"attention_hidden_size": 32}, ["RwkvSelfAttention"]),
    ("longformer", {"attention_window": 8}, ["LongformerAttention"]),
]  # fmt: skip


def built(model_type, fields):
    with torch.device("meta"):
        return hub_subject({**SIZES, **fields, "model_type": model_type}, "tiny").build()


@pytest.mark.parametrize(("model_type", "fields", "classes"), LEFT)
def test_modules_that_engines_have_no_kernel_for_are_named_by_their_class(
    model_type, fields, classes
):
    model = built(model_type, fields)
    assert mixer_classes(model)[1] == classes
    expected = [f"{name} is counted as torch runs it" for name in classes]
    told = [line.partition(",")[0] for line in notes(model, *mixer_classes(model))]
    assert [line for line in told if "as torch runs it" in line] == expected
