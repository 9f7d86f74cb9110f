"""Absorbed latent attention: the results of transformers' own modules, and products by hand."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from attnprof.models.engine_cache import (
    _absorbing,
    absorb,
    absorbed,
    latent_modules,
    latent_note,
    saved_flops,
)
from attnprof.models.sources import hub_subject
from attnprof.models.whole import WholeModel
from attnprof.trace.solve.symbolic import run_symbolically
from tests.models.tiny import GROUPS, LATENT, TINY, counted, dispatched, real

KERNEL = "test_absorbed"
HEADS, RANK, NOPE, ROPE, VALUE = 4, 10, 6, 4, 5  # those of SIZES
SIZES = {**TINY, **LATENT, "num_hidden_layers": 2}
CASES = {
    "deepseek_v2": GROUPS, "deepseek_v3": GROUPS, "glm4_moe_lite": GROUPS, "youtu": {},
    "minicpm3": {},
    "longcat_flash": {"n_routed_experts": 4, "moe_topk": 2, "ffn_hidden_size": 48, "num_layers": 1,
                      "expert_ffn_hidden_size": 20, "zero_expert_num": 0},
}  # fmt: skip
#: An indexer picks rows: 3 of them, by more heads than can tie.
PICKED = 3
INDEXED = {**GROUPS, "index_topk": PICKED, "index_n_heads": 16, "index_head_dim": 8}


def _attention(module, query, key, value, attention_mask=None, **how):
    """Attend absorbed if the module hands latents through, else as eager attention does."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    scaling, indices = how.get("scaling"), how.get("indices")
    out = absorbed(module, query, attention_mask, scaling, indices)
    if out is not None:
        return out, None
    if indices is not None:
        hidden = indices.new_ones((*indices.shape[:2], key.shape[2]), dtype=torch.bool)
        hidden = hidden.scatter(-1, indices.long(), value=False)[:, None]
        attention_mask = attention_mask.masked_fill(hidden, torch.finfo(query.dtype).min)
    return eager_attention_forward(module, query, key, value, attention_mask, scaling)


@pytest.fixture(autouse=True)
def _kernel():
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(KERNEL, _attention)
    AttentionMaskInterface.register(KERNEL, eager_mask)


def model_of(model_type, fields, kernel):
    model = real({**SIZES, **fields, "model_type": model_type}, kernel)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return model


def decoded(model, rows):
    """Logits of the last token after the others, which are a prompt; and torch's count of it."""
    with torch.no_grad():
        cache = model(rows[:, :-1], use_cache=True).past_key_values
    counted, result = dispatched(model, rows[:, -1:], past_key_values=cache, use_cache=True)
    return result.logits, counted


@pytest.mark.parametrize("tokens", [2, 9])
@pytest.mark.parametrize(
    ("model_type", "fields"),
    [*CASES.items(), *((name, INDEXED) for name in ("deepseek_v32", "glm_moe_dsa"))],
)
def test_absorbed_attention_gives_the_logits_of_the_expanded(model_type, fields, tokens):
    rows = torch.randint(3, 90, (2, tokens))
    expected, _ = decoded(model_of(model_type, fields, "eager").double(), rows)
    model = model_of(model_type, fields, KERNEL).double()
    assert absorb(model) == list(latent_modules(model)) != []
    logits, _ = decoded(model, rows)
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)  # rotary parts are float32


def engine(model_type, fields):
    subject = hub_subject({**SIZES, **fields, "model_type": model_type}, "tiny", "eager")

    def build():
        model = subject.build()
        for part in model.modules():
            config = getattr(part, "config", None)
            if hasattr(config, "_attn_implementation_internal"):
                config._attn_implementation_internal = KERNEL
        absorb(model)
        return model

    return WholeModel(**{**vars(subject), "build": build})


