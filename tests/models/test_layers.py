"""Our models: configurations and what they refuse, layers and embeddings against torch's own."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, silu

from attnprof import registry
from attnprof.errors import NotFoundError, RequestError
from attnprof.models import Attention, ModelConfig, build
from attnprof.models.embeddings import (
    ConvolutionStem,
    Patches,
    example_inputs,
    input_texts,
    sinusoids,
    strides,
)
from attnprof.models.parts import ModulePlace, layer_kinds, parts, places
from attnprof.models.transformer import FeedForward
from tests.models.tiny import SMALL

TINY = {**SMALL, "num_heads": 2, "num_layers": 2}


def tiny(**more):
    return ModelConfig(**{**TINY, **more})


def taken_over(layer, theirs):
    """Torch's layer with the weights of ours."""
    for ours, other in ((layer.attention, theirs.self_attn),
                        (layer.cross, getattr(theirs, "multihead_attn", None))):  # fmt: skip
        if ours is not None:
            maps = [ours.q_proj, ours.k_proj, ours.v_proj]
            other.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
            other.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
            other.out_proj.load_state_dict(ours.o_proj.state_dict())
    theirs.linear1.load_state_dict(layer.mlp.up.state_dict())
    theirs.linear2.load_state_dict(layer.mlp.down.state_dict())
    for number, norm in enumerate(layer.norms.values(), 1):
        norm.weight.normal_(1, 0.1)
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    return theirs


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_an_encoder_layer_is_torchs_own(norm, activation):
    model = build(tiny(kind="encoder", embedding="rows", norm=norm, activation=activation))
    layer = model.body.layers[0]
    theirs = taken_over(layer, nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    ))  # fmt: skip
    x = torch.randn(2, 12, 8)
    assert torch.allclose(layer(x), theirs(x), atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_a_decoder_layer_with_cross_attention_is_torchs_own(norm):
    model = build(tiny(kind="encoder-decoder", norm=norm, activation="relu"))
    layer = model.decoder.layers[0]
    theirs = taken_over(layer, nn.TransformerDecoderLayer(
        8, 2, 12, 0.0, batch_first=True, norm_first=norm == "pre"
    ))  # fmt: skip
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    assert torch.allclose(layer(x, memory), theirs(x, memory, mask), atol=1e-5)


@torch.no_grad()
def test_swiglu_multiplies_by_a_gate():
    mlp, x = FeedForward(tiny(activation="swiglu", mlp_bias=False)), torch.randn(3, 8)
    gate, up, down = (getattr(mlp, name).weight for name in ("gate", "up", "down"))
    assert torch.allclose(mlp(x), (silu(x @ gate.T) * (x @ up.T)) @ down.T, atol=1e-6)


@torch.no_grad()
def test_patches_are_a_convolution_as_wide_as_its_steps():
    config = tiny(kind="encoder", embedding="patches", image_size=12, patch_size=3)
    patches, image = Patches(config), torch.randn(2, 3, 12, 12)
    kernel = patches.projection.weight.view(8, 3, 3, 3)
    expected = conv2d(image, kernel, patches.projection.bias, stride=3).flatten(2).mT
    assert torch.allclose(patches(image), expected, atol=1e-5)


@pytest.mark.parametrize("patch", [1, 2, 3, 4, 6, 8, 12, 14, 16, 30])
def test_three_convolutions_give_as_many_rows_as_there_are_patches(patch):
    assert len(strides(patch)) == 3
    side = 2 * patch
    config = tiny(kind="encoder", embedding="cnn", image_size=side, patch_size=patch)
    assert ConvolutionStem(config)(torch.randn(1, 3, side, side)).shape == (1, 4, 8)


def test_three_convolutions_over_tokens_keep_their_number():
    stem = ConvolutionStem(tiny(kind="encoder", embedding="cnn"))
    tokens = torch.randint(11, (2, 12))
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 11
    differ = (stem(tokens) != stem(changed)).any(-1).any(0)
    assert differ.nonzero().flatten().tolist() == list(range(3, 10))  # three places to each side


def test_sinusoids_are_those_of_the_first_transformer():
    table = sinusoids(9, 6)
    for place in range(9):
        for pair in range(3):
            angle = torch.tensor(place / 10_000 ** (2 * pair / 6))
            assert torch.allclose(table[place, 2 * pair], angle.sin(), atol=1e-6)
            assert torch.allclose(table[place, 2 * pair + 1], angle.cos(), atol=1e-6)


@torch.no_grad()
def test_rotary_positions_turn_pairs_and_leave_scores_to_distances():
    attention = build(tiny(positions="rotary", num_layers=1)).body.layers[0].attention
    x = torch.randn(1, 1, 8).expand(1, 12, 8)  # the same row everywhere
    q, k = attention.heads("q", x), attention.heads("k", x)
    plain = attention.q_proj(x).view(1, 12, 2, 4).transpose(1, 2)
    turned = torch.view_as_complex(torch.stack(q.chunk(2, -1), -1))
    expected = torch.view_as_complex(torch.stack(plain.chunk(2, -1), -1))
    angles = torch.arange(12)[:, None] / 10_000 ** (torch.arange(2) / 2)
    assert torch.allclose(turned, expected * torch.exp(1j * angles), atol=1e-5)
    scores = q @ k.mT
    for distance in range(-3, 4):
        along = scores.diagonal(distance, -2, -1)
        assert torch.allclose(along, along[..., :1].expand_as(along), atol=1e-4)


@torch.no_grad()
def test_scaled_embeddings_scale_learned_positions_and_no_others():
    for positions, scaled in (("learned", 8**0.5), ("sinusoidal", 1.0)):
        rows = build(tiny(positions=positions, scale_embedding=True)).body.embedding
        ids = torch.randint(11, (2, 5))
        expected = rows.rows.weight[ids] * 8**0.5 + rows.positions[:5] * scaled
        assert torch.allclose(rows(ids), expected, atol=1e-5)


def test_tied_weights_count_once():
    tied, untied = (build(tiny(tied=tied, head_bias=False)) for tied in (True, False))
    assert tied.head.weight is tied.body.embedding.rows.weight
    assert parts(tied)["head"] == 0
    assert parts(untied)["head"] == 11 * 8
    assert sum(parts(untied).values()) - sum(parts(tied).values()) == 11 * 8


def test_every_parameter_belongs_to_a_part():
    model = build(tiny(kind="encoder-decoder", activation="swiglu", norm_type="rms"))
    assert sum(parts(model).values()) == sum(weight.numel() for weight in model.parameters())
    assert parts(model)["norm"] == 8 * (2 * 2 + 2 * 3 + 2)
    assert places(model)["decoder.layers.1.cross.q_proj"] == ModulePlace(
        "attention", "decoder.layers.1"
    )
    assert places(model)["decoder"] == ModulePlace("other")
    assert layer_kinds(model) == {"standard": 2, "standard, cross-attention": 2}


def test_the_last_mechanism_named_is_that_of_all_further_layers():
    config = tiny(num_layers=5, attention=["sdpa", {"name": "longformer", "window": 2}])
    assert layer_kinds(build(config)) == {"sdpa": 1, "longformer": 4}


def test_grouped_heads_and_rms_norm_make_a_llama():
    config = tiny(
        attention={"name": "sdpa", "bias": False}, num_heads=4, num_kv_heads=2, positions="rotary",
        norm_type="rms", activation="swiglu", mlp_bias=False, head_bias=False, tied=True,
    )  # fmt: skip
    model = build(config)
    assert parts(model) == {
        "embedding": 11 * 8, "attention": 2 * (2 * 64 + 2 * 32), "mlp": 2 * 3 * 8 * 12,
        "norm": 5 * 8, "head": 0,
    }  # fmt: skip
    assert model(*example_inputs(config, 2)).shape == (2, 12, 11)


def test_public_models_have_their_public_sizes():
    gpt2 = ModelConfig(
        d_model=768, num_heads=12, num_layers=12, vocab_size=50_257, head_bias=False, tied=True
    )
    llama = ModelConfig(
        d_model=4096, num_heads=32, num_layers=32, hidden_dim=11_008, positions="rotary",
        attention={"name": "sdpa", "bias": False}, norm_type="rms", activation="swiglu",
        mlp_bias=False, head_bias=False,
    )  # fmt: skip
    sizes = [sum(parts(build(config, device="meta")).values()) for config in (gpt2, llama)]
    assert sizes == [124_439_808, 6_738_415_616]  # GPT-2 and Llama 7B


def test_more_tokens_than_a_model_was_built_for_are_refused():
    with pytest.raises(RequestError, match="at most 12 tokens and got 13: build it with seq_len"):
        build(tiny())(torch.zeros(1, 13, dtype=torch.long))


def test_inputs_are_said_as_the_command_line_takes_them():
    assert input_texts(tiny()) == {"x": "B, N int64"}
    assert input_texts(tiny(embedding="rows")) == {"x": "B, N, 8"}
    image = tiny(kind="encoder", embedding="patches", image_size=4, patch_size=2)
    assert input_texts(image) == {"x": "B, 3, 4, 4"}
    both = tiny(kind="encoder-decoder")
    assert input_texts(both) == {"source": "B, N int64", "target": "B, M int64"}
    assert [x.shape for x in example_inputs(both, 2, 7)] == [(2, 7), (2, 7)]


# -- decoding ------------------------------------------------------------------------------
DECODED = [
    name for name in registry.names()
    if registry.get(name).abilities.decode and registry.get(name).abilities.causal
]  # fmt: skip
PARAMS = {
    "longformer": {"window": 3}, "sparse": {"stride": 3}, "performer": {"num_features": 5},
    "reformer": {"num_hashes": 2, "bucket_size": 2, "num_buckets": 4},
}  # fmt: skip


def decoded(model, tokens, state):
    rows = []
    for place in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, place], state)
        rows.append(logits)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("name", DECODED)
