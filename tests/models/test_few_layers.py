"""Runs of all layers that are made of runs of a few, against runs of all."""

import pytest
import torch

from attnprof.errors import CannotRunError
from attnprof.models import ModelConfig, phases
from attnprof.models.costs import by_kind, by_part
from attnprof.models.few_layers import run_by_few
from attnprof.models.parts import places
from attnprof.models.phases import run_of
from attnprof.models.report import model_report
from attnprof.models.sources import config_subject, hub_subject
from attnprof.models.whole import WholeModel
from attnprof.trace.events import totals
from attnprof.trace.solve.count import counted

_ROWS = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 97, "intermediate_size": 48}
_GROUPED = {**_ROWS, "num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "llama": {"model_type": "llama", **_GROUPED, "num_hidden_layers": 5},
    "gemma3": {"model_type": "gemma3_text", **_GROUPED, "num_hidden_layers": 8,
               "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 4},
    "mamba": {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 5, "state_size": 4,
              "vocab_size": 97},
    "t5": {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 5,
           "num_heads": 4, "vocab_size": 97},
    "llava": {"model_type": "llava", "image_token_index": 5,
              "text_config": {"model_type": "llama", **_GROUPED, "num_hidden_layers": 5},
              "vision_config": {"model_type": "clip_vision_model", **_ROWS, "image_size": 28,
                                "patch_size": 14, "num_hidden_layers": 5}},
}  # fmt: skip
AT = {"B": 2, "N": 24}


def by_parts(subject, trace, phase):
    model = subject.on_meta()
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

    subject = phases.WholeModel("growing", Growing, {"x": "B, N, 4"})
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


def test_a_phase_is_not_run_by_few_layers_where_another_phase_shows_that_they_differ():
    """The fifth layer of eight does more, which neither its weights nor its settings tell."""

    class Layer(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.layer_idx, self.map = number, torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.map(x).relu() if self.layer_idx == 5 else self.map(x)

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(map(Layer, range(12)))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    subject, sizes = WholeModel("uneven", Stack, {"x": "B, N, 8"}), {"B": 2, "N": 4}
    forward = run_of(subject, "forward", sizes)
    assert run_by_few(subject, "train", sizes) is not None
    assert run_by_few(subject, "train", sizes, forward.trace) is None
    train = run_of(subject, "train", sizes, other_phase=forward.trace)
    assert sum(call.op == "relu" for call in train.trace.calls) == 1
