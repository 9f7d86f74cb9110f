"""Layers that repeat: the first few stand for all, in sums and in runs; names of their kinds."""

from collections import Counter
from math import inf

import pytest
import torch

from attnprof.algebra.expressions import symbol
from attnprof.errors import CannotRunError
from attnprof.models import ModelConfig, phases
from attnprof.models.costs import by_kind, by_part, half_length
from attnprof.models.few_layers import run_by_few
from attnprof.models.forms import at_layers
from attnprof.models.parts import distinct_names, layer_names, layers_of, places
from attnprof.models.phases import run_of
from attnprof.models.report import model_report
from attnprof.models.sources import config_subject, hub_subject
from attnprof.models.stacks import LayerStack, sample_of
from attnprof.models.whole import WholeModel
from attnprof.trace.events import totals
from attnprof.trace.solve.count import counted
from tests.models.tiny import FIELDS, fields_of, in_layers, small

#: Kinds of layers in stacks, each with its period: what one more period of layers is.
STACKS = {
    "alike": ([(1,) * 12], 1),
    "windows 5:1, 26 layers": ([((1,) * 5 + (2,)) * 4 + (1, 1)], 6),
    "windows 5:1, 14 layers": ([((1,) * 5 + (2,)) * 2 + (1, 1)], 6),
    "a dense layer first": ([(1,) + (2,) * 11], 1),
    "attention in every fourth": ([(1, 1, 1, 2) * 3], 4),
    "two stacks whose first layers have more": ([(1,) + (2,) * 5, (3,) + (4,) * 5], 1),
    "two stacks, one longer": ([(1,) * 6, (2,) * 11], 1),
    "three stacks, one of few layers": ([(1,) * 24, (2,) * 2, (3,) * 7], 1),
    "a stack of all different layers beside another": ([(1, 2, 3), (4,) * 24], 1),
}  # fmt: skip
#: What is beside layers, and what one of each kind has.
BESIDE, EACH = 7, {1: 11, 2: 130, 3: 1700, 4: 19000}


def total(stacks):
    return BESIDE + sum(EACH[kind] for kinds in stacks for kind in kinds)


@pytest.mark.parametrize("name", STACKS)
def test_sums_in_layers_are_those_of_models_with_more_of_them(name):
    stacks, period = STACKS[name]
    made = [LayerStack(f"stack{n}", kinds) for n, kinds in enumerate(stacks)]
    sample = sample_of(made)
    each = {(x, n): EACH[x.kinds[n]] for x in made for n in range(sample.lengths[x.path])}
    each[None] = BESIDE
    assert sum(times * each[layer] for layer, times in sample.times(sample.full).items()) == total(
        stacks
    )
    formula = sample.in_layers(each)
    assert {str(name) for name in formula.free_symbols} == {*sample.symbols.values()} != set()
    apart = len({*sample.symbols.values()}) > 1
    for turns in (0, 1, 5):
        longer = [
            kinds + kinds[-period:] * ((turns + apart * place) * (stack.path in sample.symbols))
            for place, (stack, kinds) in enumerate(zip(made, stacks, strict=True))
        ]
        numbers = {s.path: len(kinds) for s, kinds in zip(made, longer, strict=True)}
        assert at_layers(formula, sample.numbers(numbers)) == total(longer)


def test_the_first_and_the_last_layer_count_once():
    stack = LayerStack("layers", (1,) * 12)
    sample = sample_of([stack])
    assert sample.lengths == {"layers": 3}
    assert sample.times({"layers": 12}) == {None: 1, (stack, 0): 1, (stack, 1): 10, (stack, 2): 1}
    each = {(stack, 0): 100, (stack, 1): 7, (stack, 2): 20}
    assert sample.in_layers(each) == 7 * symbol("L") + 106


def test_what_runs_between_two_layers_runs_once_less_than_there_are_layers():
    """Also where the last sampled layer is of another kind than the last of all."""
    stack = LayerStack("layers", (1, 1, 1, 2) * 3)
    sample = sample_of([stack])
    assert sample.lengths == {"layers": 5}
    between = {(stack, n): int(n < 4) for n in range(5)}
    assert sample.in_layers(between) == symbol("L") - 1
    kinds = {(stack, n): int(kind == 2) for n, kind in enumerate(stack.kinds[:5])}
    assert sample.in_layers(kinds) == symbol("L") / 4


N = symbol("N")


