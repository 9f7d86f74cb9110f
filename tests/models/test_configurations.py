"""Configurations of public models, as they are published, and shrunken ones on real tensors."""

import pytest
import torch

from attnprof.models.names import released
from attnprof.models.parts import parts, places
from attnprof.models.sources import hub_subject
from attnprof.models.whole import cache_in, tensors_by_layer
from attnprof.trace.solve.count import count
from tests.models.tiny import dispatched, products

#: The fields of a ``config.json``, and the parameters of the published weights. Those of models
#: that are shipped are in :mod:`tests.models.test_presets_public`.
PUBLISHED = {
    "bert-base": (
        {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 30522},
        109_514_298,
    ),
    "t5-small": (
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 32128},
        60_506_624,
    ),
    "vit-base": (
        {"architectures": ["ViTForImageClassification"], "model_type": "vit",
         "id2label": {str(n): str(n) for n in range(1000)}},
        86_567_656,
    ),
    "mamba2-2.7b": (
        {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 2560,
         "num_heads": 80, "head_dim": 64, "state_size": 128, "n_groups": 1,
         "num_hidden_layers": 64, "vocab_size": 50288, "tie_word_embeddings": True},
        2_702_599_680,
    ),
}  # fmt: skip
_SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 97, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "sliding_window": 16,
}  # fmt: skip
_MLA = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip
_MAMBA = {"num_heads": 8, "head_dim": 8, "state_size": 8, "chunk_size": 16, "expand": 2}
#: How published configurations are shrunken, and the products of experts of one token, which
#: torch does not count.
SHRUNKEN = {
    "mistral-7b-v0.1": (_SMALL, 0),
    "qwen3-8b": (_SMALL, 0),
    "deepseek-v2-lite": ({**_SMALL, **_MLA, "head_dim": 4}, 2 * 2 * 3 * 32 * 24),
    "gpt-oss-20b": ({**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}, None),
    "mamba2-2.7b": ({**_SMALL, **_MAMBA}, 0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    fields, entries = PUBLISHED[name]
    model = hub_subject(fields, name).on_meta()
    assert sum(parts(model).values()) == model.num_parameters() == entries
    assert "other" not in parts(model)


@pytest.mark.parametrize("name", SHRUNKEN)
def test_products_and_cache_are_those_of_the_shrunken_model(name):
    smaller, of_experts = SHRUNKEN[name]
    whole = PUBLISHED[name][0] if name in PUBLISHED else released()[name].config
    made = hub_subject({**whole, "dtype": "float32", **smaller}, name, "eager")
    model = made.build().eval()
    for n in (19, 33):
        counted, result = dispatched(model, torch.randint(3, 97, (2, n)), use_cache=True)
        if of_experts is not None:
            assert products(made, {"B": 2, "N": n}) == counted + 2 * n * of_experts
        held = sum(x.nbytes for layer in tensors_by_layer(cache_in(result, name)[1]) for x in layer)
        copied = count(made.cache(), {"B": 2, "N": n}, "forward")
        assert sum(call.takes for call in copied.calls) == held


#: Fields of models with modules of their own, what names such a module, its part, and whether the
#: part has nothing else.
MODULES = {
    "mlps of a hybrid": (
        {"architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", **_SMALL,
         "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
        ".mlp_block.", "mlp", True,
    ),
    "scales of a layer": (
        {"model_type": "dinov2", **_SMALL, "image_size": 32, "patch_size": 8},
        ".layer_scale", "norm", False,
    ),
    "linear maps between mixers": (
        {"model_type": "zamba2", **_SMALL, "num_hidden_layers": 4, "hybrid_layer_ids": [1, 3],
         "layer_types": ["linear_attention", "hybrid"] * 2, "mamba_ngroups": 1, "n_mamba_heads": 8,
         "num_key_value_heads": 4},
        ".linear.", "mlp", False,
    ),
    "a network of two maps": (
        {"model_type": "patchtst", "d_model": 16, "num_attention_heads": 4, "ffn_dim": 24,
         "num_hidden_layers": 2, "num_input_channels": 2, "context_length": 32},
        ".ff.", "mlp", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_a_part_whatever_they_are_called(name):
    fields, marker, part, alone = MODULES[name]
    model = hub_subject(fields, name).on_meta()
    where, counts = places(model), parts(model)
    assert "other" not in counts or fields["model_type"] == "patchtst"
    named = {n: x.numel() for n, x in model.named_parameters() if marker in n}
    assert {where[n.rpartition(".")[0]].part for n in named} == {part}
    assert not alone or counts[part] == sum(named.values())