@pytest.mark.parametrize(("batch", "keys"), [(1, 2), (3, 11)])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "minicpm3"])
def test_a_decoded_token_meets_latents_and_not_the_heads_keys(model_type, batch, keys):
    sizes = {"B": batch, "N": keys}
    subject = engine(model_type, CASES[model_type])
    calls = counted(subject, sizes, "decode").calls
    kernels = [call for call in calls if "latent_attention" in call.op]
    assert len(kernels) == SIZES["num_hidden_layers"]
    row, query, out, mask = RANK + ROPE, HEADS * (RANK + ROPE), HEADS * RANK, keys
    for call in kernels:
        pairs = batch * HEADS * keys
        assert call.counts["matmul_flops"] == 2 * pairs * (2 * RANK + ROPE)
        assert call.bytes_moved == 4 * batch * (row * keys + query + out + mask)
    rows = torch.randint(3, 90, (batch, keys))
    _, torch_flops = decoded(model_of(model_type, CASES[model_type], "eager"), rows)
    expanded = 2 * batch * HEADS * keys * (NOPE + ROPE + VALUE + RANK * (NOPE + VALUE))
    absorbing = 2 * batch * HEADS * (keys * (2 * RANK + ROPE) + RANK * (NOPE + VALUE))
    layers = SIZES["num_hidden_layers"]
    whole = sum(call.counts.get("matmul_flops", 0) for call in calls)
    saved = saved_flops(subject.build(), batch, keys)
    assert saved == layers * (expanded - absorbing)
    assert whole == torch_flops - layers * (expanded - absorbing)


def test_a_copy_of_a_model_keeps_latents_of_its_own():
    rows = torch.randint(3, 90, (1, 5))
    first = model_of("minicpm3", {}, KERNEL)
    absorb(first)
    copied = deepcopy(first)
    for weights in first.parameters():
        torch.nn.init.zeros_(weights)
    expected, _ = decoded(model_of("minicpm3", {}, "eager"), rows)
    assert torch.allclose(decoded(copied, rows)[0], expected, rtol=1e-3, atol=1e-3)


def test_a_prompt_and_a_training_step_are_expanded():
    subject = engine("deepseek_v3", CASES["deepseek_v3"])
    for phase in ("forward", "train"):
        calls = counted(subject, {"B": 2, "N": 7}, phase).calls
        assert not any("latent_attention" in call.op for call in calls)


def test_products_of_a_decoded_token_are_a_formula_in_the_cached_tokens():
    import sympy

    target = engine("deepseek_v3", CASES["deepseek_v3"]).target("decode")
    run = run_symbolically(target, {"B": 3, "N": 9}, ("decode",))
    kernel = next(x for x in run.trace.calls if "latent_attention" in x.op)
    batch, keys = (sympy.Symbol(x, integer=True, positive=True) for x in "BN")
    expected = 2 * batch * HEADS * keys * (2 * RANK + ROPE)
    flops = sympy.sympify(str(kernel.counts["matmul_flops"]), {"B": batch, "N": keys})
    assert sympy.expand(flops - expected) == 0


def test_the_note_says_the_flops_of_both_forms():
    model = model_of("deepseek_v3", CASES["deepseek_v3"], "eager")
    note = latent_note(model)
    assert f"{2 * (2 * RANK + ROPE)} FLOPs a head" in note
    assert f"{2 * (NOPE + ROPE + VALUE) + 2 * RANK * (NOPE + VALUE)}" in note
    assert not latent_note(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_met_by_the_name_of_either_version_of_transformers(name):
    class Layer(torch.nn.Module):
        def forward(self, **inputs):
            return self.expand_kv("latents", "rotary")

        def expand_kv(self, latents, rotary):
            return "expanded"

    class Model(torch.nn.Linear):
        def forward(self, input_ids, use_cache, past_key_values=None):
            return SimpleNamespace(**{name: "rows"})

    layer, row = _absorbing(Layer)(), torch.ones(1, 1, 2)
    assert layer(hidden_states=row, **{name: object()}) == ("rotary", "latents")
    assert layer(hidden_states=row) == "expanded"
    model = WholeModel("model", lambda: Model(1, 1), {"input_ids": "B, N int64"})
    assert model.prompt(model.build(), {"B": 1, "N": 2}) == ({"past_key_values": "rows"}, None)