@torch.no_grad()
def test_token_by_token_a_decoder_says_what_it_says_at_once_from_a_state_of_any_length(name):
    model = build(tiny(attention={"name": name, **PARAMS.get(name, {})})).eval()
    (tokens,) = example_inputs(model.config, 2)
    assert torch.allclose(decoded(model, tokens, model.init_state(2)), model(tokens), atol=2e-4)
    stepped, advanced = model.init_state(2), model.init_state(2)
    decoded(model, tokens[:, :7], stepped)
    advanced.advance(7)
    assert advanced.tokens == stepped.tokens == 7
    for place in range(7, 9):
        out, advanced = model.step(tokens[:, place : place + 1], advanced)
        _, stepped = model.step(tokens[:, place], stepped)
        assert out.shape == (2, 1, 11)
        assert out.isfinite().all()
    assert shapes(advanced.layers) == shapes(stepped.layers)


def shapes(state):
    """Shapes of all tensors in a state, in order."""
    if isinstance(state, torch.Tensor):
        return [tuple(state.shape)]
    inner = state if isinstance(state, list | tuple) else vars(state).values() if hasattr(
        state, "__dict__") else ()  # fmt: skip
    return [shape for item in inner for shape in shapes(item)]


@pytest.mark.parametrize(
    "attention", ["standard", "sdpa", "linear", "taylor-efficient", "gated-deltanet", "mamba2"]
)
@torch.no_grad()
def test_rotary_positions_decode_too(attention):
    model = build(tiny(attention=attention, positions="rotary")).eval()
    (tokens,) = example_inputs(model.config, 2)
    assert torch.allclose(decoded(model, tokens, model.init_state(2)), model(tokens), atol=1e-4)
    assert torch.allclose(decoded(model, tokens, model.init_state(2)), model(tokens), atol=1e-4)


