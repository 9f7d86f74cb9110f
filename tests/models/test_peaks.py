"""What is held at a model's peak: told against sums by hand and the peak itself."""

import pytest

from attnprof.models.few_layers import run_by_few
from attnprof.models.memory import largest_at_peak, peak_fields
from attnprof.models.phases import run_of
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.trace.events import peak

LLAMA = {
    "model_type": "llama", "hidden_size": 24, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 40, "vocab_size": 5000,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture(name="subject")
def _subject():
    return hub_subject(LLAMA, "a small llama")


def test_logits_of_all_tokens_are_most_of_a_forward_pass(subject):
    run = run_of(subject, "forward", {"B": 3, "N": 70})
    first = largest_at_peak(run.trace, "forward")[0]
    assert (first.module, first.count, first.bytes) == ("lm_head", 1, 4 * 3 * 70 * 5000)


def test_tensors_of_alike_layers_are_one_entry():
    few_words = hub_subject({**LLAMA, "vocab_size": 16}, "few words")
    trace = run_of(few_words, "train", {"B": 2, "N": 128}).trace
    held = largest_at_peak(trace, "train")
    assert held[0].count % 12 == 0  # of all layers
    assert held[0].module.startswith("model.layers.*.")
    assert sum(one.bytes for one in held) <= peak(trace, "train")


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_a_run_of_few_layers_holds_what_a_run_of_all_does(subject, phase):
    sizes = {"B": 2, "N": 64}
    whole = run_of(subject, phase, sizes).trace
    few, _ = run_by_few(subject, phase, sizes)
    assert largest_at_peak(few, phase) == largest_at_peak(whole, phase)


def test_the_formula_of_a_shape_is_the_value_there(subject):
    report = model_report(subject, ["forward", "decode"], {"B": 2, "N": 96})
    rows = {r.phase: r for r in report.records if (r.part, r.quantity) == ("total", "peak_bytes")}
    for phase in ("forward", "decode"):
        formula = report.summary["phases"][phase]["peak"]["formula"]
        assert "Max" not in formula
        assert eval(formula, {"B": 2, "N": 96, "L": 12, "Min": min}) == rows[phase].value


def test_without_formulas_there_are_tensors_alone(subject):
    run = run_of(subject, "forward", {"B": 1, "N": 16})
    fields = peak_fields(run.trace, "forward", None, {"B": 1, "N": 16})
    assert fields["formula"] is None
    assert fields["tensors"]
