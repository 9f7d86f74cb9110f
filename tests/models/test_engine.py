"""The engine's view against real models: real masks, torch's counter, real caches; other views."""

import re
from functools import cache

import pytest
import torch

from attnprof.models.engine import difference, engine_subject, mixer_classes, notes
from attnprof.models.engine_cache import saved_flops
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.record import ModelRecord
from attnprof.render.formats import render
from attnprof.trace.events import flops_of, totals
from tests.models import tiny
from tests.models.tiny import FIELDS, TINY, counted, dispatched, small

TYPES = (
    "llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "qwen3", "qwen3_moe", "llama4_text",
    "phi3", "cohere2", "olmo3", "starcoder2", "mixtral", "ministral", "smollm3", "gemma", "glm4",
    "granite", "helium", "olmo2", "qwen2", "deepseek_v3",
)  # fmt: skip
#: Tokens of a prompt; where layers see some of them alone, also of one that they see all of.
LENGTHS = [
    (model_type, tokens)
    for model_type in TYPES
    for tokens in (4, 18)
    if tokens == 18 or {"sliding_window", "attention_chunk_size"} & FIELDS[model_type].keys()
]
PAIRS = "test_pairs"
_SEEN = []


def _counting(_module, query, key, value, attention_mask=None, **_):
    """Note the FLOPs of two products on each entry that a real mask leaves; compute nothing."""
    batch, heads, queries, _ = query.shape
    mask = attention_mask[..., : key.shape[2]].expand(batch, heads, queries, key.shape[2])
    _SEEN.append(2 * (key.shape[-1] + value.shape[-1]) * int((mask == 0).sum()))
    return query.new_zeros(batch, queries, heads, value.shape[-1]), None


def real(model_type, batch, tokens):
    """Of a prompt, then of a token after it: FLOPs of attention by real masks, of all other
    products; and the layers of the prompt's cache, before the token."""
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(PAIRS, _counting)
    AttentionMaskInterface.register(PAIRS, eager_mask)
    model = tiny.real(tiny.fields_of(model_type), PAIRS)
    rows, past, flops = torch.randint(3, 90, (batch, tokens + 1)), None, []
    for part in rows[:, :-1], rows[:, -1:]:
        _SEEN.clear()
        others, result = dispatched(model, part, past_key_values=past, use_cache=True)
        flops.append((sum(_SEEN), others))
        if past is None:
            past = result.past_key_values
            kept = [(x.keys, x.values, x.is_sliding) for x in past.layers]
    return flops, kept


@cache
def subject_of(model_type):
    subject = engine_subject(small(model_type))
    assert subject.view == "engine"
    return subject


def products(calls):
    return sum(call.counts.get("matmul_flops", 0) for call in calls)


@pytest.mark.parametrize(("model_type", "tokens"), LENGTHS)
def test_a_prompt_and_a_token_do_and_keep_what_the_real_model_does_and_keeps(model_type, tokens):
    """Products are those of real masks and torch's counter. A token reads the cache once."""
    batch, size = 2, 4
    flops, kept = real(model_type, batch, tokens)
    subject = subject_of(model_type)
    latent = model_type == "deepseek_v3"
    for phase, (of_pairs, others) in zip(("forward", "decode"), flops, strict=True):
        calls = counted(subject, {"B": batch, "N": tokens + (phase == "decode")}, phase).calls
        attention = [call for call in calls if "fused_attention" in call.op]
        if latent and phase == "decode":  # absorbed
            saved = saved_flops(subject.build(), batch, tokens + 1)
            assert products(calls) == of_pairs + others - saved
        else:
            assert products(attention) == of_pairs
            assert products(calls) - products(attention) == others
    assert not any(call.op == "cat" and call.shape[2:3] == (tokens + 1,) for call in calls)
    widths = [keys.shape[1] * (keys.shape[-1] + values.shape[-1]) for keys, values, _ in kept]
    written = [call for call in calls if call.op == "copy_" and call.shape[2:3] == (1,)]
    assert sum(call.bytes_moved for call in written) >= 2 * batch * size * sum(widths)
    layers = [] if latent else zip(attention, widths, kept, strict=True)
    for call, width, (keys, _, is_sliding) in layers:
        chunk = 6 if model_type == "llama4_text" and is_sliding else 10**9
        seen = min(keys.shape[2], tokens % chunk) + 1
        query, out, sums = 4 * 8, 4 * 8, 4
        sinks = 4 if model_type == "gpt_oss" else 0
        assert call.bytes_moved == size * (batch * (width * seen + query + out + sums) + sinks)
    copies = counted(subject, {"B": batch, "N": tokens}, "cache")
    floats = [call.takes for call in copies.calls if call.dtype == "float32"]
    assert sum(floats) == sum(x.numel() * size for keys, values, _ in kept for x in (keys, values))


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
    model = hub_subject({**sizes, **fields, "model_type": model_type}, "tiny").on_meta
    assert mixer_classes(model)[1] == classes
    expected = [f"{name} is counted as torch runs it" for name in classes]
    lines = [line.partition(",")[0] for line in notes(model, *mixer_classes(model))]
    assert [line for line in lines if "as torch runs it" in line] == expected


def test_a_cache_with_repeated_heads_of_keys_says_that_an_engine_has_them_once():
    fields = {"model_type": "falcon", "hidden_size": 32, "num_hidden_layers": 2, "num_kv_heads": 2}
    fields |= {"num_attention_heads": 4, "vocab_size": 96}
    for said in (True, False):
        subject = hub_subject({**fields, "new_decoder_architecture": said}, "tiny")
        notes = "; ".join(engine_subject(subject).notes)
        assert ("each of the 2 heads of keys and values 2 times" in notes) == said


@cache
def traced(model_type, view, phase, tokens):
    subject = small(model_type, max_position_embeddings=4096)
    subject = subject if view == "torch" else engine_subject(subject, view)
    assert subject.view == view
    return subject, counted(subject, {"B": 2, "N": tokens}, phase)


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
    usual = small("gpt_oss", max_position_embeddings=4096)
    for view, start in (("engine", "--as torch counts"), ("definition", "")):
        subject = engine_subject(usual, view)
        report = model_report(subject, ["forward"], {"B": 1, "N": 900}, limit_s=0.0)
        assert {row.view for row in report.of(ModelRecord)} == {view}
        sentence = report.summary["phases"]["forward"]["other_views"]
        assert sentence.startswith(start)
        shown = render(report, "table")
        assert sentence[:40] in shown
        assert ("by definition" in shown) == (view == "definition")
