"""Models of transformers by their configuration, held against the same model on real tensors."""

from dataclasses import replace
from functools import cache

import pytest
import sympy
import torch

from attnprof.errors import CannotRunError, NotFoundError, RequestError
from attnprof.models import ModelConfig, build
from attnprof.models.borders import on_symbols
from attnprof.models.hub_config import read_configuration
from attnprof.models.report import model_report
from attnprof.models.sources import config_subject, hub_subject, subject_of
from attnprof.models.whole import cache_in, tensors_by_layer
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count
from tests.models.tiny import check_formulas, dispatched, products, small

TYPES = (
    "bert", "gpt2", "t5", "llama", "gemma3_text", "mixtral", "mistral", "qwen3", "deepseek_v2",
    "mamba2", "gpt_oss",
)  # fmt: skip
_OTHERS = {
    "gpt2": {"n_layer": 2}, "t5": {"num_layers": 1, "num_hidden_layers": 1},
    "gemma3_text": {
        "num_hidden_layers": 3, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip
#: Those whose formulas are derived, which takes a while; a mixture's are in ``test_derived``.
FORMULAS = ("llama", "gemma3_text")


def subject(name, kernel="eager"):
    return small(name, kernel, **{"num_hidden_layers": 2, **_OTHERS.get(name, {})})


def tokens(subject, n):
    torch.manual_seed(0)
    return {name: torch.randint(96, (2, n)) for name in subject.inputs}


@cache
def report_of(name):
    """A model's report of its forward pass at 2 and 24, made once."""
    return model_report(subject(name), ["forward"], {"B": 2, "N": 24})


def total(report, quantity):
    rows = (row for row in report.records if row.part == "total")
    return next(row for row in rows if row.quantity == quantity)


def formula(record):
    return sympy.sympify(record.expression, {name: sympy.Symbol(name) for name in "BN"})


@pytest.mark.parametrize("name", TYPES)
def test_products_and_the_cache_are_those_of_the_real_model(name):
    made = subject(name)
    model, how = made.build().eval(), {} if name == "bert" else {"use_cache": True}
    for n in (19, 33):
        sizes = {"B": 2, "N": n}
        dispatched_flops, result = dispatched(model, **tokens(made, n), **how)
        ours = totals(count(made.target(), sizes, "forward"), "forward")
        if name != "gpt_oss":
            assert ours["matmul_flops"] == dispatched_flops + _of_experts(model, n)
        assert ours["parameters"] == model.num_parameters()
        for kept in [cache_in(result, name)[1]] if how else []:
            held = sum(x.nbytes for layer in tensors_by_layer(kept) for x in layer)
            copied = count(made.cache(), sizes, "forward")
            assert sum(call.takes for call in copied.calls) == held


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_what_is_counted_at_other_lengths(name):
    for n in (19, 33):
        check_formulas(report_of(name), subject(name), {"B": 2, "N": n}, without=("peak_bytes",))


def _of_experts(model, n):
    """Products of grouped rows, which torch's counter does not count: two for each expert seen."""
    experts = [m for m in model.modules() if getattr(m, "gate_up_proj", None) is not None]
    experts = [m for m in experts if isinstance(m.gate_up_proj, torch.nn.Parameter)]
    each = [2 * 2 * n * 2 * (m.gate_up_proj[0].numel() + m.down_proj[0].numel()) for m in experts]
    return sum(each)


def test_the_fused_kernel_computes_the_pairs_that_a_token_sees():
    eager, fused = (
        totals(count(subject("llama", kernel).target(), {"B": 2, "N": 33}, "forward"), "forward")
        for kernel in ("eager", "sdpa")
    )
    a_pair = 2 * 2 * 2 * 4 * 2 * 8  # layers, batch, products, heads, a multiplication and a sum
    assert eager["matmul_flops"] - fused["matmul_flops"] == a_pair * (33**2 - 33 * 34 // 2)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_cache_is_that_of_the_models_own_after_a_prompt(name):
    made = subject(name)
    model = made.build().eval()
    with torch.no_grad():
        result = model(**tokens(made, 24), use_cache=True)
    held = [sum(x.nbytes for x in layer) for layer in tensors_by_layer(cache_in(result, name)[1])]
    rows = [row for row in report_of(name).records if row.quantity == "cache_bytes"]
    assert sum(row.value for row in rows if row.part == "attention") == sum(held)
    whole = total(report_of(name), "cache_bytes")
    assert whole.value == formula(whole).subs({"B": 2, "N": 24}) == sum(held)


def test_parts_and_kinds_of_layers_add_up_to_the_whole():
    for quantity in ("flops", "matmul_flops", "parameters", "bytes_moved"):
        rows = [row for row in report_of("gemma3_text").records if row.quantity == quantity]
        whole = next(row for row in rows if row.part == "total")
        parts = [row for row in rows if row.part != "total"]
        assert sum(row.value for row in parts) == whole.value
        assert sympy.expand(sum(map(formula, parts))) == formula(whole)
    assert report_of("gemma3_text").summary["layers"] == {"sliding 16": 2, "full": 1}


def test_a_token_meets_two_of_four_experts():
    inside = 2 * 4 * 3 * 32 * 48
    report = model_report(subject("mixtral"), ["forward"], {"B": 2, "N": 24}, limit_s=0.0)
    summary = report.summary
    assert summary["parameters"] - summary["active_parameters"] == inside // 2


def test_attention_is_half_of_the_work_from_the_length_on_that_is_said():
    report = report_of("llama")
    flops = {}
    for row in report.records:
        if row.quantity == "flops":
            flops.setdefault(row.part, []).append(formula(row))
    length = report.summary["attention_half_seq_len"]
    shares = [
        sum(flops["attention"]).subs({"B": 1, "N": n}) / flops["total"][0].subs({"B": 1, "N": n})
        for n in (length - 1, length)
    ]
    assert shares[0] < sympy.Rational(1, 2) <= shares[1]


def test_the_formula_of_a_cache_with_windows_says_from_where_on_it_holds():
    domain = report_of("gemma3_text").summary["cache_domain"]  # 15 tokens before the latest, of 16
    assert "N >= 15" in domain


@pytest.mark.parametrize("name", FORMULAS)
def test_curves_over_length_pass_through_what_is_counted(name):
    report = report_of(name)
    curve, cache = report.summary["curves"]["shares"]["forward"], report.summary["curves"]["cache"]
    at = curve["seq_len"].index(24)
    for part, values in curve["parts"].items():
        rows = (r for r in report.records if (r.part, r.quantity) == (part, "flops"))
        assert values[at] == sum(row.value for row in rows)
    assert cache["bytes"][cache["seq_len"].index(24)] == total(report, "cache_bytes").value


def test_curves_are_of_the_one_input_that_is_asked_for():
    report = model_report(small("llama", num_hidden_layers=1), ["forward"], {"B": 1, "N": 24})
    curves = report.summary["curves"]
    curve, cache = curves["shares"]["forward"], curves["cache"]
    assert (curve["batch_size"], cache["batch_size"]) == (1, 1)
    at = curve["seq_len"].index(24)
    assert sum(x[at] for x in curve["parts"].values()) == total(report, "flops").value


def test_a_token_decoded_at_just_the_length_of_the_window_has_formulas():
    made = small("mistral", num_hidden_layers=6, sliding_window=16)
    report = model_report(made, ["decode"], {"B": 2, "N": 16})
    decode = report.summary["phases"]["decode"]
    assert decode["method"] == "symbolic"
    assert not any(condition.startswith("N =") for condition in decode["domain"])
    check_formulas(report, made, {"B": 3, "N": 40}, "decode", L=6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_a_decoded_token_is_what_the_real_model_does_with_its_cache(name):
    made = subject(name)
    model = made.build().eval()
    *source, last = tokens(made, 19).items()  # the source of two stacks is there in full
    before = {**dict(source), last[0]: last[1][:, :18]}
    with torch.no_grad():
        first = model(**before, use_cache=True)
    given = {"past_key_values": first.past_key_values, "use_cache": True}
    if name == "t5":
        given["encoder_outputs"] = (first.encoder_last_hidden_state,)
    token = {last[0]: torch.ones(2, 1, dtype=torch.int64)}
    assert products(made, {"B": 2, "N": 19}, "decode") == dispatched(model, **token, **given)[0]


def test_an_encoder_decoder_takes_as_many_tokens_as_it_gives_or_others():
    made = subject("t5").with_target_length()
    model, sizes = made.build().eval(), {"B": 2, "N": 19, "M": 7}
    source, target = torch.randint(96, (2, 19)), torch.randint(96, (2, 7))
    counted, _ = dispatched(model, input_ids=source, decoder_input_ids=target)
    assert products(made, sizes) == counted
    with torch.no_grad():
        first = model(input_ids=source, decoder_input_ids=target[:, :6], use_cache=True)
    given = {"past_key_values": first.past_key_values, "encoder_outputs": first[-1:]}
    counted, _ = dispatched(model, decoder_input_ids=target[:, 6:], **given)
    assert products(made, sizes, "decode") == counted
    with pytest.raises(RequestError, match="encoder-decoders"):
        subject("llama").with_target_length()


def test_presets_of_two_stacks_take_one_length():
    made = subject_of("003-standard")
    assert made.target().symbols == ("B", "N")
    assert made.with_target_length().target().symbols == ("B", "N", "M")


def test_a_token_of_our_own_two_stacks_is_decoded_after_the_encoder_has_run():
    small = ModelConfig(
        kind="encoder-decoder", d_model=8, num_heads=2, num_layers=2, num_decoder_layers=3,
        vocab_size=11, seq_len=40,
    )  # fmt: skip
    made, module = config_subject("small", small).with_target_length(), build(small).eval()
    sizes, token = {"B": 2, "N": 19, "M": 7}, torch.zeros(2, 1, dtype=torch.int64)
    with torch.no_grad():
        state = module.init_state(torch.randint(11, (2, 19)))
        for _ in range(6):
            module.step(token, state)
    assert products(made, sizes, "decode") == dispatched(module.step, token, state)[0]
    for one, target in ((made, 7), (config_subject("small", small), 19)):
        copied = count(one.cache(), sizes, "forward")
        held = 4 * 2 * 8 * 2 * (target + 19)  # keys and values of its tokens, and the source's
        assert sum(call.takes for call in copied.calls) == 3 * held


def test_a_training_step_holds_weights_gradients_states_and_activations():
    report = model_report(subject("bert"), ["train", "decode"], {"B": 2, "N": 24}, limit_s=0.0)
    assert len(report.summary["notes"]) == 1  # that it has no cache is said once
    memory, entries = report.summary["memory"], report.summary["parameters"]
    assert memory["gradients"] == 4 * entries
    tensors = len(list(subject("bert").build().parameters()))
    assert memory["optimizer"] == 8 * entries + 4 * tensors  # two moments, and the steps so far
    assert memory["peak"] >= memory["parameters"] + memory["optimizer"] + memory["gradients"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"model_type": "lama"}', NotFoundError, "llama"),
        ('{"hidden_size": 8}', RequestError, "model_type"),
        ("[1, 2]", RequestError, "model_type"),
        ("{", RequestError, "no whole JSON"),
        ('{"model_type": "decision_transformer"}', RequestError, "input_ids"),
    ],
)
def test_what_is_no_model_says_what_would_be(tmp_path, text, error, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(error, match=message):
        hub_subject(read_configuration(tmp_path), "given")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_longer_prompts_than_a_table_of_positions_has_are_refused_with_its_length(name):
    with pytest.raises(RequestError, match="at most 256 tokens"):
        model_report(subject(name), ["forward", "decode"], {"B": 2, "N": 257})


@pytest.mark.parametrize(
    ("kind", "name"),
    [("bert", "BertForMaskedLM"), ("bart", "BartForConditionalGeneration"),
     ("llama", "LlamaForCausalLM"), ("vit", "ViTForImageClassification"),
     ("whisper", "WhisperForConditionalGeneration"),
     ("qwen3_5", "Qwen3_5ForConditionalGeneration")],  # of two parts, and whole
)  # fmt: skip
def test_a_configuration_without_a_class_is_of_the_usual_one(kind, name):
    made = hub_subject({"model_type": kind}, kind)
    assert type(made.on_meta).__name__ == name


def test_a_model_without_a_cache_decodes_nothing():
    with pytest.raises(CannotRunError, match="no cache"):
        model_report(subject("bert"), ["decode"], {"B": 2, "N": 24})


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_a_prompt_keeps_the_logits_of_its_last_token_and_a_forward_pass_those_of_all(kind):
    sizes, model = {"B": 2, "N": 24}, subject(kind).build().eval()
    made, head = (
        model_report(subject(kind), ["prefill", "forward"], sizes, limit_s=0.0),
        2 * 32 * 96,
    )
    assert made.summary["logits"] == {"prefill": "last", "forward": "all"}
    for phase, kept in (("prefill", 1), ("forward", 0)):
        with torch.no_grad():
            logits = model(torch.zeros(2, 24, dtype=torch.int64), logits_to_keep=kept).logits
        rows = {(r.part, r.quantity): r.value for r in made.records if r.phase == phase}
        assert rows["head", "matmul_flops"] == head * logits.shape[0] * logits.shape[1]


def test_logits_of_a_prompt_are_chosen_and_formulas_follow():
    for logits, tokens in (("last", 1), ("all", sympy.Symbol("N"))):
        target = replace(subject("llama"), logits=logits).target()
        calls = on_symbols(target, "forward", {"B": 2, "N": 24}).trace.calls
        head = next(call for call in calls if call.module.endswith("lm_head") and call.counts)
        flops = sympy.sympify(
            str(head.counts["matmul_flops"]), {"B": sympy.Symbol("B"), "N": sympy.Symbol("N")}
        )
        assert flops == 2 * 32 * 96 * sympy.Symbol("B") * tokens


def test_a_model_that_gives_no_logits_of_a_last_token_says_so():
    report = model_report(subject("bert"), ["prefill"], {"B": 2, "N": 24}, limit_s=0.0)
    assert report.summary["logits"] == {}
    assert any("logits_to_keep" in note for note in report.summary["notes"])
