"""The engine's view against real models: real masks, torch's counter, real caches; other views."""

import re
from functools import cache

import pytest
import torch

from attnprof.models.engine import difference, engine_subject, mixer_classes, notes
from attnprof.models.engine_cache import saved_flops
from attnprof.models.hub_config import class_of, configuration
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.record import ModelRecord
from attnprof.render.formats import render
from attnprof.trace.events import Trace, flops_of, totals
from attnprof.trace.solve.count import count
from tests.models.test_engine_recurrence import CASES as RECURRENT
from tests.models.tiny import GROUPS, LATENT, MOE, TINY, dispatched

#: Fields beside TINY by type.
CASES = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 30.0},
    "gemma3_text": {"sliding_window": 5, "num_hidden_layers": 7},
    "gpt_oss": {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, **MOE},
    "llama4_text": {
        "attention_chunk_size": 6, "num_local_experts": 1, "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40, "num_hidden_layers": 4,
    },
    "phi3": {},
    "cohere2": {"sliding_window": 4, "num_hidden_layers": 4},
    "olmo3": {"sliding_window": 6, "num_hidden_layers": 4},
    "starcoder2": {"sliding_window": 7},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "ministral": {"sliding_window": 5},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    **{name: {} for name in ("gemma", "glm4", "granite", "helium", "olmo2", "qwen2")},
    "deepseek_v3": {**LATENT, **GROUPS},
}  # fmt: skip
#: Tokens of a prompt; where layers see some of them alone, also of one that they see all of.
LENGTHS = [
    (model_type, tokens)
    for model_type, fields in CASES.items()
    for tokens in (4, 18)
    if tokens == 18 or {"sliding_window", "attention_chunk_size"} & fields.keys()
]
PAIRS = "test_pairs"
_SEEN = []


def _counting(_module, query, key, value, attention_mask=None, **_):
    """Note the FLOPs of two products on each entry that a real mask leaves; compute nothing."""
    batch, heads, queries, _ = query.shape
    mask = attention_mask[..., : key.shape[2]].expand(batch, heads, queries, key.shape[2])
    _SEEN.append(2 * (key.shape[-1] + value.shape[-1]) * int((mask == 0).sum()))
    return query.new_zeros(batch, queries, heads, value.shape[-1]), None


