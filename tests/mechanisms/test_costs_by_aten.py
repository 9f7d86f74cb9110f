"""Closed forms against what torch dispatches, operation by operation."""

import pytest
import torch

import attnprof
from attnprof import registry
from tests.mechanisms.cases import SHAPES, built, causals, inputs, names, params, workload
from tests.mechanisms.checks import check_executed, check_phases, executed, kinds
from tests.oracles.aten import count, count_layer


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", registry.names())
def test_flops_and_bytes_of_a_layer_are_those_dispatched(name, shape):
    check_phases(name, shape, params(name), causals=causals(name))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("name", names(attend=True))
def test_flops_of_a_core_are_those_dispatched(name, shape):
    layer = built(name, shape)
    b, n, h, d = shape
    q, k, v = (torch.randn(b, h, n, d) for _ in range(3))
    for causal, phase, counts in executed(layer.core, q, k, v, causals=causals(name)):
        work = workload(shape, causal=causal, phase=phase)
        cost = attnprof.cost(name, work, "core", **params(name)).total
        assert not counts.unknown
        assert (phase, causal, kinds(cost)) == (phase, causal, counts.by_kind())


@pytest.mark.parametrize("name", registry.names())
def test_the_other_bias_counts_as_executed(name):
    """Than the default, which the tests above have."""
    shape, bias = SHAPES[1], not registry.get(name, **params(name)).bias
    layer, x = built(name, shape, bias=bias), inputs(shape)
    counts = count_layer(layer, x, "train")
    cost = attnprof.cost(name, workload(shape, phase="train"), **params(name), bias=bias).total
    assert kinds(cost) == counts.by_kind()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 1), (3, 3)])
@pytest.mark.parametrize("name", names(grouped_kv=True))
def test_grouped_key_heads_count_as_executed(name, heads, kv_heads):
    check_phases(name, (3, 5, heads, 4), params(name), {"num_kv_heads": kv_heads})


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("name", names(cross=True))
def test_cross_attention_counts_as_executed(name, shape):
    layer = built(name, shape)
    context = torch.randn(shape[0], 9, shape[2] * shape[3], requires_grad=True)
    for phase in ("forward", "train"):
        counts = count_layer(layer, inputs(shape), phase, context=context)
        context.grad = None
        work = workload(shape, kv_seq_len=9, phase=phase)
        check_executed(attnprof.cost(name, work, **params(name)), counts, phase)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("name", names(decode=True))
def test_a_decoding_step_counts_as_executed(name, shape):
    layer, x = built(name, shape), inputs(shape)
    state = layer.init_state(shape[0])
    for t, token in enumerate(x.transpose(0, 1).contiguous()):
        with torch.no_grad():
            counts = count(lambda token=token: layer.step(token, state))
        work = workload(shape, phase="decode").with_(seq_len=t + 1)
        check_executed(attnprof.cost(name, work, **params(name)), counts, t)
