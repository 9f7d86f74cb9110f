"""The documents' models: their sizes to the unit, and that every one of them runs."""

import tomllib

import pytest
import torch

from attnprof.mechanisms.neural import Neural
from attnprof.models import ModelConfig, build, load, preset, presets
from attnprof.models.embeddings import example_inputs
from attnprof.models.parts import layer_kinds, parts
from attnprof.papers.better_attention import checks_parameters as values
from attnprof.papers.documents import document, number
from tests.models.tiny import built

NAMES = list(presets())
CLASSES = {"001-cifar10": 10, "001-cifar100": 100}


def size(name, **more):
    return sum(parts(build(preset(name).config.with_(**more), device="meta")).values())


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_builds_without_weights_says_where_it_stands_and_is_read_back(name):
    entry = preset(name)
    assert ModelConfig.from_table(tomllib.loads(entry.config.to_toml())) == entry.config
    model = build(entry.config, device="meta")
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    layers = entry.config.num_layers
    if entry.config.kind == "encoder-decoder":
        layers += entry.config.num_decoder_layers or layers
    assert sum(layer_kinds(model).values()) == layers
    assert parts(model).get("other") is None
    assert entry.document == name[:3]
    assert entry.table


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_runs_when_shrunken(name):
    model = built(preset(name).config)
    config = model.config
    out = model(*example_inputs(config, 2))
    n, width = config.seq_len, config.vocab_size
    assert out.shape == ((2, config.num_classes) if config.num_classes else (2, n, width))
    assert out.isfinite().all()
    model.train()(*example_inputs(config, 2)).sum().backward()
    assert any(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    "name", [name for name in NAMES if preset(name).config.kind != "encoder"]
)  # fmt: skip
def test_no_decoder_looks_ahead_unless_it_is_printed_so(name):
    model = built(preset(name).config)
    *source, tokens = example_inputs(model.config, 2)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % model.config.vocab_size
    before, after = model(*source, tokens), model(*source, changed)
    assert not torch.allclose(before[:, 7:], after[:, 7:])
    same = torch.allclose(before[:, :7], after[:, :7], atol=1e-5)
    assert same == (not name.startswith("003-printed"))


# -- 000 ---------------------------------------------------------------------------------
MODELS = {
    "MNIST": "mnist", "CIFAR100": "cifar100", "ImageNet": "imagenet", "IMDB": "imdb",
    "Amazon": "amazon", "NMT": "translation",
}  # fmt: skip
ROWS = [
    (table, row) for table in ("1", "2", "3", "5", "6", "8", "9", "10")
    for row in values.rows(table)
]  # fmt: skip


@pytest.mark.parametrize(("table", "row"), ROWS, ids=lambda item: str(item)[:60])
def test_layers_of_000_have_the_parameters_that_its_tables_print(table, row):
    name = f"000-{MODELS[row['dataset']]}-{row['attention']}"
    config = preset(name).config.with_(num_heads=int(row["h"]))
    assert config.d_model == int(row["d_m"])
    assert table in preset(name).table
    model = build(config, device="meta")
    stack = model.decoder if config.kind == "encoder-decoder" else model.body
    for layer in stack.layers:
        counts = {sum(w.numel() for w in layer.attention.parameters())}
        if layer.cross is not None:
            counts.add(sum(w.numel() for w in layer.cross.parameters()))
        (count,) = counts
        printed = row["params_printed"].replace(",", "")
        unit = {"K": 1e3, "M": 1e6}.get(printed[-1], 1)
        digits = len(printed.rstrip("KM").partition(".")[2])
        shown = count / unit  # Table 1 cuts off, Table 3 rounds
        assert printed.rstrip("KM") in (f"{shown:.{digits}f}", f"{cut(shown, digits):.{digits}f}")


def cut(number, digits):
    return int(number * 10**digits) / 10**digits


def test_models_of_equal_size_have_the_totals_that_table_7_cuts_off():
    for row in values.rows("7"):
        total = size(f"000-imagenet-equal-{row['attention']}")
        assert total // 10_000 == round(number(row["params"]) / 10_000)


def test_classifiers_of_000_have_the_sizes_its_text_rounds():
    assert round(size("000-imdb-standard"), -4) == 650_000
    assert round(size("000-amazon-standard"), -5) == 2_600_000
    assert round(size("000-mnist-standard"), -5) == 300_000
    assert round(size("000-imagenet-standard"), -6) in (60_000_000, 61_000_000)


