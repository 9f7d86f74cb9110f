"""The engine's view against real models: pairs of real masks, torch's counter, real caches."""

from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.models.engine import engine_subject
from attnprof.models.engine_cache import saved_flops
from attnprof.models.hub_config import class_of, configuration
from attnprof.models.sources import hub_subject
from attnprof.trace.events import Trace
from attnprof.trace.solve.count import counted

pytest.importorskip("transformers")

TINY = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
#: Fields beside TINY by type.
CASES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 5, "num_hidden_layers": 7},
    "gpt_oss": {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, **_MOE},
    "llama4_text": {
        "attention_chunk_size": 6, "num_local_experts": 1, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40, "num_hidden_layers": 4,
    },
    "phi3": {},
    "cohere2": {"sliding_window": 4, "num_hidden_layers": 4},
    "olmo3": {"sliding_window": 6, "num_hidden_layers": 4},
    "starcoder2": {"sliding_window": 7},
    "deepseek_v3": {
        "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
        "v_head_dim": 5, "head_dim": 4, "num_key_value_heads": 4, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **_MOE,
    },
}  # fmt: skip
PAIRS = "test_pairs"
_SEEN = []


def _counting(_module, query, key, value, attention_mask=None, **_):
    """Note the FLOPs of two products on each entry that a real mask leaves; compute nothing."""
    batch, heads, queries, _ = query.shape
    mask = attention_mask[..., : key.shape[2]].expand(batch, heads, queries, key.shape[2])
    _SEEN.append(2 * (key.shape[-1] + value.shape[-1]) * int((mask == 0).sum()))
    return query.new_zeros(batch, queries, heads, value.shape[-1]), None


@cache
def real(model_type, batch, tokens, *, decodes):
    """FLOPs of attention by real masks and of all other products; and the prompt's cache."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(PAIRS, _counting)
    AttentionMaskInterface.register(PAIRS, eager_mask)
    config = configuration({**TINY, **CASES[model_type], "model_type": model_type}, "tiny")
    config._attn_implementation, config._experts_implementation = PAIRS, "eager"
    torch.manual_seed(0)
    model = class_of(config)(config).eval()
    model.config._attn_implementation = PAIRS
    rows, past = torch.randint(3, 90, (batch, tokens)), None
    with torch.no_grad():
        if decodes:
            past = model(rows[:, :-1], use_cache=True).past_key_values
            rows = rows[:, -1:]
        _SEEN.clear()
        with FlopCounterMode(display=False) as counter:
            result = model(rows, past_key_values=past, use_cache=True)
    return sum(_SEEN), counter.get_total_flops(), result.past_key_values


@cache
def subject_of(model_type):
    fields = {**TINY, **CASES[model_type], "model_type": model_type}
    return engine_subject(hub_subject(fields, "tiny"))


@cache
def engine_run(model_type, phase, batch, tokens) -> Trace:
    subject = subject_of(model_type)
    assert subject.view == "engine"
    return counted(subject.target(phase), {"B": batch, "N": tokens}, phase, held=False)[0]


def products(calls):
    return sum(call.counts.get("matmul_flops", 0) for call in calls)


# runs of prompts and of a token after them are those of the next tests, too
@pytest.mark.parametrize(
    ("phase", "tokens"), [("forward", 4), ("forward", 18), ("decode", 5), ("decode", 19)]
)
@pytest.mark.parametrize("model_type", CASES)
def test_products_are_those_of_real_masks_and_torchs_counter(model_type, phase, tokens):
    of_pairs, others, _ = real(model_type, 2, tokens, decodes=phase == "decode")
    calls = engine_run(model_type, phase, 2, tokens).calls
    attention = [call for call in calls if "fused_attention" in call.op]
    if model_type == "deepseek_v3" and phase == "decode":  # absorbed
        model = subject_of(model_type).build()
        assert products(calls) == of_pairs + others - saved_flops(model, 2, tokens)
        return
    assert products(attention) == of_pairs
    assert products(calls) - products(attention) == others


@pytest.mark.parametrize("tokens", [4, 18])
@pytest.mark.parametrize("model_type", CASES)
def test_a_decoded_token_reads_the_cache_once_and_writes_one_row(model_type, tokens):
    batch, size = 2, 4
    before = real(model_type, batch, tokens, decodes=False)[2].layers
    calls = engine_run(model_type, "decode", batch, tokens + 1).calls
    assert not any(call.op == "cat" and call.shape[2:3] == (tokens + 1,) for call in calls)
    widths = [x.keys.shape[1] * (x.keys.shape[-1] + x.values.shape[-1]) for x in before]
    written = [call for call in calls if call.op == "copy_" and call.shape[2:3] == (1,)]
    assert sum(call.bytes_moved for call in written) >= 2 * batch * size * sum(widths)
    if model_type == "deepseek_v3":
        return
    for call, width, layer in zip(
        [call for call in calls if "fused_attention" in call.op], widths, before, strict=True
    ):
        chunk = 6 if model_type == "llama4_text" and layer.is_sliding else 10**9
        seen = min(layer.keys.shape[2], tokens % chunk) + 1
        query, out, sums = 4 * 8, 4 * 8, 4
        sinks = 4 if model_type == "gpt_oss" else 0
        assert call.bytes_moved == size * (batch * (width * seen + query + out + sums) + sinks)


@pytest.mark.parametrize("tokens", [4, 18])
@pytest.mark.parametrize("model_type", CASES)
def test_cache_bytes_are_those_of_the_cache_after_a_real_prompt(model_type, tokens):
    layers = real(model_type, 2, tokens, decodes=False)[2].layers
    held = sum(x.numel() * 4 for layer in layers for x in (layer.keys, layer.values))
    trace = counted(subject_of(model_type).cache(), {"B": 2, "N": tokens}, "forward", held=False)[0]
    floats = [call.takes for call in trace.calls if call.dtype == "float32"]
    assert sum(floats) == held
