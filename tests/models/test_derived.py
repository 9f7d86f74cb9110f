"""Whole models have closed forms, with their number of layers as a size; caches of long prompts."""

import pytest
import sympy
import torch

import attnprof
from attnprof.algebra.expressions import symbol
from attnprof.models import ModelConfig, borders, build, forms, memory, phases, prompts
from attnprof.models.borders import _counts_blocks
from attnprof.models.embeddings import example_inputs, input_texts
from attnprof.models.engine import engine_subject
from attnprof.models.parts import parts
from attnprof.models.prompts import Prompts
from attnprof.models.report import model_report
from attnprof.models.sources import config_subject, hub_subject, subject_of
from attnprof.models.whole import WholeModel, cache_in, tensors_by_layer
from attnprof.trace.events import Call, Trace, totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run import limits
from attnprof.trace.run.runs import record
from attnprof.trace.solve import plan
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import BlockedSize
from tests.models.tiny import check_formulas, counted, dispatched, in_layers, small

SYMBOLS = {"d_model": "h*d", "num_heads": "h", "num_layers": "L", "seq_len": "N"}


def test_formulas_in_layers_and_tokens_are_what_models_dispatch():
    plain = {"vocab_size": 11, "positions": "sinusoidal"}
    given = {f"config.{name}": str(value) for name, value in {**plain, **SYMBOLS}.items()}
    inputs = input_texts(ModelConfig())
    derivation = attnprof.derive(build, args=given, inputs=inputs, phases=["forward"])
    formulas = [derivation.expression(name) for name in ("matmul_flops", "parameters")]
    for batch, n, layers, heads, width in ((1, 9, 1, 1, 6), (3, 20, 4, 2, 5)):
        sizes = {"d_model": heads * width, "num_heads": heads, "num_layers": layers, "seq_len": n}
        model = build(ModelConfig(**plain, **sizes))
        counted, _ = dispatched(model, *example_inputs(model.config, batch))
        at = {"B": batch, "N": n, "L": layers, "h": heads, "d": width}
        values = [f.subs({s: at[str(s)] for s in f.free_symbols}) for f in formulas]
        assert values == [counted, sum(parts(model).values())]


def test_what_a_layer_does_in_its_step_is_the_layers():
    model = subject_of("001-lm-dot")
    trace = count(model.target("decode"), {"B": 2, "N": 40}, "decode")
    attention = [call for call in trace.calls if "attention" in call.module]
    products = 8 * 2 * 2 * (4 * 512**2 + 2 * 40 * 512)  # layers, batch; projections, scores, values
    assert sum(call.counts.get("matmul_flops", 0) for call in attention) == products


def test_formulas_in_layers_are_what_models_with_more_or_fewer_of_them_hold_and_do():
    config = ModelConfig(num_layers=5, d_model=8, num_heads=2, vocab_size=11, seq_len=40)
    report = model_report(config_subject("ours", config), ["train"], {"B": 2, "N": 12})
    assert report.summary["at"]["L"] == 5
    longer = config_subject("longer", config.with_(num_layers=9))
    check_formulas(report, longer, {"B": 2, "N": 33}, "train", L=9)


def test_formulas_reach_the_longest_text_that_a_model_takes():
    config = ModelConfig(num_layers=5, d_model=8, num_heads=2, vocab_size=11, seq_len=24)
    subject = config_subject("short", config)
    assert subject.usual_length == 24
    report = model_report(subject, ["forward"], {"B": 1, "N": 24})
    assert "N <= 24" in report.summary["phases"]["forward"]["domain"]
    for n in (24, 9):
        check_formulas(report, subject, {"B": 2, "N": n}, L=5)


def test_numbers_are_there_where_formulas_would_take_too_long(monkeypatch):
    """No second for formulas, or none that numbers leave: no formula is looked for."""
    config = ModelConfig(num_layers=1, d_model=8, num_heads=2, vocab_size=11, seq_len=40)
    asked = config_subject("ours", config), ["train"], {"B": 2, "N": 12}
    with_formulas = model_report(*asked, limit_s=60.0)
    assert any(row.expression for row in with_formulas.records)
    for search in ("derived_near", "run_symbolically", "derived"):
        for place in (phases, forms, memory):
            monkeypatch.setattr(place, search, None, raising=False)
    values = [row.value for row in with_formulas.records]
    for limit, said in ((0.0, "--limit 0 asks for none"), (1e-9, "--limit 1e-09: type")):
        without = model_report(*asked, limit_s=limit)
        assert [row.value for row in without.records] == values
        assert not any(row.expression for row in without.records)
        assert said in without.summary["phases"]["train"]["missing"]


