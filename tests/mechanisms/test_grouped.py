"""Grouped-query attention and its output gate against loops, and what each form counts."""

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.checks import close, drawn, loops
from tests.mechanisms.variants import forms

FORMS = forms("gqa")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("impl", FORMS)
def test_attend_is_the_definition(impl, kv_heads, causal):
    (q,), (k, v) = drawn((2, 4, 7, 3), 1), drawn((2, kv_heads, 7, 3), 2)
    got = attnprof.attend("gqa", q, k, v, causal=causal, impl=impl)
    close(got, loops(q, k, v, lambda i, j: not causal or j <= i))


@pytest.mark.parametrize("gate", ["none", "elementwise", "headwise"])
@pytest.mark.parametrize("impl", FORMS)
def test_the_gate_multiplies_what_enters_the_output_map(impl, gate):
    shape = (2, 6, 4, 3)
    layer = built("gqa", shape, torch.float64, num_kv_heads=2, gate=gate, impl=impl)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        q, k, v = (layer.heads(letter, x) for letter in "qkv")
        heads = loops(q, k, v, lambda i, j: j <= i).transpose(1, 2)  # (b, n, h, d)
        if gate == "elementwise":
            heads = heads * torch.sigmoid(layer.gate_proj(x)).view(heads.shape)
        elif gate == "headwise":
            heads = heads * torch.sigmoid(layer.gate_proj(x))[..., None]
        close(layer(x, causal=True), layer.o_proj(heads.flatten(2)))


def test_a_number_of_key_heads_is_the_workloads_or_the_parameter():
    one, other = Workload(9, 4, 2, num_kv_heads=2), Workload(9, 4, 2)
    fixed = registry.get("gqa", num_kv_heads=2)
    assert fixed.cost(other).total == fixed.cost(one).total == attnprof.cost("gqa", one).total
    with pytest.raises(RequestError, match="num_kv_heads=2"):
        fixed.cost(one.with_(num_kv_heads=4))
    with pytest.raises(RequestError, match="does not divide"):
        registry.get("gqa", num_kv_heads=3).cost(other)
