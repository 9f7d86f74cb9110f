"""Our mechanisms in models of transformers and in our own, against the models themselves."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from sympy import sympify

import attnprof
from attnprof.crossovers.derived import rivals
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting
from attnprof.errors import CannotRunError, RequestError
from attnprof.models import ModelConfig, hub_swap
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject, subject_of
from attnprof.models.swap import swapped_config, swaps_of
from attnprof.models.whole import tensors_by_layer
from attnprof.trace.events import totals
from attnprof.trace.run.runs import record
from attnprof.trace.solve.count import count, counted
from attnprof.workload import Workload
from tests.models.tiny import dispatched, fields_of, products

#: Models without a head, which give their last rows: the class, and fields beside those of a type.
CONFIGS = {
    model_type: fields_of(model_type, architectures=[kind], **more)
    for model_type, kind, more in (
        ("bert", "BertModel", {}), ("gpt2", "GPT2Model", {}), ("llama", "LlamaModel", {}),
        ("gemma3_text", "Gemma3TextModel",
         {"num_hidden_layers": 3, "query_pre_attn_scalar": 3, "sliding_window": 64}),
        ("mistral", "MistralModel", {"sliding_window": 8}), ("bloom", "BloomModel", {}),
        ("vit", "ViTModel", {"image_size": 16, "patch_size": 4}), ("t5", "T5Model", {}),
        ("gpt_oss", "GptOssModel", {}), ("mamba2", "Mamba2Model", {}),
    )
}  # fmt: skip
CONFIGS["bart"] = {
    "model_type": "bart", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "vocab_size": 96, "architectures": ["BartModel"],
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def shown_once():
    """A model above runs once to show where its attention is, however often it is swapped."""
    look = hub_swap._attention_by_layer
    shown = cache(lambda name: look(hub_subject(CONFIGS[name], name, "eager")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hub_swap, "_attention_by_layer",
            lambda subject: shown(subject.name) if subject.name in CONFIGS else look(subject),
        )  # fmt: skip
        yield


def swapped(name, *swaps, tokens=24, **values):
    return hub_subject(CONFIGS[name], name, "eager", swaps_of(swaps, values), tokens)


def called(subject, n=24, weights=None):
    """A model of a subject on random input, with weights, and its last hidden rows."""
    torch.manual_seed(0)
    model = subject.build().eval()
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    torch.manual_seed(1)
    named = {
        key: torch.randn(x.shape) if x.is_floating_point() else torch.randint(96, x.shape)
        for key, x in subject.example({"B": 2, "N": n}, "cpu").items()
    }
    with torch.no_grad():
        return model, model(**named).last_hidden_state


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma3_text", "bart", "vit"])
def test_softmax_attention_of_ours_gives_what_the_model_gives(name):
    model, rows = called(hub_subject(CONFIGS[name], name, "eager"))
    _, ours = called(swapped(name, "standard"), weights=model.state_dict())
    torch.testing.assert_close(ours, rows)


@pytest.mark.parametrize("mechanism", ["linear", "taylor-efficient", "efficient", "he", "super"])
def test_a_swapped_model_runs_and_keeps_its_other_layers(mechanism):
    subject = swapped("gpt2", f"{mechanism}@1")
    assert list(subject.layer_types) == ["full", f"full ({mechanism})", "full"]
    model, rows = called(subject)
    assert rows.isfinite().all()
    kinds = [type(block.attn).__name__ for block in model.h]
    assert kinds[0] == kinds[2] == "GPT2Attention"


def test_a_model_too_large_to_run_on_real_tensors_is_swapped_too():
    fields = {**CONFIGS["llama"], "hidden_size": 4096, "intermediate_size": 14336}
    model = hub_subject(fields, "large", "eager", swaps_of(["taylor-direct"], {}), 24)
    assert set(model.layer_types) == {"full (taylor-direct)"}


@pytest.mark.parametrize(
    ("name", "causal", "mechanism"), [("bert", False, "linear"), ("llama", True, "taylor-direct")]
)
def test_products_of_a_swapped_model_are_those_of_its_parts(name, causal, mechanism):
    n = 40
    usual = hub_subject(CONFIGS[name], name, "eager")
    before, after = (
        totals(count(one.target(), {"B": 2, "N": n}, "forward"), "forward")["matmul_flops"]
        for one in (usual, swapped(name, f"{mechanism}@0,2"))
    )
    work = Workload(n, 4, 8, 2, causal=causal)
    core = attnprof.cost(mechanism, work, scope="core").total.matmul_flops
    eager = 2 * (2 * 2 * 4 * n * n * 8)  # scores and values, of all pairs
    assert after == before - 2 * eager + 2 * core


def test_torch_counts_the_products_of_a_swapped_model_as_we_do():
    subject = swapped("bert", "performer@odd", num_features=16)
    model, _ = called(subject)
    assert products(subject, {"B": 2, "N": 24}) == dispatched(model, torch.randint(96, (2, 24)))[0]


def test_a_mechanism_that_replaces_attention_brings_its_maps_unless_the_model_has_them():
    bert, gpt2 = (swapped(name, "efficient@0").build() for name in ("bert", "gpt2"))
    maps = {name for name, _ in bert.encoder.layer[0].attention.self.named_parameters()}
    assert maps == {"layer.q_proj.weight", "layer.q_proj.bias"}  # BertSelfOutput maps the rest
    assert "layer.o_proj.weight" in dict(gpt2.h[0].attn.named_parameters())


@pytest.mark.parametrize(
    ("name", "swaps"),
    [
        ("llama", ["linear@1"]),
        ("llama", ["taylor-efficient", "sparse@0"]),
        ("gpt2", ["performer@even", "efficient@1"]),
        ("gemma3_text", ["sliding@0", "neural@2"]),
        ("mistral", ["taylor-direct@odd"]),
        ("bloom", ["reformer@0", "sliding@1"]),
    ],
)
def test_a_swapped_layer_decodes_by_its_mechanisms_own_step(name, swaps):
    mechanisms = [swap.attention.mechanism for swap in swaps_of(swaps, {})]
    values = {"window": 5, "stride": 4, "num_buckets": 4}
    values = {key: x for key, x in values.items() if any(hasattr(m, key) for m in mechanisms)}
    subject = swapped(name, *swaps, **values)
    model = subject.build().eval()
    tokens, sizes = torch.randint(96, (2, 21)), {"B": 2, "N": 21}
    with torch.no_grad():
        whole = model(tokens).last_hidden_state[:, -1]
        prompt = model(tokens[:, :-1], use_cache=True).past_key_values
        held = [sum(x.nbytes for x in layer) for layer in tensors_by_layer(prompt)]
    counted, last = dispatched(model, tokens[:, -1:], past_key_values=prompt, use_cache=True)
    torch.testing.assert_close(last.last_hidden_state[:, 0], whole)
    assert products(subject, sizes, "decode") == counted
    copies = count(subject.cache(), {"B": 2, "N": 20}, "forward").calls
    assert sum(call.takes for call in copies) == sum(held)


def test_a_state_in_one_layer_does_not_grow_and_the_others_cache_does():
    fields = CONFIGS["llama"]
    made = hub_subject(fields, "hybrid", None, swaps_of(["linear@1"], {}), 512)
    report = model_report(made, ["decode"], {"B": 1, "N": 512})
    of_kind = {
        (row.layer_kind, row.part, row.quantity): row for row in report.records if row.expression
    }
    cache = of_kind["full (linear)", "attention", "cache_bytes"]
    assert (cache.expression, cache.value) == ("1152*B", 4 * 8 * 9 * 4)  # heads, d, dv + 1, bytes
    others = of_kind["full", "attention", "cache_bytes"]
    assert others.value == 2 * 2 * 2 * 8 * 512 * 4  # layers, k and v, heads, d, tokens, bytes
    assert of_kind["", "total", "cache_bytes"].value == cache.value + others.value
    core = attnprof.cost("linear", Workload(512, 4, 8, phase="decode"), scope="core").total
    maps = 2 * 32 * (32 + 16 + 16 + 32)
    products = of_kind["full (linear)", "attention", "matmul_flops"]
    assert products.value == core.matmul_flops + maps
    assert "N" not in products.expression


def test_a_sliding_window_keeps_as_many_tokens_as_it_shows():
    subject = swapped("llama", "sliding@1", window=4)
    for tokens in (3, 5, 20):
        held = count(subject.cache(), {"B": 1, "N": tokens}, "forward").calls
        swap = sum(call.takes for call in held if call.module == "layers.1")
        assert swap == 2 * 2 * 8 * 4 * min(tokens, 4)  # k and v, key heads, d, bytes


def test_a_mechanism_without_a_step_is_named_and_the_rest_is_told():
    made = swapped("llama", "sparse@0,2")
    with pytest.raises(CannotRunError, match="layers 0, 2: sparse needs a stride that does not"):
        made.target("decode")
    report = model_report(made, ["forward", "decode"], {"B": 1, "N": 24}, limit_s=0)
    assert {row.phase for row in report.records if row.quantity == "flops"} == {"forward"}
    cache = [row for row in report.records if row.quantity == "cache_bytes"]
    assert cache[-1].value == 2 * 2 * 8 * 24 * 4
    assert any("that of the other layers: layers 0, 2" in note for note in report.summary["notes"])
    alone = model_report(swapped("llama", "sparse"), ["forward"], {"B": 1, "N": 24}, limit_s=0)
    assert not [row for row in alone.records if row.quantity == "cache_bytes"]


def test_a_hybrid_costs_decodes_and_caches_of_each_layer_its_own():
    """Three layers of Gated DeltaNet and one of the model's: heads as wide as the model's are."""
    subject = hub_subject(
        {**CONFIGS["llama"], "num_hidden_layers": 4}, "hybrid", None,
        swaps_of(["gated-deltanet@pattern=3:1"], {"chunk": 16}), 40,
    )  # fmt: skip
    assert list(subject.layer_types) == [*["full (gated-deltanet)"] * 3, "full"]
    report = model_report(subject, ["forward", "decode"], {"B": 2, "N": 40}, limit_s=0)
    rows = {
        (row.phase, row.layer_kind, row.quantity): row.value
        for row in report.records if row.part == "attention"
    }  # fmt: skip
    spec = attnprof.registry.get("gated-deltanet", chunk=16)
    for phase in ("forward", "decode"):
        asked = Workload(40, 4, 8, 2, phase=phase, width=32)
        for quantity in ("matmul_flops", "flops", "parameters"):
            if (phase, quantity) == ("decode", "parameters"):
                continue
            ours = spec.cost(asked)
            expected = getattr(ours if quantity == "parameters" else ours.total, quantity)
            assert rows[phase, "full (gated-deltanet)", quantity] == 3 * expected
    kept = spec.cost(Workload(40, 4, 8, 2, phase="decode", width=32)).state_entries
    assert rows["decode", "full (gated-deltanet)", "cache_bytes"] == 3 * 4 * kept
    assert rows["decode", "full", "cache_bytes"] == 2 * 2 * 2 * 8 * 40 * 4


def test_attention_that_asks_no_registry_stays_causal():
    model, _ = called(swapped("bloom", "standard"))
    tokens = torch.randint(96, (1, 9))
    with torch.no_grad():
        rows, others = (model(x).last_hidden_state for x in (tokens, tokens[:, :5]))
    torch.testing.assert_close(rows[:, :5], others)


def test_what_a_window_counts_is_said_where_both_ways_to_count_meet():
    notes = subject_of("001-lm-dot", swaps=swaps_of(["longformer@0"], {"window": 16})).notes
    assert any("window=16 is 16 tokens a side; sliding_window of a" in note for note in notes)
    assert not subject_of("001-lm-dot", swaps=swaps_of(["linear@0"], {})).notes


@pytest.mark.parametrize(
    ("name", "swap", "reason"),
    [
        ("gpt2", "linformer", r"layer 0 \(full\): linformer mixes all tokens"),
        ("llama", "efficient@1", "layer 1 .*efficient has no grouped key and value heads$"),
        ("t5", "linear", "adds a bias by position to the scores"),
        ("gpt_oss", "linear", "has sinks among the scores"),
        ("mamba2", "linear", "no attention to its own input"),
        ("bert", "linear@7", "the layers are 0 to 2, not 7"),
        ("bert", "linear@some", r"no such layers; type NAME .* \(full\)"),
        ("bert", "linear@", "type NAME for all layers"),
        ("bert", "linear@pattern=3", "layers with and without it: pattern=3:1"),
        ("bert", "lineal", "did you mean"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(name, swap, reason):
    with pytest.raises(RequestError, match=reason):
        swapped(name, swap)


@pytest.mark.parametrize("index", ["lent", "shared"])
@pytest.mark.parametrize("name", ["dsa", "topk"])
def test_in_a_model_no_layer_takes_the_picks_of_another(name, index):
    says = rf"{name}: .*index=own; .*{name}@index=lent\+{name}@index=shared"
    with pytest.raises(RequestError, match=says):
        swaps_of([name], {"index": index})
    assert swaps_of([name], {"index": "own"})


@pytest.mark.parametrize("mechanism", ["nsa", "topk"])
def test_a_replaced_layer_has_as_many_heads_of_keys_as_the_models(mechanism):
    subject = swapped("llama", f"{mechanism}@1")
    sizes = subject.build().layers[1].self_attn.layer.sizes
    assert (sizes.num_heads, sizes.num_kv_heads) == (4, 2)


def test_layers_are_named_by_number_range_parity_and_kind():
    kinds = ["a", "a", "b", "a", "b", "b"]
    layers = {
        "linear": [0, 1, 2, 3, 4, 5], "linear@0,4": [0, 4], "linear@1-3": [1, 2, 3],
        "linear@even": [0, 2, 4], "linear@odd": [1, 3, 5], "linear@b": [2, 4, 5],
        "linear@pattern=3:1": [0, 1, 2, 4, 5], "linear@pattern=1:2": [0, 3],
    }  # fmt: skip
    assert {text: swaps_of([text], {})[0].chosen(kinds) for text in layers} == layers


def test_our_own_models_take_mechanisms_by_layer_too():
    config = ModelConfig(kind="encoder-decoder", num_layers=3, num_decoder_layers=2)
    hybrid = swapped_config(config, swaps_of(["linear@0", "longformer@decoder"], {"window": "8"}))
    assert [one.name for one in hybrid.attention] == ["linear", "standard", "standard"]
    assert [one.table() for one in hybrid.decoder_attention] == [
        {"name": "longformer", "window": 8}
    ] * 2


def test_the_name_of_a_model_tells_what_is_swapped():
    subject = subject_of("001-lm-dot", swaps=swaps_of(["linear@odd", "she@0"], {}))
    assert subject.name == "001-lm-dot with linear@odd, she@0"


def test_parameters_without_a_swap_are_refused():
    with pytest.raises(RequestError, match="--set is for the mechanisms of --swap"):
        swaps_of([], {"window": "8"})


def test_a_whole_model_gets_cheaper_from_the_length_that_its_runs_show():
    config = ModelConfig(
        kind="encoder", d_model=16, num_heads=2, num_layers=1, vocab_size=11, seq_len=4096,
        positions="none", num_classes=3,
    ).to_toml()  # fmt: skip
    with TemporaryDirectory() as folder:
        file = Path(folder, "small.toml")
        file.write_text(config, encoding="utf-8")
        direct, efficient, work = rivals(
            str(file), ["taylor-direct", "taylor-efficient"], {}, "forward", 2
        )
        report = crossover_report(
            Meeting(direct, efficient, work, "model"), [work.head_dim], ["derived"], ["flops"],
            environment={},
        )  # fmt: skip
        at = report.records[0].first_seq_len
        for n, is_cheaper in ((at - 1, True), (at, False)):
            ours, theirs = (
                totals(count(one, {"B": 2, "N": n}, "forward"), "forward")["flops"]
                for one in (direct, efficient)
            )
            assert (ours < theirs) == is_cheaper


def test_one_name_is_compared_with_the_model_as_it_is():
    original, linear, work = rivals("001-lm-dot", ["linear"], {}, "forward", 1)
    assert (original.name, linear.name, work.num_heads) == ("original", "linear", 8)
    with pytest.raises(RequestError, match="two mechanisms in a model"):
        rivals("001-lm-dot", ["linear", "linear"], {}, "forward", 1)
    _, first, _ = rivals("001-lm-dot", ["linear@ 0"], {}, "forward", 1)
    assert [type(x.attention.spec).name for x in first.make({}).body.layers[:2]] == [
        "linear", "standard",
    ]  # fmt: skip
    with pytest.raises(RequestError, match="inputs of one size"):
        rivals("004-imagenet-ti-standard", ["linear"], {}, "forward", 1)


def test_a_sliding_window_is_that_mechanism():
    values = {"window": 5}
    assert swaps_of(["sliding@even"], values) == swaps_of(["sliding-window@even"], values)


@pytest.mark.parametrize(
    ("swap", "phase", "lengths", "layers"),
    [("sliding@even", "train", (192, 320), (1, 1)),
     ("taylor-efficient@1", "forward", (130, 200), (8, 10))],
)  # fmt: skip
def test_formulas_of_a_swapped_model_are_what_runs_of_every_turn_count(
    swap, phase, lengths, layers
):
    settings = {"window": 16} if swap == "sliding@even" else {}

    def model(number):
        fields = {**CONFIGS["llama"], "num_hidden_layers": number}
        return hub_subject(fields, "loops", None, swaps_of([swap], settings), lengths[0])

    report = model_report(model(layers[0]), [phase], {"B": 2, "N": lengths[0]})
    expressions = {row.quantity: row.expression for row in report.records if row.part == "total"}
    assert report.summary["phases"][phase]["method"] == "symbolic"
    rows = [row for row in report.records if row.quantity == "flops"]
    assert {row.part for row in rows} >= {"attention", "mlp", "total"}
    at = {"B": 2, "N": lengths[0], "L": layers[0]}
    assert ("L" in report.summary["at"]) == (swap != "sliding@even")
    assert all(sympify(row.expression, at) == row.value for row in rows)
    for length, number in zip(lengths, layers, strict=True):
        sizes = {"B": 2, "N": length}
        run = record(model(number).target(phase), sizes, training=phase == "train")
        ran = totals(run, phase)
        for name in ("flops", "matmul_flops", "bytes_moved", "peak_bytes", "parameters"):
            assert sympify(expressions[name], {**sizes, "L": number}) == ran[name], (name, length)


def test_very_many_turns_are_told_by_those_that_are_alike(monkeypatch):
    fields = CONFIGS["llama"]
    made = hub_subject(fields, "turns", None, swaps_of(["sliding"], {"window": 16}), 512)
    target, sizes = made.target("train"), {"B": 2, "N": 210}
    every = record(target, sizes, training=True)
    monkeypatch.setattr("attnprof.trace.solve.count._MOST_IN_LOOPS", 100)
    once, _ = counted(target, sizes, "train", compare_real=False)
    assert len(once.calls) < len(every.calls)
    assert totals(once, "train") == totals(every, "train")
