"""Models of configurations and of somebody's code: sizes, inputs, parts, and what is refused."""

import math

import pytest
import torch
import transformers as hf

from attnprof.errors import NotFoundError, RequestError
from attnprof.models.config import preset
from attnprof.models.hub_config import configuration
from attnprof.models.parts import parts, places
from attnprof.models.report import model_report
from attnprof.models.sources import factory_subject, hub_subject, subject_of
from tests.models.tiny import TINY, TOKENS, dispatched, fields_of, products

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
_SMALL = {**TINY, "num_hidden_layers": 2, "sliding_window": 16}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    fields, entries = PUBLISHED[name]
    model = hub_subject(fields, name).on_meta
    assert sum(parts(model).values()) == model.num_parameters() == entries
    assert "other" not in parts(model)


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
    model = hub_subject(fields, name).on_meta
    where, counts = places(model), parts(model)
    assert "other" not in counts or fields["model_type"] == "patchtst"
    named = {n: x.numel() for n, x in model.named_parameters() if marker in n}
    assert {where[n.rpartition(".")[0]].part for n in named} == {part}
    assert not alone or counts[part] == sum(named.values())


# -- inputs --------------------------------------------------------------------------------
_ROWS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_LLAMA = {"model_type": "llama", **_ROWS, "vocab_size": 97}
_WAVES = {"conv_dim": [16, 16], "conv_kernel": [5, 3], "conv_stride": [4, 2],
          "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
#: Sounds as samples, as spectrograms of a size and of any, and a video; the shape that is taken.
TAKEN = {
    "wave": (
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], **_ROWS, **_WAVES,
         "vocab_size": 40},
        {"input_values": (2, 900)},
    ),
    "spectrogram": (
        {"model_type": "audio-spectrogram-transformer", **_ROWS, "max_length": 40,
         "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8},
        {"input_values": (2, 40, 16)},
    ),
    "any spectrogram": (
        {"model_type": "wav2vec2-bert", **_ROWS, "feature_projection_input_dim": 24,
         "position_embeddings_type": "rotary"},
        {"input_features": (2, 900, 24)},
    ),
    "numbers from tensors that are made with it": (
        {"model_type": "convnext", "hidden_sizes": [8, 12], "depths": [1, 1], "num_stages": 2,
         "image_size": 16},
        {"pixel_values": (2, 3, 16, 16)},
    ),
    "text and images": (
        {"architectures": ["CLIPModel"], "model_type": "clip",
         "text_config": {**_ROWS, "vocab_size": 97},
         "vision_config": {**_ROWS, "image_size": 16, "patch_size": 8}},
        {"input_ids": (2, 9), "pixel_values": (2, 3, 16, 16)},
    ),
    "video": (
        {"model_type": "videomae", **_ROWS, "image_size": 16, "patch_size": 8, "num_frames": 4},
        {"pixel_values": (2, 4, 3, 16, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_products_are_those_of_the_model_on_what_it_takes(name):
    fields, shapes = TAKEN[name]
    made = hub_subject(fields, name, None if name.startswith("numbers") else "eager")
    inputs = {
        key: torch.randint(97, shape) if key == "input_ids" else torch.randn(shape)
        for key, shape in shapes.items()
    }
    sizes = {"B": 2, "N": 9 if "input_ids" in inputs else 900}
    assert products(made, sizes) == dispatched(made.build().eval(), **inputs)[0]


@pytest.mark.parametrize(
    ("named", "note"),
    [(["LlamaForCausalLM"], ""), ("LlamaForCausalLM", ""), ([5], ""), (None, ""),
     (["MyOwnForCausalLM"], "no model class MyOwnForCausalLM"),
     (["LlamaConfig"], "no model class LlamaConfig")],
)  # fmt: skip
def test_another_class_than_the_named_one_is_told(named, note):
    made = hub_subject({**_LLAMA, "architectures": named}, "given")
    assert isinstance(made.on_meta, hf.LlamaForCausalLM)
    assert bool(made.notes) is bool(note)
    assert note in "".join(made.notes)


def test_what_is_left_out_of_a_configuration_is_told():
    quantized = {**_LLAMA, "quantization_config": {"quant_method": "fp8"}, "dtype": "bfloat16"}
    assert "counted in bfloat16" in hub_subject(quantized, "given").notes[0]
    pictures = {"model_type": "llava", "text_config": _LLAMA, "image_token_index": 5}
    assert "text alone" in hub_subject(pictures, "given").notes[0]


def test_a_name_of_nothing_says_what_there_is():
    with pytest.raises(NotFoundError, match=r"001-cifar10-\{dot, neural-2\}, .*004-listops"):
        preset("nothing")
    with pytest.raises(NotFoundError, match="did you mean 001-lm-dot"):
        preset("001-lm-dots")
    with pytest.raises(RequestError, match=r"--input is for my\.py:factory"):
        subject_of("001-lm-dot", inputs=["x: B, N int64"])


def test_sizes_that_a_model_does_not_have_are_not_told():
    sizes = {"B": 2, "N": 1024}
    made = hub_subject({"model_type": "vit", **_ROWS, "image_size": 16, "patch_size": 8}, "given")
    assert model_report(made, ["forward"], sizes, limit_s=0.0).summary["at"] == {"B": 2}


#: Fields that no model is built with, in a configuration of llama, or alone.
REFUSED = [
    ({"architectures": 1}, "list of names"), ({"architectures": {"a": 1}}, "list of names"),
    ({"num_hidden_layers": "x"}, "num_hidden_layers"), ({"layer_types": 5}, "layer_types"),
    ({"num_hidden_layers": 10**9}, "at most 10,000"), ({"num_hidden_layers": 0}, "1 or more"),
    ({"vocab_size": 10**30}, "vocab_size"),
    ({"num_labels": 10**9}, "at most 1,000,000"), ({"torch_dtype": "float8_e4m3fn"}, "bfloat16"),
    ({"dtype": 16}, "float16"), ({"dtype": {"": "int8"}}, "int8"), ({"model_type": None}, "type"),
    ({"model_type": "my_own", "auto_map": {"AutoModel": "a.B"}}, "does not run"),
    ({"num_attention_heads": 5}, "not a multiple of the number of attention heads"),
]  # fmt: skip
REFUSED_ALONE = [
    ({"model_type": "detr", "backbone_config": {}}, "KeyError: None"),
    ({"model_type": "autoformer", "prediction_length": 4, "context_length": 8},
     "its configuration lacks num_input_channels"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [*(({**_LLAMA, **fields}, message) for fields, message in REFUSED), *REFUSED_ALONE],
)
def test_fields_that_no_model_is_built_with_are_refused_in_words(fields, message):
    with pytest.raises(RequestError, match=message):
        hub_subject(fields, "given")


def test_sizes_of_a_layer_are_no_numbers_of_layers():
    """Gemma 3n has a table of 262,144 rows for its layers."""
    fields = {**_LLAMA, "vocab_size_per_layer_input": 262144, "block_size": 16384}
    assert hub_subject(fields, "given").name == "given"


@pytest.mark.parametrize(
    ("dtype", "format_"),
    [("auto", "float32"), ("torch.bfloat16", "bfloat16"), ({"": "float16"}, "float16")],
)
def test_formats_are_read_as_they_are_written_on_the_hub(dtype, format_):
    made = hub_subject({**_LLAMA, "torch_dtype": dtype}, "given")
    assert made.dtype == format_
    assert any("auto" in note for note in made.notes) is (dtype == "auto")
    nested = {"model_type": "llava", "text_config": {**_LLAMA, "dtype": dtype}}
    assert hub_subject(nested, "given").dtype == format_


def test_a_vocabulary_without_the_word_by_which_its_type_pads_is_built():
    fields = {key: x for key, x in fields_of("kimi_linear").items() if key not in TOKENS}
    assert hub_subject(fields, "given").on_meta.config.pad_token_id < fields["vocab_size"]


def test_tagged_numbers_of_a_configuration_are_numbers():
    limits = [0.0, {"__float__": "Infinity"}]
    made = configuration({"model_type": "nemotron_h", "time_step_limit": limits}, "given")
    assert made.time_step_limit == [0.0, math.inf]


def test_heads_that_differ_by_layer_are_counted_layer_by_layer():
    types = ["sliding_attention", "full_attention"]
    fields = {
        "model_type": "gemma4_text", **_ROWS, "head_dim": 8, "global_head_dim": 16,
        "vocab_size": 97, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 4,
        "layer_types": types,
    }  # fmt: skip
    model = hub_subject(fields, "given").build()
    widths = [layer.self_attn.q_proj.out_features for layer in model.model.layers]
    assert widths == [4 * 8, 4 * 16]
    assert hub_subject(fields, "given").head_dim == 8


CODE = """
from torch import nn
import transformers as hf

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(97, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
        self.head = nn.Linear(width, 97)
    def forward(self, tokens):
        rows = self.layers(self.embed(tokens))
        return self.head((rows @ rows.mT).softmax(-1) @ rows)

def own():
    return Net(16)

def public():
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=97))

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.rows(x).flatten(2).transpose(1, 2).mean(1))

def fast():
    layer = nn.TransformerEncoderLayer(16, 2, 40, batch_first=True)
    return nn.Sequential(nn.Embedding(97, 16), nn.TransformerEncoder(layer, 3))

def sized(width):
    return Net(width)

class Odd(Pictures):
    def forward(self, thing):
        return super().forward(thing.payload)

def number():
    return 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text(CODE)
    return path


def test_products_are_those_of_the_model_that_the_function_makes(place):
    made = factory_subject(f"{place}:own")
    model = made.build()
    for n in (9, 14):
        counted, _ = dispatched(model, torch.randint(97, (2, n)))
        assert products(made, {"B": 2, "N": n}) == counted


def test_inputs_that_cannot_be_guessed_are_given(place):
    made = factory_subject(f"{place}:Pictures", ["x: B, 3, 8, 16"])
    assert products(made, {"B": 2}) == dispatched(made.build(), torch.randn(2, 3, 8, 16))[0]
    assert made.notes == ()


def test_what_one_kernel_does_for_a_whole_layer_is_told_apart(place):
    made = factory_subject(f"{place}:fast", ["input: B, N int64"])
    rows = model_report(made, ["forward"], {"B": 2, "N": 9}, limit_s=0.0).records
    products = {row.part: row.value for row in rows if row.quantity == "matmul_flops"}
    b, n, d = 2, 9, 16
    assert products["mlp"] == 3 * 2 * (2 * b * n * d * 40)
    assert products["attention"] == 3 * (4 * (2 * b * n * d * d) + 2 * (2 * b * n * n * d))
    assert products["total"] == products["mlp"] + products["attention"]
    assert any(row.part == "norm" and row.quantity == "flops" and row.value for row in rows)


def test_a_model_of_transformers_keeps_its_cache(place):
    assert factory_subject(f"{place}:public").caches


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sized", "needs width: write a function"),
        ("number", "returns no nn.Module but 3"),
        ("Odd", '--input "thing: B, 3, 224, 224"'),
    ],
)
def test_what_makes_no_whole_model_is_refused(place, name, message):
    with pytest.raises(RequestError, match=message):
        factory_subject(f"{place}:{name}")


def test_inputs_with_which_a_model_does_not_run_are_to_be_typed(place):
    odd = factory_subject(f"{place}:Odd", ["thing: B, 3, 8, 8"])
    with pytest.raises(RequestError, match=r"'payload'.*; say what it takes, like --in"):
        model_report(odd, ["forward"], {"B": 1})