@pytest.mark.parametrize(
    ("rest", "holds", "length"),
    [(100 * N, lambda _: True, 100), (100 * N, lambda n: n >= 2048, None),
     (100 * N, lambda n: n <= 50, None), (100 * N, lambda n: n % 32 == 0, 100),
     (100 * N, lambda n: n < 2048, 100), (100 * N, lambda n: n >= 100, None),
     (1, lambda _: True, 1), (1, lambda n: n >= 2048, None)],
)  # fmt: skip
def test_half_of_the_work_is_told_where_formulas_hold_on_both_sides(rest, holds, length):
    assert half_length(N**2, N**2 + rest, holds) == length


def test_layers_of_a_type_that_cost_nearly_the_same_are_one_kind():
    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16,
             "num_key_value_heads": 2, "vocab_size": 101, "moe_intermediate_size": 32}  # fmt: skip
    window = {f"swa_{name}": sizes[name] for name in ("num_attention_heads", "head_dim")}
    fields = {
        "model_type": "inkling2_text", **sizes, **window, "swa_num_key_value_heads": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window_size": 16,
        "unpadded_vocab_size": 97, "eos_token_id": 2, "rel_extent": 16, "d_rel": 4,
        "n_layers_per_attn_res_block": 2,
    }  # fmt: skip
    report = model_report(hub_subject(fields, "given"), ["forward"], {"B": 1, "N": 24}, limit_s=0.0)
    mixed = "short convolution · moe 4/2"
    assert report.summary["layers"] == {f"sliding 16 + {mixed}": 5, f"full + {mixed}": 1}
    rows = [row for row in report.records if row.quantity == "flops"]
    assert len({(row.layer_kind, row.part) for row in rows}) == len(rows)
    assert sum(row.value for row in rows if row.part != "total") == rows[-1].value


def test_layers_of_a_type_that_cost_otherwise_are_kinds_of_their_own():
    one = small("qwen2_moe", num_hidden_layers=4, mlp_only_layers=[0])
    report = model_report(one, ["forward"], {"B": 1, "N": 24}, limit_s=0.0)
    assert sorted(report.summary["layers"].values()) == [1, 3]


