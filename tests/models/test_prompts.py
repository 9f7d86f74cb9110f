"""What models keep after prompts that are loops over tokens, against the models' own caches."""

import pytest
import torch

from attnprof.models import whole
from attnprof.models.cache import cache_bytes
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.models.whole import Growth, cache_in, tensors_by_layer
from attnprof.trace.events import totals, trains
from attnprof.trace.run.limits import Shares
from attnprof.trace.run.runs import record
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.derive import derived

_SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 24, "vocab_size": 97, "attn_layer_period": 2, "attn_layer_offset": 1,
    "expert_layer_period": 8, "expert_layer_offset": 7, "mamba_d_state": 4, "mamba_dt_rank": 2,
    "num_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Prompts that tell of longer ones have at most 64 tokens."""
    monkeypatch.setattr(whole, "_SHORTEST", 64)


def hybrid(layers=2):
    """Layers of Mamba, whose prompts go token by token, and of attention in turn."""
    fields = {"model_type": "jamba", "torch_dtype": "float32", **_SIZES}
    return hub_subject({**fields, "num_hidden_layers": layers}, "hybrid")


def test_a_hybrids_cache_is_a_formula_though_its_prompt_is_a_loop():
    subject = hybrid()
    rows, forms = cache_bytes(subject, {"B": 2, "N": 20}, None, Shares(60.0, 1))
    assert forms.missing == ""
    for sizes in ({"B": 3, "N": 33}, {"B": 5, "N": 61}):
        assert forms.holds(sizes)
        with torch.no_grad():
            result = subject.build().eval()(**subject.example(sizes, "cpu"), use_cache=True)
        layers = tensors_by_layer(cache_in(result, "hybrid")[1])
        held = sum(x.nbytes for own in layers for x in own)
        assert evaluate(rows[-1].expression, sizes) == held


def test_a_hybrids_decoded_token_is_a_formula_too():
    target = hybrid().target("decode")
    forms = derived(target, ("forward",), {"B": 2, "N": 20}).phases["forward"]
    assert forms.method == "symbolic"
    for sizes in ({"B": 3, "N": 33}, {"B": 5, "N": 61}):
        assert forms.holds(sizes)
        real = totals(record(target, sizes, training=trains(["forward"]), real=True), "forward")
        for quantity in ("matmul_flops", "flops", "bytes_moved", "peak_bytes"):
            assert evaluate(forms.formulas[quantity].expression, sizes) == real[quantity], quantity


def test_prompts_of_a_few_lengths_are_run_once_for_the_token_and_the_cache(monkeypatch):
    lengths, run = [], Growth._prompts

    def noted(self, least, most):
        with torch.device("meta"):
            lengths.append(sum(1 for _ in self.subject.build().modules()))
        return run(self, least, most)

    monkeypatch.setattr(Growth, "_prompts", noted)
    report = model_report(hybrid(4), ["decode"], {"B": 2, "N": 24})
    assert len(lengths) == len(set(lengths)) >= 1
    assert any(row.quantity == "cache_bytes" and row.expression for row in report.records)
