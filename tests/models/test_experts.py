"""Mixtures of experts: a decoded token reads the experts that it meets, and no others."""

from collections import Counter
from math import ceil

import pytest
import sympy

from attnprof.models import report as report_module
from attnprof.models.borders import on_symbols
from attnprof.models.engine import engine_subject
from attnprof.models.names import config_of
from attnprof.models.phases import run_of
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.trace.events import totals
from tests.models.tiny import FIELDS, SIZES, counted, fields_of, small

#: Widths as released, of two layers of which the last is a mixture.
_FEW = {"num_hidden_layers": 2, "dtype": "bfloat16", "tie_word_embeddings": False}
_LATENT = {
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_group": 8,
    "topk_group": 4, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
_HEADS = ("num_attention_heads", "num_key_value_heads")


def _config(kind, hidden, vocab, heads, inner, experts, chosen, /, **more):
    q, kv = heads if isinstance(heads, tuple) else (heads, heads)
    widths = {"intermediate_size": inner, "moe_intermediate_size": inner}
    numbers = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), experts)
    return {
        "model_type": kind, "hidden_size": hidden, "vocab_size": vocab, "num_attention_heads": q,
        "num_key_value_heads": kv, "num_experts_per_tok": chosen, **widths, **numbers, **_FEW,
        **more,
    }  # fmt: skip


CONFIGS = {
    "Mixtral-8x7B": _config("mixtral", 4096, 32000, (32, 8), 14336, 8, 2),
    "Qwen3-30B-A3B": _config("qwen3_moe", 2048, 151936, (32, 4), 768, 128, 8, head_dim=128),
    "gpt-oss-20b": _config("gpt_oss", 2880, 201088, (64, 8), 2880, 32, 4, head_dim=64),
    "DeepSeek-V3": _config(
        "deepseek_v3", 7168, 129280, 128, 2048, 256, 8, **_LATENT, n_shared_experts=1,
    ),
    "OLMoE-1B-7B": _config("olmoe", 2048, 50304, 16, 1024, 64, 8),
    "Qwen1.5-MoE-A2.7B": _config(
        "qwen2_moe", 2048, 151936, 16, 1408, 60, 4, shared_expert_intermediate_size=5632,
    ),
    "Phi-3.5-MoE": _config("phimoe", 4096, 32064, (32, 8), 6400, 16, 2),
    "granite-3.0-3b-a800m": _config("granitemoe", 1536, 49155, (24, 8), 512, 40, 8),
}  # fmt: skip