@cache
def real(model_type, batch, tokens, *, decodes):
    """FLOPs of attention by real masks and of all other products; and the prompt's cache."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(PAIRS, _counting)
    AttentionMaskInterface.register(PAIRS, eager_mask)
    config = configuration({**TINY, **CASES[model_type], "model_type": model_type}, "tiny")
    config._attn_implementation, config._experts_implementation = PAIRS, "eager"
    torch.manual_seed(0)
    model = class_of(config)(config).eval()
    model.config._attn_implementation = PAIRS
    rows, past = torch.randint(3, 90, (batch, tokens)), None
    with torch.no_grad():
        if decodes:
            past = model(rows[:, :-1], use_cache=True).past_key_values
            rows = rows[:, -1:]
        _SEEN.clear()
        counted, result = dispatched(model, rows, past_key_values=past, use_cache=True)
    return sum(_SEEN), counted, result.past_key_values


@cache
def subject_of(model_type):
    fields = {**TINY, **CASES[model_type], "model_type": model_type}
    return engine_subject(hub_subject(fields, "tiny"))


@cache
def engine_run(model_type, phase, batch, tokens) -> Trace:
    subject = subject_of(model_type)
    assert subject.view == "engine"
    return count(subject.target(phase), {"B": batch, "N": tokens}, phase, compare_real=False)


def products(calls):
    return sum(call.counts.get("matmul_flops", 0) for call in calls)


# runs of prompts and of a token after them are those of the next tests, too
@pytest.mark.parametrize("phase", ["forward", "decode"])
@pytest.mark.parametrize(("model_type", "tokens"), LENGTHS)
def test_products_are_those_of_real_masks_and_torchs_counter(model_type, phase, tokens):
    tokens += phase == "decode"
    of_pairs, others, _ = real(model_type, 2, tokens, decodes=phase == "decode")
    calls = engine_run(model_type, phase, 2, tokens).calls
    attention = [call for call in calls if "fused_attention" in call.op]
    if model_type == "deepseek_v3" and phase == "decode":  # absorbed
        model = subject_of(model_type).build()
        assert products(calls) == of_pairs + others - saved_flops(model, 2, tokens)
        return
    assert products(attention) == of_pairs
    assert products(calls) - products(attention) == others


@pytest.mark.parametrize(("model_type", "tokens"), LENGTHS)
def test_a_decoded_token_reads_the_cache_once_and_writes_one_row(model_type, tokens):
    batch, size = 2, 4
    before = real(model_type, batch, tokens, decodes=False)[2].layers
    calls = engine_run(model_type, "decode", batch, tokens + 1).calls
    assert not any(call.op == "cat" and call.shape[2:3] == (tokens + 1,) for call in calls)
    widths = [x.keys.shape[1] * (x.keys.shape[-1] + x.values.shape[-1]) for x in before]
    written = [call for call in calls if call.op == "copy_" and call.shape[2:3] == (1,)]
    assert sum(call.bytes_moved for call in written) >= 2 * batch * size * sum(widths)
    if model_type == "deepseek_v3":
        return
    for call, width, layer in zip(
        [call for call in calls if "fused_attention" in call.op], widths, before, strict=True
    ):
        chunk = 6 if model_type == "llama4_text" and layer.is_sliding else 10**9
        seen = min(layer.keys.shape[2], tokens % chunk) + 1
        query, out, sums = 4 * 8, 4 * 8, 4
        sinks = 4 if model_type == "gpt_oss" else 0
        assert call.bytes_moved == size * (batch * (width * seen + query + out + sums) + sinks)


@pytest.mark.parametrize(("model_type", "tokens"), LENGTHS)
def test_cache_bytes_are_those_of_the_cache_after_a_real_prompt(model_type, tokens):
    layers = real(model_type, 2, tokens, decodes=False)[2].layers
    held = sum(x.numel() * 4 for layer in layers for x in (layer.keys, layer.values))
    sizes = {"B": 2, "N": tokens}
    trace = count(subject_of(model_type).cache(), sizes, "forward", compare_real=False)
    floats = [call.takes for call in trace.calls if call.dtype == "float32"]
    assert sum(floats) == held


LEFT = [
    ("llama", {}, []),
    ("gpt_oss", {"num_local_experts": 4}, []),
    ("bert", {}, []),
    ("qwen3_next", {"num_experts": 4, "layer_types": ["linear_attention", "full_attention"]}, []),
    ("mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 1}, []),
    ("minimax", {"num_local_experts": 4}, []),
    ("mamba", {"state_size": 4}, []),
    ("xlstm", {"num_heads": 4, "num_blocks": 2}, ["xLSTMLayer"]),
    ("rwkv", {"attention_hidden_size": 32}, ["RwkvSelfAttention"]),
    ("longformer", {"attention_window": 8}, ["LongformerAttention"]),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "fields", "classes"), LEFT)
def test_modules_that_engines_have_no_kernel_for_are_named_by_their_class(
    model_type, fields, classes
):
    sizes = {**TINY, "num_key_value_heads": 4, "num_hidden_layers": 2}
    model = hub_subject({**sizes, **fields, "model_type": model_type}, "tiny").on_meta()
    assert mixer_classes(model)[1] == classes
    expected = [f"{name} is counted as torch runs it" for name in classes]
    lines = [line.partition(",")[0] for line in notes(model, *mixer_classes(model))]
    assert [line for line in lines if "as torch runs it" in line] == expected


_LONG = {"max_position_embeddings": 4096}


def traced(model_type, view, phase, tokens):
    fields = {**TINY, **(CASES | RECURRENT)[model_type], **_LONG}
    subject = hub_subject({**fields, "model_type": model_type}, "tiny")
    subject = subject if view == "torch" else engine_subject(subject, view)
    assert subject.view == view
    sizes = {"B": 2, "N": tokens}
    return subject, count(subject.target(phase), sizes, phase, compare_real=False)


def compared(model_type, view, other, phase, tokens):
    """The ratio of FLOPs that the view tells of another, and that of runs of both."""
    subject, trace = traced(model_type, view, phase, tokens)
    sentence = difference(subject, trace, phase, {"B": 2, "N": tokens})
    ratio = re.search(rf"--as {other} counts (?:about |at least )?([\d.]+)x", sentence)
    flops = totals(traced(model_type, other, phase, tokens)[1], phase)["flops"]
    return float(ratio[1]) if ratio else 1.0, flops / totals(trace, phase)["flops"]


@pytest.mark.parametrize(
    ("model_type", "phase", "tokens"),
    [
        ("mistral", "forward", 1000),  # windows, whose masks sdpa takes as a tensor
        ("gpt_oss", "forward", 1000),  # eager alone
        ("llama", "forward", 1000),  # a causal flag: nothing is hidden and computed
        ("deepseek_v3", "decode", 1000),  # latents
    ],
)
def test_the_engine_tells_how_many_more_flops_torch_counts(model_type, phase, tokens):
    ratio, truth = compared(model_type, "engine", "torch", phase, tokens)
    assert ratio == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize(
    ("model_type", "phase"),
    [("llama", "train"), ("qwen3_next", "forward"), ("mamba2", "train"), ("minimax", "forward"),
     ("deepseek_v3", "decode"), ("deepseek_v3", "forward")],
)  # fmt: skip
def test_engine_and_definition_tell_each_others_flops(model_type, phase):
    for views in (("engine", "definition"), ("definition", "engine")):
        ratio, truth = compared(model_type, *views, phase, 600)
        assert ratio == (pytest.approx(truth, rel=0.01) if ratio != 1 else pytest.approx(1, 0.1))


def test_the_definition_counts_each_pair_and_each_token_once():
    _, trace = traced("llama", "definition", "train", 50)
    heads, width, pairs = 4, 8, 2 * 3 * 50 * 51 // 2
    attention = [call for call in trace.calls if "fused_attention" in call.op]
    forward = heads * pairs * (4 * width + 4)
    backward = heads * pairs * (8 * width + 3) + 2 * 3 * 2 * 50 * heads * width
    assert flops_of(attention) == forward + backward


def test_a_report_tells_its_view_and_how_others_differ():
    fields = {**TINY, **CASES["gpt_oss"], **_LONG, "model_type": "gpt_oss"}
    for view, start in (("engine", "--as torch counts"), ("definition", "")):
        subject = engine_subject(hub_subject(fields, "tiny"), view)
        report = model_report(subject, ["forward"], {"B": 1, "N": 900}, limit_s=0.0)
        assert {row.view for row in report.of(ModelRecord)} == {view}
        sentence = report.summary["phases"]["forward"]["other_views"]
        assert sentence.startswith(start)
        shown = render(report, "table")
        assert sentence[:40] in shown
        assert ("by definition" in shown) == (view == "definition")
