"""Configurations: what they refuse, and what they say then."""

import pytest

from attnprof.errors import NotFoundError, RequestError
from attnprof.models import Attention, ModelConfig, build


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
