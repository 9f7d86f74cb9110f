"""Models of transformers are derived as they run: products and peaks of the real module."""

import importlib
import os
from functools import cache

import pytest
import torch

from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.derive import derived
from tests.oracles.memory import allocator_peak
from tests.trace.checks import counted_at, torchs_products

TINY = {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
SCALARS = 64
SHAPES = ({"B": 2, "N": 5}, {"B": 4, "N": 131})


@cache
def library():
    """Imported where it is needed, which takes seconds; it downloads nothing."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    return transformers


def llama():
    """Skips its causal mask on real tensors."""
    config = library().LlamaConfig(**TINY, num_key_value_heads=1, intermediate_size=32)
    return library().LlamaModel(config)


def phi_without_cache():
    """Looks whether positions are packed."""
    config = library().PhiConfig(**TINY, intermediate_size=32, use_cache=False)
    return library().PhiModel(config)


def deberta():
    """Gathers relative positions, whose backward pass is in place."""
    return library().DebertaModel(
        library().DebertaConfig(**TINY, intermediate_size=32, relative_attention=True,
                                   pos_att_type=["c2p", "p2c"], max_relative_positions=8)
    )  # fmt: skip


@pytest.fixture(autouse=True)
def without_fused_kernels():
    """Torch's counter of products does not know the CPU's fused attention."""
    library()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def test_a_forward_pass_is_that_of_the_real_model():
    """Its peak; tests/models/test_hub.py has the products of more models."""
    target = target_of(phi_without_cache, inputs=["input_ids: B, N int64"])
    derivation = derived(target, ("forward",), {})
    model = phi_without_cache().eval()
    for sizes in SHAPES:
        ids = torch.randint(3, 64, (sizes["B"], sizes["N"]))
        products = torchs_products(model, ids)
        with torch.no_grad():
            peak = allocator_peak(lambda ids=ids: model(ids))
        assert derivation.phases["forward"].holds(sizes)
        assert derivation.at("matmul_flops", **sizes) == products
        assert derivation.at("peak_bytes", **sizes) == pytest.approx(peak, abs=SCALARS, rel=0)


def test_a_layer_is_found_built_of_its_configuration_and_symbolic():
    derivation = derived(target_of("transformers:LlamaAttention"), ("forward",))
    assert derivation.phases["forward"].method == "symbolic"
    assert any("attention is eager" in note for note in derivation.notes)
    layer = library().models.llama.modeling_llama.LlamaAttention(
        library().LlamaConfig(
            hidden_size=24, num_attention_heads=3, attn_implementation="eager"
        ), 0
    ).eval()  # fmt: skip
    x, angles = torch.randn(2, 10, 24), torch.randn(2, 10, 8)
    products = torchs_products(layer, x, (angles, angles), None)
    assert derivation.at("matmul_flops", B=2, N=10, h=3, d=8) == products


def test_a_decoding_step_is_that_of_the_real_layer():
    derivation = derived(target_of("transformers:GPTNeoXAttention"), ("decode",))
    config = library().GPTNeoXConfig(
        hidden_size=32, num_attention_heads=2, attn_implementation="eager"
    )
    layer = library().models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention(config, 0).eval()
    cache = library().DynamicCache()
    for tokens in (10, 1):
        x, angles = torch.randn(2, tokens, 32), torch.randn(2, tokens, 4)  # a quarter turns
        given = {"layer_past": cache, "position_embeddings": (angles, angles)}
        products = torchs_products(layer, x, None, **given)
    assert derivation.at("matmul_flops", "decode", B=2, N=11, h=2, d=16) == products
    assert "position_embeddings.0: B, N, d/4" in " ".join(derivation.notes)


@pytest.mark.parametrize(("build", "real"), [(llama, False), (deberta, True)])
def test_a_training_step_is_that_of_the_real_model(build, real):
    target = target_of(build, inputs=["input_ids: B, N int64"])
    model = build().train()
    for sizes in SHAPES:
        counts = counted_at(target, sizes, "train", real=real)
        ids = torch.randint(3, 64, (sizes["B"], sizes["N"]))
        ones = torch.ones_like(model(ids)[0])

        def step(ids=ids, ones=ones):
            result = model(ids)
            result[0].backward(ones)

        products = torchs_products(lambda ids=ids: model(ids)[0], training=True)
        model.zero_grad()
        seen = allocator_peak(step)
        model.zero_grad()
        assert counts["matmul_flops"] == products
        assert counts["peak_bytes"] == pytest.approx(seen, abs=SCALARS, rel=0)


def test_a_look_for_padding_only_to_warn_of_it_keeps_sizes_symbols():
    class Looks(library().PreTrainedModel):
        config_class = library().PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, input_ids):
            self.warn_if_padding_and_no_attention_mask(input_ids, None)
            return self.table(input_ids)

    model = Looks(library().PretrainedConfig(pad_token_id=0))
    derivation = derived(target_of(model, inputs=["input_ids: B, N int64"]), ("forward",), {})
    assert derivation.phases["forward"].method == "symbolic"
    # a read and a written row of 4 numbers and an index of 8 bytes for each token
    assert derivation.at("bytes_moved", B=2, N=7) == 2 * 7 * (2 * 4 * 4 + 8)


def steps_of(name, folder, cache):
    """A layer of a public model, the argument that takes its cache, and an empty cache."""
    utils = importlib.import_module("transformers.cache_utils")
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    caches = {"past_key_values": "MiniMaxCache", "cache_params": "Cache"}
    made = getattr(module, caches[cache])
    layers = {} if made is not utils.Cache else {"layers": [utils.LinearAttentionLayer()]}
    return getattr(module, name), made(**layers)


@pytest.mark.parametrize(
    ("name", "folder", "cache"),
    [
        ("Qwen3NextGatedDeltaNet", "qwen3_next", "cache_params"),
        ("Mamba2Mixer", "mamba2", "cache_params"),
        ("MiniMaxLightningAttention", "minimax", "past_key_values"),
    ],
)
def test_a_step_of_a_recurrent_layer_is_counted_with_its_states(name, folder, cache):
    layer, empty = steps_of(name, folder, cache)
    target, sizes = target_of(layer), {"B": 2, "h": 2, "d": 8}
    counts = [counted_at(target.step, {**sizes, "N": n}, "forward") for n in (6, 90)]
    assert counts[0] == counts[1]  # a state does not grow
    module, rows = target.make({**sizes, "N": 5}).eval(), torch.randn(2, 6, 16)
    rest = {"position_embeddings": None, "attention_mask": None} if folder == "minimax" else {}
    with torch.no_grad():
        module(rows[:, :5], **rest, **{cache: empty})
    products = torchs_products(module, rows[:, 5:], **rest, **{cache: empty})
    assert counts[0]["matmul_flops"] == products
