"""What the answer of one view says of another, against a run of that one."""

import re

import pytest

from attnprof.models.engine import difference, engine_subject
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.record import ModelRecord
from attnprof.render.formats import render
from attnprof.trace.events import totals
from attnprof.trace.solve.count import counted
from tests.models.test_engine import CASES, TINY
from tests.models.test_engine_recurrence import SIZES
from tests.models.test_engine_recurrence import CASES as RECURRENT

pytest.importorskip("transformers")

_LONG = {"max_position_embeddings": 4096}


def traced(model_type, view, phase, tokens):
    fields = {**TINY, **CASES[model_type]} if model_type in CASES else {
        **SIZES, **RECURRENT[model_type]
    }  # fmt: skip
    subject = hub_subject({**fields, **_LONG, "model_type": model_type}, "tiny")
    subject = subject if view == "torch" else engine_subject(subject, view)
    assert subject.view == view
    sizes = {"B": 2, "N": tokens}
    return subject, counted(subject.target(phase), sizes, phase, held=False)[0]


def told(model_type, view, other, phase, tokens):
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
    ratio, truth = told(model_type, "engine", "torch", phase, tokens)
    assert ratio == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize(
    ("model_type", "phase"),
    [("llama", "train"), ("qwen3_next", "forward"), ("mamba2", "train"), ("minimax", "forward"),
     ("deepseek_v3", "decode"), ("deepseek_v3", "forward")],
)  # fmt: skip
def test_engine_and_definition_tell_each_others_flops(model_type, phase):
    for views in (("engine", "definition"), ("definition", "engine")):
        ratio, truth = told(model_type, *views, phase, 600)
        assert ratio == (pytest.approx(truth, rel=0.01) if ratio != 1 else pytest.approx(1, 0.1))


def test_the_definition_counts_each_pair_and_each_token_once():
    _, trace = traced("llama", "definition", "train", 50)
    heads, width, pairs = 4, 8, 2 * 3 * 50 * 51 // 2
    attention = [call for call in trace.calls if "fused_attention" in call.op]
    forward = heads * pairs * (4 * width + 4)
    backward = heads * pairs * (8 * width + 3) + 2 * 3 * 2 * 50 * heads * width
    assert sum(sum(call.counts.get(kind, 0) for kind in (
        "multiplications", "additions", "divisions", "exponentials", "other"
    )) for call in attention) == forward + backward  # fmt: skip


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
