"""A sliding window with kept tokens and sinks against loops, and what it counts and keeps."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.test_costs_by_aten import kinds
from tests.oracles.aten import count, count_core, count_training

FORMS = ("blocks", "dense-mask")


def sees(i, j, window, first, causal):
    """Whether row i looks at token j."""
    if causal:
        return j <= i and (i - j < window or j < first)
    return abs(i - j) < window or i < first or j < first


def loops(q, k, v, window, first, causal, sink=None):
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        seen = [j for j in range(k.shape[2]) if sees(i, j, window, first, causal)]
        row = q[b, h, i] / math.sqrt(q.shape[-1])
        weights = [math.exp(float(row @ k[b, h // group, j])) for j in seen]
        total = sum(weights) + (0 if sink is None else math.exp(float(sink[h])))
        for weight, j in zip(weights, seen, strict=True):
            out[b, h, i] += weight / total * v[b, h // group, j]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize(("n", "window", "first"), [(9, 1, 0), (9, 4, 2), (70, 3, 0), (70, 66, 5)])
def test_attend_is_the_definition_in_both_forms(n, window, first, sink, causal):
    q = torch.randn(1, 4, n, 3, dtype=torch.float64)
    k, v = torch.randn(2, 1, 2, n, 3, dtype=torch.float64)
    logits = torch.randn(4, dtype=torch.float64)
    expected = loops(q, k, v, window, first, causal, logits if sink else None)
    params = {"window": window, "first_tokens": first, "sink": sink}
    for impl in FORMS:
        got = attnprof.attend(
            "sliding-window", q, k, v, causal=causal, impl=impl, **params,
            weights={"sink": logits} if sink else None,
        )  # fmt: skip
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


MORE = [
    {"sink": True, "window": 3}, {"sink": True, "window": 2, "first_tokens": 2},
    {"sink": True, "window": 3, "impl": "dense-mask"}, {"window": 1}, {"window": 2, "sink": True,
     "num_kv_heads": 2}, {"window": 2, "value_head_dim": 3},
]  # fmt: skip


def split(more):
    sizes = {name: more[name] for name in more if name in ("num_kv_heads", "value_head_dim")}
    return sizes, {name: more[name] for name in more if name not in sizes}


@pytest.mark.parametrize("more", MORE, ids=str)
def test_every_phase_counts_as_executed(more):
    shape, (sizes, params) = (2, 7, 4, 2), split(more)
    layer, x = built("sliding-window", shape, **more), inputs(shape)
    for causal in (False, True):
        seen = {"forward": count_core(layer, (x,), "forward", causal=causal)}
        for phase, counts in {**seen, **count_training(layer, (x,), causal=causal)}.items():
            asked = workload(shape, causal=causal, phase=phase, **sizes)
            cost = attnprof.cost("sliding-window", asked, **params).total
            assert (causal, phase, kinds(cost)) == (causal, phase, counts.by_kind())
            assert (causal, phase, cost.bytes_moved) == (causal, phase, counts.bytes_moved)
    state = layer.init_state(2)
    for t, token in enumerate(x.transpose(0, 1).contiguous()):
        with torch.no_grad():
            counts = count(lambda token=token: layer.step(token, state))
        asked = workload(shape, phase="decode", **sizes).with_(seq_len=t + 1)
        table = attnprof.cost("sliding-window", asked, **params)
        assert (t, kinds(table.total)) == (t, counts.by_kind())
        held = state.keys.filled.numel() + state.values.filled.numel()
        assert (t, table.state_entries) == (t, held)


@pytest.mark.parametrize("more", MORE, ids=str)
def test_steps_are_rows_and_gradients_are_numerical_ones(more):
    shape = (2, 5, 4, 2)
    layer, x = built("sliding-window", shape, torch.float64, **more), inputs(shape, torch.float64)
    state = layer.init_state(2)
    with torch.no_grad():
        whole = layer(x, causal=True)
        for t, token in enumerate(x.unbind(1)):
            row, state = layer.step(token, state)
            torch.testing.assert_close(row, whole[:, t], rtol=0, atol=1e-12)
    names = list(dict(layer.named_parameters()))

    def run(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, True))

    values = [w.detach().clone().requires_grad_() for w in layer.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values), fast_mode=True)


@pytest.mark.parametrize("n", [3, 8, 9, 40])
def test_a_cache_holds_as_many_tokens_as_the_window_and_products_fill_the_band(n):
    spec = registry.get("sliding-window", window=8)
    asked = Workload(n, 6, 4, 2, num_kv_heads=3, causal=True)
    seen, full = min(n, 8), min(n, 8) * (min(n, 8) - 1) // 2
    band = spec.definition(asked, "core").matmul_flops
    assert band == 4 * 2 * 6 * 4 * (n * seen - full)
    step = spec.cost(asked.with_(causal=False, phase="decode"), "core")
    assert step.state_entries == 2 * 2 * 3 * 4 * seen
    assert step.matmul_flops == 4 * 2 * 6 * 4 * seen
    dense = registry.get("sliding-window", window=8, impl="dense-mask").cost(asked, "core")
    assert dense.matmul_flops == 4 * 2 * 6 * n * n * 4


def test_a_sink_costs_a_parameter_a_head_and_no_product():
    asked = Workload(40, 6, 4, causal=True)
    plain, sink = (attnprof.cost("sliding-window", asked, sink=s, window=8) for s in (False, True))
    assert sink.parameters - plain.parameters == 6
    assert sink.matmul_flops == plain.matmul_flops


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("phase", ["forward", "train"])
def test_memory_and_work_are_linear_in_the_length(phase, sink):
    spec = registry.get("sliding-window", window=64, sink=sink)
    small, large = (
        spec.cost(Workload(n, 4, 16, num_kv_heads=2, causal=True, phase=phase))
        for n in (1 << 14, 1 << 20)
    )
    assert large.flops / small.flops == pytest.approx(64, rel=0.02)
    assert large.peak() / small.peak() == pytest.approx(64, rel=0.02)


def test_a_window_of_w_is_longformers_of_w_less_one():
    q, k, v = torch.randn(3, 1, 2, 50, 4, dtype=torch.float64)
    ours = attnprof.attend("sliding-window", q, k, v, causal=True, window=7)
    theirs = attnprof.attend("longformer", q, k, v, causal=True, window=6)
    assert torch.equal(ours, theirs)


def test_it_is_the_attention_of_gpt_oss_with_its_sinks():
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    from transformers import GptOssConfig

    config = GptOssConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        sliding_window=5, num_hidden_layers=1, layer_types=["sliding_attention"],
        attn_implementation="eager",
    )  # fmt: skip
    theirs = modeling.GptOssAttention(config, 0)
    ours = attnprof.build("sliding-window", 32, 4, num_kv_heads=2, window=5, sink=True, bias=True)
    with torch.no_grad():
        theirs.sinks.normal_()
        ours.core.sink.copy_(theirs.sinks)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
        x = torch.randn(2, 17, 32)
        place = torch.arange(17)
        away = place[:, None] - place[None]
        mask = torch.zeros(17, 17).masked_fill((away < 0) | (away >= 5), -math.inf)
        turned = torch.ones(1, 17, 4), torch.zeros(1, 17, 4)  # no rotation
        expected, _ = theirs(x, turned, mask[None, None])
        torch.testing.assert_close(ours(x, causal=True), expected, rtol=0, atol=1e-5)