def _attention_and_row(name):
    """Weights of a layer's attention, and entries of a cached token, written out by hand."""
    config = CONFIGS[name]
    width, q, kv = (config[key] for key in ("hidden_size", *_HEADS))
    head_dim = config.get("head_dim", width // q)
    if name != "DeepSeek-V3":
        return 2 * width * (q + kv) * head_dim, 2 * kv * head_dim
    low, rank, rotary, inner = 1536, 512, 64, 128  # of latent attention
    weights = width * low + low * q * (inner + rotary) + width * (rank + rotary)
    return weights + rank * q * 2 * inner + q * inner * width, rank + rotary


def _network_and_head(config):
    """Weights that a token meets in feed-forward networks and the head, written out by hand."""
    width, inner = config["hidden_size"], config["moe_intermediate_size"]
    chosen, experts = config["num_experts_per_tok"], config["num_experts"]
    expert, router = 3 * width * inner, width * experts
    mixture = chosen * expert + router
    kind = config["model_type"]
    networks = 2 * mixture
    if kind == "qwen2_moe":
        networks += 2 * (3 * width * config["shared_expert_intermediate_size"] + width)
    if kind == "deepseek_v3":  # the first layer is dense; one expert is shared
        networks = 3 * width * inner + mixture + expert
    return networks, width * config["vocab_size"]


def decoded(fields, tokens):
    """The report of the last of so many tokens, without formulas."""
    return model_report(hub_subject(fields, "one"), ["decode"], {"B": 1, "N": tokens}, limit_s=0.0)


def _small(kind, **more):
    widths = {"hidden_size": 32, "head_dim": 8, "max_position_embeddings": 10**6, **more}
    return hub_subject(_config(kind, 32, 97, (4, 2), 48, 8, 2, **widths), kind)


def _expected(weights, rows):
    """Bytes of experts that rows meet of 8, each of which chooses 2: ever fewer are left out."""
    left = 1.0
    for _ in range(rows):
        left *= 6 / 8
    return weights * (1 - left)


@pytest.mark.parametrize(("kind", "batch"), [("mixtral", 1), ("mixtral", 4), ("qwen3_moe", 3)])
def test_more_sequences_meet_more_experts_as_even_routing_has_it(kind, batch):
    run = run_of(_small(kind), "decode", {"B": batch, "N": 24})
    calls = [call for call in run.trace.calls if call.op == "_grouped_mm"]
    rows = 2 * 2 * batch  # bytes of a row's number: each sequence's token chooses two experts
    for call, (inside, out) in zip(calls, [(32, 96), (48, 32)] * 2, strict=True):
        weights = 2 * 8 * inside * out
        assert call.bytes_moved == ceil(_expected(weights, batch)) + rows * (inside + out) + 4 * 8


def test_formulas_say_how_many_experts_a_batch_meets():
    names = {name: sympy.Symbol(name) for name in "BN"}
    one = _small("mixtral", num_hidden_layers=1)
    symbolic = on_symbols(one.target("decode"), "decode", {"B": 4, "N": 24})
    formula = sympy.sympify(str(symbolic.forms["decode"]["bytes_moved"]), names)
    assert "(3/4)**B" in str(formula)
    for sizes in ({"B": 4, "N": 24}, {"B": 7, "N": 40}, {"B": 300, "N": 5}):
        ours = totals(counted(one, sizes, "decode"), "decode")
        assert formula.subs(sizes) == ours["bytes_moved"]
    assert any("8*(1 - (1 - 2/8)**rows)" in note for note in symbolic.trace.notes)


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_experts_in_a_loop_are_read_as_often_as_rows_meet_them(batch):
    config = {"model_type": "jetmoe", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 97,
              "num_key_value_heads": 2, "kv_channels": 8, "intermediate_size": 48,
              "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
    run = run_of(hub_subject(config, "jetmoe"), "decode", {"B": batch, "N": 24})
    products = [call for call in run.trace.calls if call.module.endswith("mlp.input_linear")]
    moved = [call.bytes_moved for call in products if call.op == "mm"]
    assert len(moved) == 8
    assert sum(size == 0 for size in moved) == max(0, 8 - 2 * batch)
    weights, rows = 8 * 4 * 32 * 96, 2 * batch * 4 * (32 + 96)
    assert sum(moved) == pytest.approx(_expected(weights, batch) + rows, abs=8)
    assert any("8*(1 - (1 - 2/8)**rows)" in note for note in run.trace.notes)


def test_experts_that_are_rows_of_two_tables_rest_but_for_those_picked():
    """Doge: a token picks 4 of a layer's 16 experts, each a row of 32 in both tables."""
    picked = {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 4}
    report = model_report(small("doge", **picked), ["forward"], {"B": 1, "N": 8}, limit_s=0)
    layers, width = (fields_of("doge")[name] for name in ("num_hidden_layers", "hidden_size"))
    resting = layers * 2 * (16 - 4) * width
    assert report.summary["active_parameters"] == report.summary["parameters"] - resting


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa", "axk2"])
def test_keys_that_an_indexer_selects_are_no_routing(kind):
    """After more than 2**22 selected keys, 2048 of each of 4095 tokens, one is decoded."""
    fields = {**FIELDS["deepseek_v32"], "index_topk": 2048, "num_hidden_layers": 2}
    one = small(kind, **fields, max_position_embeddings=10**6)
    run = run_of(one, "decode", {"B": 1, "N": 4096})
    assert not run.target.mode.routed
    assert run.trace.calls


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoded_token_reads_the_experts_that_it_meets_and_the_cache_once(name, monkeypatch):
    # numbers alone: no run on real tensors
    monkeypatch.setattr(report_module, "with_forms", lambda run, *_: run)
    attention, kept = _attention_and_row(name)
    report = decoded(CONFIGS[name], 4096)
    moved = Counter()
    for row in report.records:
        if row.quantity == "bytes_moved":
            moved[row.part] += row.value
    traffic = report.summary["phases"]["decode"]["least_traffic"]
    networks, head = _network_and_head(CONFIGS[name])
    assert moved["mlp"] == pytest.approx(2 * networks, rel=0.02)
    assert moved["head"] == pytest.approx(2 * head, rel=0.02)
    assert traffic["weights"] == pytest.approx(2 * (2 * attention + networks + head), rel=0.005)
    tokens = 4096 + (128 if name == "gpt-oss-20b" else 4096)  # one of its layers has a window
    assert traffic["cache"] == pytest.approx(2 * kept * tokens, rel=0.001)
    if name in ("Mixtral-8x7B", "Qwen3-30B-A3B", "Phi-3.5-MoE"):
        # torch.cat reads the cache and writes it anew, attention reads it
        expected = 2 * (2 * (attention + 3 * 4096 * kept) + networks + head)
        assert moved["total"] == pytest.approx(expected, rel=0.02)


def test_weights_that_a_decoded_token_does_not_run_through_are_not_met():
    text = {**SIZES, "model_type": "llama"}
    picture = {**SIZES, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
    whole = {"model_type": "llava", "text_config": text, "vision_config": picture,
             "image_token_index": 99}  # fmt: skip
    met = [
        decoded(config, 64).summary["phases"]["decode"]["least_traffic"] for config in (text, whole)
    ]
    assert met[0] == met[1]
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32
    assert met[0]["weights"] == 4 * (3 * layer + 32 + 32 * 96)


def test_a_head_that_shares_the_table_of_embeddings_reads_it():
    fields = {**SIZES, "model_type": "qwen3"}
    shared, apart = (
        decoded({**fields, "tie_word_embeddings": tied}, 64).summary["phases"]["decode"]
        for tied in (True, False)
    )
    assert shared["least_traffic"] == apart["least_traffic"]


TOKENS, SIZE = 4096, 2
#: Bytes of a cached token of each layer, written out by hand, and the window of half of them.
CACHES = {
    "mixtral-8x7b": (32, 2 * 8 * 128, 0),
    "qwen3-30b-a3b": (48, 2 * 4 * 128, 0),
    "gpt-oss-20b": (24, 2 * 8 * 64, 128),
    "deepseek-v3": (61, 512 + 64, 0),
    "glm-4.5-air": (46, 2 * 8 * 128, 0),
    "minimax-m2": (62, 2 * 8 * 128, 0),
}


def by_hand(name, subject):
    """Bytes of the weights that one token meets, and of the cache that its layers see."""
    model = subject.on_meta
    weights = dict(model.named_parameters())
    experts = sum(x.numel() for key, x in weights.items() if ".experts." in key)
    table = model.get_input_embeddings().weight.numel()
    everything = sum(x.numel() for x in weights.values())
    met = everything - table - experts * (subject.experts - subject.chosen) // subject.experts
    layers, row, window = CACHES[name]
    seen = (TOKENS + min(TOKENS, window or TOKENS)) // 2
    return SIZE * met, SIZE * layers * row * seen


@pytest.mark.parametrize("name", CACHES)
def test_a_decoded_token_moves_active_weights_and_the_cache(name):
    subject = engine_subject(hub_subject({**config_of(name), "dtype": "bfloat16"}, name))
    calls = run_of(subject, "decode", {"B": 1, "N": TOKENS}).trace.part("decode")
    moved = sum(call.bytes_moved for call in calls)
    assert moved == pytest.approx(sum(by_hand(name, subject)), rel=0.02)
