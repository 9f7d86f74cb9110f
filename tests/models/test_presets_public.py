"""Released models that are shipped: the built model has the parameters that are published."""

import pytest

from attnprof.models.names import released
from attnprof.models.parts import parts
from attnprof.models.sources import hub_subject

#: Published totals as they are commonly quoted, written down without looking them up again. A
#: total that a build meets to the integer speaks for both, and holds sizes alone: lengths,
#: windows, number formats and quantisation change no parameter.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-4-scout": 108_641_793_536, "llama-4-maverick": 401_583_781_376,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360, "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560, "qwen3-next-80b-a3b": 81_324_862_720,
    "qwen3.5-35b-a3b": 34_660_610_688, "gemma-2-9b": 9_241_705_984, "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472, "gemma-3-12b": 12_187_325_040, "gemma-3-27b": 27_432_406_640,
    "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224, "deepseek-v3": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448, "kimi-linear-48b-a3b": 49_122_681_728,
    "mistral-7b-v0.1": 7_241_732_096, "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112, "phi-4": 14_659_507_200, "glm-4.5": 358_337_791_296,
    "glm-4.5-air": 110_468_824_832, "olmo-2-7b": 7_298_617_344, "command-r": 34_980_831_232,
    "mamba-130m": 129_135_360, "mamba-2.8b": 2_768_345_600, "jamba-v0.1": 51_570_323_328,
    "smollm3-3b": 3_075_098_624, "granite-4.0-h-small": 32_207_337_984,
    "falcon-h1-0.5b": 521_411_104, "nemotron-3-nano": 31_577_937_344,
    "minimax-m2": 228_689_764_864, "gpt2": 124_439_808,
}  # fmt: skip

#: Gemma 3's vision tower: SigLIP without its pooling head, at 896 pixels and patches of 14.
_SIGLIP = (
    (3 * 14 * 14 + 1 + 64 * 64) * 1152
    + 27 * (4 * (1152 + 1) * 1152 + 4 * 1152 + (2 * 1152 * 4304 + 4304 + 1152))
    + 2 * 1152
)
#: Llama 4's: 34 layers of width 1408, and an adapter to the text's width.
_TOWER = (
    3 * 14 * 14 * 1408 + (24 * 24 + 1) * 1408 + 1408
    + 34 * (4 * (1408 + 1) * 1408 + 4 * 1408 + (2 * 1408 * 5632 + 5632 + 1408))
    + 4 * 1408 + 5632 * 4096 + 4096 * 4096 + 4096 * 5120
)  # fmt: skip


def _glm_prediction(width, experts, expert_width, norms):
    """Parameters of GLM's extra layer: it has a token table and a head of its own."""
    attention = 2 * width * 128 * (96 + 8) + 128 * (96 + 2 * 8) + norms
    sparse = (experts + 1) * 3 * width * expert_width + experts * width + experts
    return attention + sparse + 2 * width + 2 * width**2 + 3 * width + 2 * 151_552 * width


#: What is published beyond transformers' parameters, by arithmetic.
BEYOND = {
    "deepseek-v3": 58 * 256, "kimi-k2": 60 * 384, "kimi-linear-48b-a3b": 26 * 256,
    "minimax-m2": 62 * 256,
    "glm-4.5": 89 * 160 + _glm_prediction(5120, 160, 1536, 2 * 128),
    "glm-4.5-air": 45 * 128 + _glm_prediction(4096, 128, 1408, 0),
    "gemma-3-4b": _SIGLIP + 1152 * 2560 + 1152, "gemma-3-12b": _SIGLIP + 1152 * 3840 + 1152,
    "gemma-3-27b": _SIGLIP + 1152 * 5376 + 1152,
    "llama-4-scout": _TOWER, "llama-4-maverick": _TOWER,
    "qwen3-next-80b-a3b": 2048 * (2 * 4096 + 2 * 512 + 4096) + 2 * 256
    + 513 * 3 * 2048 * 512 + 512 * 2048 + 2048 + 5 * 2048 + 2 * 2048**2,
}  # fmt: skip
#: Sparse attention of DeepSeek V3.2: what its indexer adds to a layer of V3.
_INDEXER = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64


#: Models all of whose modules have a part.
WITHOUT_OTHERS = (
    "gpt2", "llama-3.1-8b", "mistral-7b-v0.1", "qwen3-8b", "gemma-3-1b", "mixtral-8x7b",
    "deepseek-v2-lite", "gpt-oss-20b",
)  # fmt: skip


@pytest.fixture(scope="module")
def parameters():
    """The parameters of each released model, built without weights: the sum over its parts."""
    counts = {}
    for name, model in released().items():
        by_part = parts(hub_subject(model.config, name).on_meta)
        assert "other" not in by_part or name not in WITHOUT_OTHERS, name
        counts[name] = sum(by_part.values())
    return counts


def test_a_released_models_parameters_are_those_that_are_shipped_with_its_name(parameters):
    assert parameters == {name: model.parameters for name, model in released().items()}


def test_parameters_are_the_published_ones_but_for_what_is_said(parameters):
    for name, model in released().items():
        assert model.published == PUBLISHED.get(name, model.published), name
        assert bool(model.beyond) == (name in BEYOND), name
        if model.published:
            assert parameters[name] + BEYOND.get(name, 0) == model.published, name


def test_few_models_have_no_published_number_of_which_one_follows_from_another(parameters):
    without = {name for name, model in released().items() if not model.published}
    assert without == {
        "deepseek-v3.2", "olmo-3-32b", "qwen3-coder-480b", "qwen3.5-9b", "qwen3.5-27b"
    }  # fmt: skip
    assert parameters["deepseek-v3.2"] == parameters["deepseek-v3"] + 61 * _INDEXER
    tables = 2 * (100_352 - 100_278) * 5120  # OLMo 2 32B has 32,234,279,936 with a larger table
    assert parameters["olmo-3-32b"] == 32_234_279_936 - tables


def test_about_forty_models_are_shipped():
    assert len(released()) >= 40