@pytest.mark.parametrize("cross", ["standard", "sdpa", "optimised", "efficient", "linear"])
@torch.no_grad()
def test_a_decoder_remembers_what_the_encoder_said(cross):
    model = build(tiny(kind="encoder-decoder", cross_attention=cross, positions="rotary")).eval()
    source, target = example_inputs(model.config, 2)
    source = source[:, :9]
    logits = decoded(model, target, model.init_state(source))
    assert torch.allclose(logits, model(source, target), atol=1e-4)


def test_attention_without_maps_does_not_decode():
    model = build(tiny(projections=False))
    with pytest.raises(RequestError, match="no step"):
        model.init_state(1)


@pytest.mark.parametrize(("values", "message"), [
    ({"kind": "decodr"}, "unknown kind 'decodr': did you mean decoder"),
    ({"positions": "rotery"}, "did you mean rotary"),
    ({"activation": "tanh"}, "possible: gelu, relu, swiglu"),
    ({"d_model": 0}, "d_model must be at least 1"),
    ({"num_layers": 2.5}, "num_layers must be a whole number"),
    ({"tied": 3}, "tied must be True or False"),
    ({"dropout": 1.0}, "below 1"),
    ({"attention": []}, "attention is empty"),
    ({"attention": 5}, "a mechanism's name must be text"),
    ({"image_size": 32}, "image_size is of patches or a cnn"),
    ({"num_decoder_layers": 2}, "an encoder-decoder's"),
    ({"attention": {"window": 3}}, "has no name"),
    ({"attention": {"name": "longformer", "windw": 3}}, "did you mean window"),
    ({"attention": ["standard"] * 3, "num_layers": 2}, "more than num_layers"),
    ({"embedding": "patches", "kind": "encoder"}, "patches need image_size"),
    ({"kind": "encoder", "embedding": "patches", "image_size": 20}, "does not divide"),
    ({"embedding": "cnn"}, "is an encoder's"),
    ({"num_classes": 3}, "num_classes is an encoder's"),
    ({"class_token": True}, "class_token is an encoder's"),
    ({"kind": "encoder", "head_hidden": 3}, "head_hidden needs num_classes"),
    ({"kind": "encoder", "tied": True}, "tied is for"),
    ({"embedding": "rows", "tied": True}, "needs an embedding of tokens"),
    ({"kind": "encoder-decoder", "num_decoder_layers": 1, "decoder_attention": ["sdpa"] * 2},
     "more layers than the decoder has"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_is_possible(values, message):
    with pytest.raises(RequestError, match=message):
        ModelConfig(**values)


def test_unknown_names_are_answered_with_those_that_come_near():
    with pytest.raises(RequestError, match="a model has no 'num_layer': did you mean num_layers"):
        ModelConfig.from_table({"num_layer": 3})
    with pytest.raises(RequestError, match="did you mean"):
        ModelConfig().with_(d_modell=8)
    with pytest.raises(NotFoundError, match="did you mean linformer"):
        ModelConfig(attention="linformr")


@pytest.mark.parametrize(("values", "message"), [
    ({"num_heads": 3}, "num_heads=3 does not divide d_model=512"),
    ({"attention": "linformer"}, "linformer mixes all tokens"),
    ({"kind": "encoder-decoder", "cross_attention": "super"}, "super has no cross-attention"),
    ({"attention": "linear", "num_kv_heads": 2}, "linear has no grouped"),
    ({"attention": "efficient", "positions": "rotary"}, "efficient has no rotary positions"),
    ({"attention": "linformer", "positions": "rotary", "kind": "encoder"}, "before it projects"),
    ({"attention": "she", "positions": "rotary"}, "she has no queries, keys and values"),
    ({"attention": "he", "projections": False}, "he has no queries, keys and values"),
    ({"d_model": 12, "num_heads": 4, "positions": "rotary"}, "even head width, not 3"),
])  # fmt: skip
def test_a_mechanism_that_cannot_do_what_a_model_asks_says_why(values, message):
    with pytest.raises(RequestError, match=message):
        build(ModelConfig(**values), device="meta")


def test_attention_is_the_same_however_it_is_written():
    long = Attention.of({"name": "longformer", "window": "3", "global_tokens": 0})
    assert long == Attention("longformer", (("window", 3),))
    assert Attention.of("longformer") == Attention.of({"name": "longformer", "window": 256})
    assert ModelConfig(attention="sdpa") == ModelConfig(attention=["sdpa"])
    assert hash(ModelConfig(attention=[{"name": "longformer", "window": 3}, "sdpa"]))


def test_toml_has_only_what_is_not_the_default():
    config = ModelConfig(dropout=0.1, tied=True, num_kv_heads=2, attention=["sdpa", "standard"])
    assert config.to_toml() == (
        'num_kv_heads = 2\nattention = ["sdpa", "standard"]\ntied = true\ndropout = 0.1\n'
    )
    assert ModelConfig().to_toml() == ""


@pytest.mark.parametrize("name", ["num_layers", "num_decoder_layers"])
def test_more_layers_than_anybody_builds_are_refused(name):
    with pytest.raises(RequestError, match="at most 10,000 layers"):
        ModelConfig(kind="encoder-decoder", **{name: 10**9})