def test_formulas_get_what_numbers_leave_of_the_time(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(limits, "process_time", lambda: clock[0])
    shares = limits.Shares(10.0, tasks=2)
    clock[0] += 6  # a run of the numbers
    with shares.next() as share:
        assert share == pytest.approx(2)
        clock[0] += 3  # longer than its share
    assert "its share of --limit 10: type --limit 180" in shares.late(share)
    with shares.next() as share:
        assert share == pytest.approx(1)
    clock[0] += 1
    with shares.next() as share:
        assert share == 0
    assert "is left of --limit 10: type --limit 180" in shares.late(share)


def test_numbers_of_blocks_are_some_at_the_next_length_too():
    n = sympy.Symbol("N")
    blocks, window = -sympy.floor(-n / 64), sympy.floor(n / 1024)
    assert _counts_blocks(sympy.Eq(blocks, 16))
    assert _counts_blocks(sympy.Eq(sympy.floor(n / 8), 3))
    for rounded, number in ((n, 1024), (window, 1), (n - 64 * sympy.floor(n / 64), 9)):
        assert not _counts_blocks(sympy.Eq(rounded, number))


def test_code_that_is_long_at_small_sizes_runs_there(monkeypatch):
    monkeypatch.setattr(plan, "SHORT", 2)
    target = target_of(lambda x: x.cos().sin().exp().tanh(), {}, {"x": "B, N"})
    assert plan._base(target, ["forward"]) == {"B": 2, "N": 4}


def test_stacks_of_unequal_length_have_a_symbol_each():
    small = {
        "model_type": "bart", "d_model": 16, "encoder_attention_heads": 2, "vocab_size": 97,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    }  # fmt: skip
    given = hub_subject({**small, "encoder_layers": 5, "decoder_layers": 6}, "bart", "eager")
    report = model_report(given, ["forward"], {"B": 2, "N": 24})
    assert (report.summary["at"]["L_encoder"], report.summary["at"]["L_decoder"]) == (5, 6)
    other = hub_subject({**small, "encoder_layers": 7, "decoder_layers": 4}, "bart", "eager")
    check_formulas(report, other, {"B": 3, "N": 33}, L_encoder=7, L_decoder=4)


def test_what_a_token_meets_and_does_in_a_mixture_are_formulas_in_layers():
    fields = {
        "model_type": "mixtral", "hidden_size": 16, "num_hidden_layers": 5, "vocab_size": 97,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
        "num_local_experts": 6, "num_experts_per_tok": 2,
    }  # fmt: skip
    report = model_report(hub_subject(fields, "mixture"), ["forward"], {"B": 2, "N": 9})
    other = hub_subject({**fields, "num_hidden_layers": 7}, "other")
    check_formulas(report, other, {"B": 2, "N": 33}, without=("peak_bytes",), L=7)
    met = [row for row in report.records if row.quantity == "active_parameters"]
    names = {"L": sympy.Symbol("L")}
    for layers in (5, 7):
        model = hub_subject({**fields, "num_hidden_layers": layers}, "other").build()
        sizes = {name: weights.numel() for name, weights in model.named_parameters()}
        resting = sum(size for name, size in sizes.items() if ".experts." in name) * 4 // 6
        values = [int(sympy.sympify(row.expression, names).subs("L", layers)) for row in met]
        assert values[-1] == sum(values[:-1]) == sum(sizes.values()) - resting


class _Looping(torch.nn.Module):
    """A layer that goes through its tokens in blocks of 8, the last of which may be shorter."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        for block in range(-(-x.shape[1] // 8)):
            rows = self.inner(x[:, 8 * block : 8 * block + 8])
            state = state + rows.sum(1)
            out.append(rows * state[:, None])
        return torch.cat(out, 1)


def _loops(layers):
    return WholeModel(
        "loops", lambda: in_layers(_Looping() for _ in range(layers)), {"input": "B, N, 4"}
    )


def test_layers_that_loop_over_blocks_of_tokens_have_formulas_from_one_sample(monkeypatch):
    searches = []

    def once(target, *rest, **how):
        searches.append(target)
        return derived(target, *rest, **how)

    monkeypatch.setattr(borders, "derived", once)
    report = model_report(_loops(6), ["forward"], {"B": 2, "N": 21})
    forward = report.summary["phases"]["forward"]
    assert forward["method"] == "mixed"
    assert "N mod 8 != 1" in forward["domain"]  # a row alone is laid out otherwise
    assert len(searches) == 1
    for layers, batch, n in ((6, 3, 16), (9, 5, 43), (7, 2, 18)):
        sizes = {"B": batch, "N": n}
        check_formulas(report, _loops(layers), sizes, without=("peak_bytes",), L=layers)


def test_exponents_name_a_length_that_is_a_number_of_blocks():
    rest, batch, length = (symbol(name) for name in ("N mod 64", "B", "N"))
    for place, size in (
        (BlockedSize(sympy.Integer(64), 2, 37), 128 + rest),
        (BlockedSize(64, 3), 192),
    ):
        moved = 8 * batch - sympy.floor(sympy.Integer(100) / 2 ** (batch * size))
        trace = Trace([Call("mm", {}, moved, "forward", "")])
        written = plan._with_lengths_in_exponents(trace, {"N": place}).calls[0].bytes_moved
        assert written == 8 * batch - sympy.floor(100 * sympy.Integer(2) ** (-batch * length))


#: Layers of Mamba, whose prompts go token by token, and of attention in turn.
_HYBRID = {
    "model_type": "jamba", "torch_dtype": "float32",
    "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 24, "vocab_size": 97, "attn_layer_period": 2, "attn_layer_offset": 1,
    "expert_layer_period": 8, "expert_layer_offset": 7, "mamba_d_state": 4, "mamba_dt_rank": 2,
    "num_experts": 2, "num_experts_per_tok": 1, "pad_token_id": 0,
}  # fmt: skip


def test_a_hybrids_token_and_cache_are_formulas_though_its_prompt_is_a_loop(monkeypatch):
    """Prompts of a few lengths are run once for both."""
    lengths, run, subject = [], Prompts._sample, hub_subject(_HYBRID, "hybrid")

    def noted(self, least, most):
        with torch.device("meta"):
            lengths.append(sum(1 for _ in self.subject.build().modules()))
        return run(self, least, most)

    monkeypatch.setattr(prompts, "_SHORTEST", 64)
    monkeypatch.setattr(Prompts, "_sample", noted)
    report = model_report(subject, ["decode"], {"B": 2, "N": 24})
    assert len(lengths) == len(set(lengths)) >= 1
    assert report.summary["phases"]["decode"]["method"] == "symbolic"
    forms = {row.quantity: row.expression for row in report.records if row.part == "total"}
    for sizes in ({"B": 3, "N": 33}, {"B": 5, "N": 61}):
        with torch.no_grad():
            result = subject.build().eval()(**subject.example(sizes, "cpu"), use_cache=True)
        layers = tensors_by_layer(cache_in(result, "hybrid")[1])
        real = totals(record(subject.target("decode"), sizes, training=False, real=True), "decode")
        real["cache_bytes"] = sum(x.nbytes for layer in layers for x in layer)
        at = {name: sympy.Integer(size) for name, size in {**sizes, "L": 4}.items()}
        for quantity in ("matmul_flops", "flops", "bytes_moved", "peak_bytes", "cache_bytes"):
            assert sympy.sympify(forms[quantity], at) == real[quantity], quantity


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen3_next", "mamba2"])
def test_a_prompt_is_run_once_and_each_token_starts_from_what_it_left(monkeypatch, model_type):
    """A token changes the cache in its place; runs after it count the same, as on a fresh model."""
    ran, prompt = [], WholeModel.prompt

    def noted(self, model, sizes):
        ran.append(sizes)
        return prompt(self, model, sizes)

    monkeypatch.setattr(WholeModel, "prompt", noted)
    for subject in (small(model_type), engine_subject(small(model_type))):
        ran.clear()
        first, second = (counted(subject, {"B": 2, "N": 9}, "decode") for _ in range(2))
        assert len(ran) == 1
        assert first.calls == second.calls
        real = record(subject.target("decode"), {"B": 2, "N": 9}, training=False, real=True)
        assert totals(first, "decode") == totals(real, "decode")