_EXPERTS = {"num_local_experts": 4, "interleave_moe_layer_step": 2}
NAMES = [
    ("llama", {}, {"full": 3}), ("mistral", {}, {"sliding 5": 3}),
    ("mistral", {"sliding_window": None}, {"full": 3}),
    ("gemma3_text", {}, {"sliding 5": 6, "full": 1}),
    ("gpt_oss", {}, {"sliding 5 · moe 4/2": 2, "full · moe 4/2": 1}),
    ("llama4_text", _EXPERTS, {"chunked 6": 2, "chunked 6 · moe 4/1": 1, "full · moe 4/1": 1}),
    ("deepseek_v3", {}, {"latent": 1, "latent · moe 8/2": 2}),
    ("qwen3_next", {}, {"gated delta · moe 4/2": 2, "full · moe 4/2": 1}),
    ("kimi_linear", {}, {"kimi delta": 1, "kimi delta · moe 4/2": 1, "latent · moe 4/2": 1}),
    ("mamba", {}, {"mamba": 3}), ("mamba2", {}, {"mamba-2": 3}),
    ("bamba", {}, {"mamba-2": 2, "full": 1}),
    ("bart", {"encoder_layers": 2, "decoder_layers": 3}, {"full": 2, "full + cross": 3}),
    ("swin", {"image_size": 224, "window_size": 7}, {"window 7": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "fields", "expected"), NAMES)
def test_layers_are_named_by_what_their_modules_do(model_type, fields, expected):
    own = {"model_type": model_type, **fields}  # of types whose sizes have other names
    subject = small(model_type, **fields) if model_type in FIELDS else hub_subject(own, "own")
    model = subject.on_meta
    where = places(model)
    assert Counter(layer_names(model, layers_of(where), where, subject.layer_types)) == expected


def _layer(width, *, bias=True, stride=1):
    layer = torch.nn.Module()
    layer.up_proj = torch.nn.Linear(4, width, bias=bias)
    layer.stride = stride
    return layer


@pytest.mark.parametrize(
    ("other", "title"),
    [
        (_layer(16), "full · up_proj 16"),
        (_layer(8, bias=False), "full · without up_proj bias"),
        (_layer(8, stride=2), "full · stride 2"),
        (_layer(8), "full · at 3, 5"),
    ],
)
def test_kinds_of_one_name_are_told_apart_by_what_differs(other, title):
    modules = {"layers.0": _layer(8), "layers.3": other, "layers.5": other}
    kinds = [["layers.0"], ["layers.3", "layers.5"]]
    assert distinct_names(modules, "full", kinds) == ["full", title]


def test_three_kinds_of_one_name_have_three_names():
    modules = {f"layers.{n}": _layer(8) for n in range(3)}
    names = distinct_names(modules, "full", [[path] for path in modules])
    assert names == ["full", "full · at 1", "full · at 2"]


# -- runs of all layers that are made of runs of a few -----------------------------------------
MODELS = {
    "llama": fields_of("llama", num_hidden_layers=5),
    "gemma3": fields_of("gemma3_text", num_hidden_layers=8, sliding_window=8,
                        layer_types=["sliding_attention", "full_attention"] * 4),
    "mamba": fields_of("mamba", num_hidden_layers=5),
    "t5": fields_of("t5", num_layers=5, num_hidden_layers=5),
    "llava": {"model_type": "llava", "image_token_index": 5,
              "text_config": fields_of("llama", num_hidden_layers=5),
              "vision_config": fields_of("clip_vision_model", num_hidden_layers=5, image_size=28,
                                         patch_size=14)},
}  # fmt: skip
AT = {"B": 2, "N": 24}


def by_parts(subject, trace, phase):
    model = subject.on_meta
    where = places(model)
    kinds = by_kind(model, where, [trace], subject.layer_types)
    return by_part(trace, phase, where, kinds)


@pytest.mark.parametrize(
    ("name", "phase"),
    [*((name, "train") for name in MODELS), *((name, "decode") for name in MODELS),
     ("gemma3", "forward"), ("llava", "forward")],
)  # fmt: skip
def test_a_few_layers_stand_for_all_in_every_call(name, phase):
    subject = hub_subject(MODELS[name], name)
    whole, _ = counted(subject.target(phase), AT, phase, compare_real=False)
    few, _ = run_by_few(subject, phase, AT)
    assert totals(few, phase) == totals(whole, phase)
    assert by_parts(subject, few, phase) == by_parts(subject, whole, phase)
    assert few.ungraded == whole.ungraded


def test_a_few_layers_of_our_own_models_stand_for_all():
    config = ModelConfig(
        d_model=8, num_heads=2, num_layers=7, vocab_size=11, seq_len=40,
        attention=("linear", "standard"),
    )  # fmt: skip
    subject = config_subject("small", config)
    whole, _ = counted(subject.target("train"), AT, "train", compare_real=False)
    few, _ = run_by_few(subject, "train", AT)
    assert totals(few, "train") == totals(whole, "train")


def test_layers_that_are_built_alike_and_cost_ever_more_are_all_run():
    class Growing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12))

        def forward(self, x):
            rows = [x]
            for layer in self.layers:
                rows.append(layer(torch.cat(rows)))
            return rows[-1]

    subject = WholeModel("growing", Growing, {"x": "B, N, 4"})
    assert run_by_few(subject, "forward", AT) is None


def test_a_run_that_takes_long_is_made_of_a_few_layers(monkeypatch):
    subject = hub_subject(MODELS["llama"], "llama")
    report = model_report(subject, ["forward", "train"], AT, limit_s=0.0)
    monkeypatch.setattr(phases, "_LONG_S", 0.0)
    short = model_report(subject, ["forward", "train"], AT, limit_s=0.0)
    assert [r.value for r in short.records] == [r.value for r in report.records]
    assert short.summary["memory"] == report.summary["memory"]
    monkeypatch.setattr(phases, "_LONGEST_S", 0.0)
    with pytest.raises(CannotRunError, match="--seq"):
        model_report(subject, ["forward"], AT, limit_s=0.0)


@pytest.mark.parametrize("long_s", [inf, 0.0])
def test_a_phase_is_not_run_by_few_layers_where_another_phase_shows_that_they_differ(
    monkeypatch, long_s
):
    """The fifth of twelve layers does more, which neither weights nor settings tell.

    However long a run takes: the other phase is asked before the first run, and after a long one.
    """

    class Layer(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.layer_idx, self.map = number, torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.map(x).relu() if self.layer_idx == 5 else self.map(x)

    sizes = {"B": 2, "N": 4}
    subject = WholeModel("uneven", lambda: in_layers(map(Layer, range(12))), {"input": "B, N, 8"})
    forward, _ = counted(subject.target("forward"), sizes, "forward", compare_real=False)
    assert run_by_few(subject, "train", sizes) is not None
    assert run_by_few(subject, "train", sizes, forward) is None
    monkeypatch.setattr(phases, "_LONG_S", long_s)
    train = run_of(subject, "train", sizes, other_phase=forward)
    assert sum(call.op == "relu" for call in train.trace.calls) == 1
