"""Hand-written formulas for a model's FLOPs a token: every change told, and all add up."""

import pytest
import sympy

from attnprof.errors import RequestError
from attnprof.models.mfu_sizes import sizes_of
from attnprof.verify.model_formula import model_formula_report
from tests.models.tiny import FIELDS, SIZES

pytest.importorskip("transformers")

DENSE = {**SIZES, "model_type": "llama", "tie_word_embeddings": False}
MOE = {**SIZES, **FIELDS["qwen2_moe"], "model_type": "qwen2_moe"}
LATENT = {**SIZES, **FIELDS["deepseek_v3"], "model_type": "deepseek_v3"}
WINDOW = {**SIZES, "model_type": "mistral", "sliding_window": 5}
N = sympy.Symbol("N")

FULL, HALF = "causal counted full", "causal counted N/2"
TWICE = "backward 2x, without the fused kernel's recomputation"
#: A formula, the model, the changes it makes, and the convention it is.
FORMULAS = {
    "palm": (DENSE, "6*P + 12*L*h*d*N", [TWICE, FULL, "embedding", "norms"], ["palm (train)"]),
    "six n": (DENSE, "6*P", ["left out", "embedding", "norms"], ["6n (train)"]),
    "titan": (DENSE, "6*(P-E) + 12*L*h*d*N", [TWICE, FULL, "norms"], ["torchtitan (train)"]),
    "half": (DENSE, "6*(P-E) + 6*L*h*d*N", [TWICE, HALF, "norms"], []),
    "key heads": ({**DENSE, "num_key_value_heads": 1}, "6*P + 12*L*g*d*N",
                  [TWICE, FULL, "key heads", "embedding", "norms"], []),
    "forward": (DENSE, "2*P", ["left out", "embedding", "norms", "forward pass alone"],
                ["6n (forward)"]),
    "no head": (DENSE, "6*(P - E - V*D) + 12*L*h*d*N", [TWICE, FULL, "norms", "output head"], []),
    "all experts": (MOE, "6*P + 12*L*h*d*N",
                    [TWICE, FULL, "embedding", "norms", "biases", "does not meet"], []),
    "active": (MOE, "6*A + 12*L*h*d*N", [TWICE, FULL, "embedding", "norms", "biases"],
               ["palm (train)"]),
    "wide values": (LATENT, "6*A + 12*L*h*d*N",
                    [TWICE, "values as wide as keys", FULL, "embedding", "norms counted"], []),
    "dense windows": (WINDOW, "6*P + 12*L*h*d*N",
                      [TWICE, "windows counted dense", FULL, "embedding", "norms"],
                      ["palm (train)"]),
    "sequence": (DENSE, "N*(6*P + 12*L*h*d*N)", [TWICE, FULL, "embedding", "norms"],
                 ["palm (train)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_each_change_of_a_formula_is_told_and_they_add_up(name):
    fields, text, changes, conventions = FORMULAS[name]
    report = model_formula_report(sizes_of(fields), text, "train", 1000)
    *steps, whole = report.records
    assert report.summary["conventions"] == conventions
    assert not report.summary["match"]
    for change in changes:
        assert sum(change in f"{step.term} {step.what}" for step in steps) == 1, change
    assert len(steps) == len(changes) + (name == "wide values")  # and norms of latents
    parts = [sympy.sympify(step.difference, {"N": N}) for step in steps]
    assert sympy.expand(sum(parts) - sympy.sympify(whole.difference, {"N": N})) == 0
    theirs, ours = (sympy.sympify(x, {"N": N}) for x in (whole.theirs, whole.ours))
    assert sympy.expand(theirs - ours - sum(parts)) == 0
    assert theirs.subs(N, 1000) == whole.theirs_value


def test_the_amount_of_a_change_is_told_in_the_formulas_symbols():
    report = model_formula_report(sizes_of(DENSE), "6*P + 12*L*h*d*N", "train", 1000)
    explanation = next(step.what for step in report.records if FULL in step.what)
    assert explanation.endswith(": + 6*L*h*d*N - 6*L*h*d")


def test_what_is_executed_matches_in_both_phases():
    sizes = sizes_of(DENSE)
    norms = 7 * 32
    for phase, text in {
        "train": f"6*(P - E - {norms}) + 7*L*h*d*(N + 1)",
        "forward": f"2*(P - E - {norms}) + 2*L*h*d*(N + 1)",
    }.items():
        report = model_formula_report(sizes, text, phase, 64)
        assert report.summary["match"]
        assert f"executed ({phase})" in report.summary["conventions"]
        assert {step.difference for step in report.records} == {"0"}


def test_fields_of_the_configuration_and_meanings_are_names_too():
    text = "6*P + 12*num_hidden_layers*heads*head_dim*N"
    where = {"heads": "num_attention_heads"}
    report = model_formula_report(sizes_of(DENSE), text, "train", 64, where)
    assert report.summary["conventions"] == ["palm (train)"]


def test_a_number_that_nobody_can_explain_is_said_to_be_none():
    report = model_formula_report(sizes_of(DENSE), "6*P + 12345 + 17*N", "train", 64)
    explanation = " ".join(step.what for step in report.records)
    assert "no known way to count attention" in explanation
    assert "no known choice of parameters" in explanation
    assert "no convention known here" in report.summary["answer"]


@pytest.mark.parametrize("text", ["6*Q", "6*P +", "6*P + M*N"])
def test_other_names_and_no_formulas_are_refused(text):
    with pytest.raises(RequestError, match="formula"):
        model_formula_report(sizes_of(DENSE), text, "train", 64)