# -- 001 ---------------------------------------------------------------------------------
def test_language_models_of_001_have_their_printed_sizes():
    variants = {"None (d=64)": "neural", "2": "neural-2", "16": "neural-16"}
    exact = {}
    for row in document("001").rows("table01_wikitext103_perplexity"):
        dot = row["method"] == "dot_product"
        name = f"001-lm-{'dot' if dot else variants[row['d_prime_printed']]}"
        exact[name] = size(name)
        assert round(exact[name] / 1e6, 3) == number(row["params_M"])
    assert exact == {
        "001-lm-dot": 46_527_812, "001-lm-neural-2": 46_528_087,
        "001-lm-neural-16": 46_530_565, "001-lm-neural": 46_538_181,
    }  # fmt: skip


def test_vision_models_of_001_have_the_two_sizes_it_prints_for_other_numbers_of_classes():
    assert (size("001-cifar10-dot"), size("001-cifar100-dot")) == (47_402_506, 47_471_716)
    printed = {
        table: {row["method"]: number(row["params_M"]) for row in document("001").rows(table)}
        for table in ("table03_cifar10", "table04_cifar100")
    }
    for sizes in printed.values():
        assert sizes["dot_product"] == 47.402 == size("001-cifar10-dot") // 1000 / 1000
        assert sizes["neural"] == round(size("001-cifar100-neural-2") / 1e6, 3)


def test_only_the_first_layer_of_001_is_neural():
    for name in ("001-lm-neural-2", "001-cifar100-neural-2"):
        layers = build(preset(name).config, device="meta").body.layers
        assert [isinstance(layer.attention.spec, Neural) for layer in layers] == [
            number == 0 for number in range(len(layers))
        ]


# -- 002 ---------------------------------------------------------------------------------
def test_sublayers_of_002_have_the_parameters_of_its_table_7():
    sizes = {row["key"]: row["value"] for row in document("002").rows("table01_hyperparameters")}
    columns = {
        "attention-1": "self_attention_1_head", "attention-32": "self_attention_32_heads",
        "she": "she", "he": "he", "we": "we", "me": "me",
    }  # fmt: skip
    rows = document("002").rows("table07_counts_d128_l128")
    (printed,) = (row for row in rows if row["quantity"] == "params")
    for variant, name in columns.items():
        config = preset(f"002-{variant}").config
        assert config.d_model == int(sizes["model_dim"])
        assert config.seq_len == int(sizes["context_window"])
        assert config.num_layers == int(sizes["layers"])
        assert config.hidden == int(sizes["ffn_hidden"])
        assert config.vocab_size == int(sizes["vocabulary_size"])
        model = build(config, device="meta")
        assert parts(model)["attention"] == config.num_layers * int(printed[name])


# -- 003 ---------------------------------------------------------------------------------
def test_the_printed_models_of_003_share_one_attention_without_maps():
    for name in NAMES:
        if name.startswith("003-printed"):
            model = build(preset(name).config, device="meta")
            assert model.encoder.layers[0].attention is model.decoder.layers[0].attention
            linformer = 2048 * 128 if name.endswith("linformer") else 0
            assert parts(model)["attention"] == linformer


# -- 004 ---------------------------------------------------------------------------------
def test_encoders_of_004_have_the_sizes_of_its_table_7():
    rows = {row["param"]: row for row in document("004").rows("table07_hyperparameters")}
    for task in ("cifar_pixel", "imdb_byte", "listops", "imagenet_ti", "imagenet_s"):
        for name in NAMES:
            if not name.startswith(f"004-{task.replace('_', '-')}-"):
                continue
            config, printed = preset(name).config, {row: rows[row][task] for row in rows}
            assert config.num_layers == int(printed["model_depth"])
            assert config.d_model == int(printed["d_embed"])
            assert config.num_heads == int(printed["heads"])
            assert config.hidden == int(printed["mlp_ratio"]) * config.d_model
            assert config.positions == printed["pos_embed"].replace("cosine", "sinusoidal")


def test_vision_transformers_of_004_have_the_public_sizes_of_ti_and_s():
    # timm's vit_tiny_patch16_224 and vit_small_patch16_224
    assert size("004-imagenet-ti-standard") == 5_717_416
    assert size("004-imagenet-s384-standard") == 22_050_664


def test_tokens_of_004_are_those_its_tables_count():
    assert preset("004-cifar-pixel-standard").config.tokens == 1025
    assert preset("004-imagenet-ti-standard").config.tokens == 197


# -- files ---------------------------------------------------------------------------------
def test_a_file_may_change_a_preset(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('preset = "001-lm-dot"\nattention = "sdpa"\nnum_layers = 3\n')
    expected = preset("001-lm-dot").config.with_(attention="sdpa", num_layers=3)
    assert load(path) == load(str(path)) == expected
    path.write_text(expected.to_toml())
    assert load(path) == expected
