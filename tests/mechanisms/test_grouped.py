"""Grouped-query attention and its output gate against loops, and what each form counts."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.test_costs_by_aten import kinds
from tests.oracles.aten import count_core, count_training

GATES = ("none", "elementwise", "headwise")
FORMS = ("fused", "written")


def loops(q, k, v, causal):
    """One query head and token after the other; head i reads key head ⌊i / group⌋."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, i, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        seen = range(t + 1) if causal else range(k.shape[2])
        scores = [float(q[b, i, t] @ k[b, i // group, j]) / math.sqrt(q.shape[-1]) for j in seen]
        total = sum(map(math.exp, scores))
        for score, j in zip(scores, seen, strict=True):
            out[b, i, t] += math.exp(score) / total * v[b, i // group, j]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("impl", FORMS)
def test_attend_is_the_definition(impl, kv_heads, causal):
    q = torch.randn(2, 4, 7, 3, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_heads, 7, 3, dtype=torch.float64)
    got = attnprof.attend("gqa", q, k, v, causal=causal, impl=impl)
    torch.testing.assert_close(got, loops(q, k, v, causal), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("impl", FORMS)
def test_the_gate_multiplies_what_enters_the_output_map(impl, gate):
    shape = (2, 6, 4, 3)
    layer = built("gqa", shape, torch.float64, num_kv_heads=2, gate=gate, impl=impl)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        q, k, v = (layer.heads(letter, x) for letter in "qkv")
        heads = loops(q, k, v, causal=True).transpose(1, 2)  # (b, n, h, d)
        if gate == "elementwise":
            heads = heads * torch.sigmoid(layer.gate_proj(x)).view(heads.shape)
        elif gate == "headwise":
            heads = heads * torch.sigmoid(layer.gate_proj(x))[..., None]
        expected = layer.o_proj(heads.flatten(2))
        torch.testing.assert_close(layer(x, causal=True), expected, rtol=0, atol=1e-12)
        state = layer.init_state(2)
        for t, token in enumerate(x.unbind(1)):
            row, state = layer.step(token, state)
            torch.testing.assert_close(row, expected[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("impl", FORMS)
def test_forms_and_gates_count_as_executed(impl, gate):
    shape, params = (3, 5, 4, 2), {"gate": gate, "impl": impl, "num_kv_heads": 2}
    layer, x = built("gqa", shape, **params), inputs(shape)
    seen = {"forward": count_core(layer, (x,), "forward", causal=True)}
    for phase, counts in {**seen, **count_training(layer, (x,), causal=True)}.items():
        cost = attnprof.cost("gqa", workload(shape, causal=True, phase=phase), **params).total
        assert (phase, kinds(cost)) == (phase, counts.by_kind())
        assert (phase, cost.bytes_moved) == (phase, counts.bytes_moved)


@pytest.mark.parametrize("gate", GATES[1:])
def test_gradients_pass_the_gate(gate):
    shape = (1, 4, 2, 2)
    layer = built("gqa", shape, torch.float64, gate=gate, num_kv_heads=1)
    x = inputs(shape, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))


@pytest.mark.parametrize(("b", "n", "h", "g", "d"), [(1, 128, 48, 8, 128), (3, 77, 64, 8, 64)])
def test_products_are_the_known_formulas(b, n, h, g, d):
    asked, width = Workload(n, h, d, b, num_kv_heads=g), h * d
    core = 4 * b * h * n * n * d
    assert attnprof.cost("gqa", asked, "core", impl="written").matmul_flops == core
    assert attnprof.cost("gqa", asked, "core").matmul_flops == core
    projections, gate = 2 * b * n * width * d * (2 * h + 2 * g), 2 * b * n * width * h * d
    assert attnprof.cost("gqa", asked).matmul_flops == core + projections
    gated = attnprof.cost("gqa", asked, gate="elementwise")
    assert gated.matmul_flops == core + projections + gate
    assert gated.parameters == width * d * (2 * h + 2 * g) + width * h * d
    step = attnprof.cost("gqa", asked.with_(phase="decode"), "core")
    assert (step.matmul_flops, step.state_entries) == (4 * b * h * n * d, 2 * b * g * d * n)


def test_a_number_of_key_heads_is_the_workloads_or_the_parameter():
    one, other = Workload(9, 4, 2, num_kv_heads=2), Workload(9, 4, 2)
    fixed = registry.get("gqa", num_kv_heads=2)
    assert fixed.cost(other).total == fixed.cost(one).total == attnprof.cost("gqa", one).total
    with pytest.raises(RequestError, match="num_kv_heads=2"):
        fixed.cost(one.with_(num_kv_heads=4))
    with pytest.raises(RequestError, match="does not divide"):
        registry.get("gqa", num_kv_heads=3).cost(other)
