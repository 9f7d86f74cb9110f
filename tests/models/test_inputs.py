"""Which class of transformers a configuration is of, and what its models are called with."""

import pytest
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import NotFoundError, RequestError
from attnprof.models.hub import hub_subject
from attnprof.models.presets import preset
from attnprof.models.report import model_report
from attnprof.models.sources import subject_of
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count

_LLAMA = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "vocab_size": 97,
}  # fmt: skip
_ROWS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
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
    "video": (
        {"model_type": "videomae", **_ROWS, "image_size": 16, "patch_size": 8, "num_frames": 4},
        {"pixel_values": (2, 4, 3, 16, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_products_are_those_of_the_model_on_what_it_takes(name):
    fields, shapes = TAKEN[name]
    made = hub_subject(fields, name, "eager")
    sizes = {"B": 2, "N": 900}
    ours = totals(count(made.target(), sizes, "forward", held=False), "forward")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        made.build().eval()(**{name: torch.randn(shape) for name, shape in shapes.items()})
    assert ours["matmul_flops"] == counter.get_total_flops()


@pytest.mark.parametrize(
    ("named", "told"),
    [(["LlamaForCausalLM"], ""), ("LlamaForCausalLM", ""), ([5], ""), (None, ""),
     (["MyOwnForCausalLM"], "no model class MyOwnForCausalLM"),
     (["LlamaConfig"], "no model class LlamaConfig")],
)  # fmt: skip
def test_another_class_than_the_named_one_is_told(named, told):
    made = hub_subject({**_LLAMA, "architectures": named}, "given")
    with torch.device("meta"):
        assert isinstance(made.build(), hf.LlamaForCausalLM)
    assert bool(made.notes) is bool(told)
    assert told in "".join(made.notes)


def test_what_is_left_out_of_a_configuration_is_told():
    quantized = {**_LLAMA, "quantization_config": {"quant_method": "fp8"}, "dtype": "bfloat16"}
    assert "counted in bfloat16" in hub_subject(quantized, "given").notes[0]
    pictures = {"model_type": "llava", "text_config": _LLAMA, "image_token_index": 5}
    assert "text alone" in hub_subject(pictures, "given").notes[0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"model_type": "detr", "backbone_config": {}}, "KeyError: None"),
     ({**_LLAMA, "num_attention_heads": 5}, "not a multiple of the number of attention heads")],
)  # fmt: skip
def test_a_refused_configuration_is_told_in_words(fields, told):
    with pytest.raises(RequestError, match=told):
        hub_subject(fields, "given")


def test_a_name_of_nothing_says_what_there_is():
    with pytest.raises(NotFoundError, match=r"001-cifar10-\{dot, neural-2\}, .*004-listops"):
        preset("nothing")
    with pytest.raises(NotFoundError, match="did you mean 001-lm-dot"):
        preset("001-lm-dots")
    with pytest.raises(RequestError, match=r"--input is for my\.py:factory"):
        subject_of("001-lm-dot", inputs=["x: B, N int64"])


def test_no_formulas_where_none_are_asked_for():
    report = model_report(hub_subject(_LLAMA, "given"), ["forward"], {"B": 1, "N": 9}, limit_s=0.0)
    missing = report.summary["phases"]["forward"]["missing"]
    assert missing == "--limit 0 asks for none"
    assert report.summary["notes"] == [f"no formula of the cache: {missing}"]


def test_sizes_that_a_model_does_not_have_are_not_told():
    sizes = {"B": 2, "N": 1024}
    made = hub_subject({"model_type": "vit", **_ROWS, "image_size": 16, "patch_size": 8}, "given")
    assert model_report(made, ["forward"], sizes, limit_s=0.0).summary["at"] == {"B": 2}


def test_a_series_without_a_size_is_refused_by_what_is_missing():
    fields = {"model_type": "autoformer", "prediction_length": 4, "context_length": 8}
    with pytest.raises(RequestError, match="its configuration lacks num_input_channels"):
        hub_subject(fields, "series")
