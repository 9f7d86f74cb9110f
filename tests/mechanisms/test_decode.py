"""Decoding token by token against the causal forward pass."""

import pytest
import torch

import attnprof
from attnprof import registry
from tests.mechanisms.cases import SHAPES, built, inputs, names, params, workload
from tests.mechanisms.checks import check_steps, decoded
from tests.oracles.memory import allocator_peak


@pytest.mark.parametrize("shape", [*SHAPES, (2, 70, 2, 4)], ids=str)
@pytest.mark.parametrize("name", names(decode=True))
def test_steps_are_the_rows_of_the_causal_forward_pass(name, shape):
    check_steps(built(name, shape, torch.float64), inputs(shape, torch.float64), 1e-10)


@pytest.mark.parametrize("name", names(decode=True))
def test_a_token_keeps_its_shape(name):
    layer, x = built(name, SHAPES[1]), inputs(SHAPES[1])
    with torch.no_grad():
        flat, _ = layer.step(x[:, 0], layer.init_state(3))
        kept, _ = layer.step(x[:, :1], layer.init_state(3))
    assert flat.shape == (3, 16)
    assert kept.shape == (3, 1, 16)
    assert torch.equal(flat, kept[:, 0])


@pytest.mark.parametrize("name", names(decode=True, grouped_kv=True))
def test_grouped_key_heads_decode_too(name):
    shape = (3, 6, 4, 4)
    layer = built(name, shape, torch.float64, num_kv_heads=2)
    check_steps(layer, inputs(shape, torch.float64), 1e-10)


@pytest.mark.parametrize("shape", [(1, 40, 1, 16), (3, 33, 4, 8)], ids=str)
@pytest.mark.parametrize(
    ("name", "more"),
    [*((n, {}) for n in ("standard", "optimised", "efficient", "super")),
     ("super", {"per_head": True}), ("standard", {"num_kv_heads": 1})],
)  # fmt: skip
def test_the_peak_of_a_step_is_the_allocators(name, more, shape):
    layer, x = built(name, shape, **more), inputs(shape).transpose(0, 1).contiguous()
    state = layer.init_state(shape[0])
    sizes = {key: value for key, value in more.items() if key == "num_kv_heads"}
    asked = workload(shape, phase="decode", **sizes)
    spec = registry.get(name, **{key: v for key, v in more.items() if key not in sizes})
    with torch.no_grad():
        for token in x[:-1]:
            layer.step(token, state)
        seen = allocator_peak(lambda: layer.step(x[-1], state))
    assert spec.cost(asked).peak() == seen


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("name", ["standard", "sdpa", "optimised", "efficient", "super"])
def test_state_entries_are_what_the_caches_hold(name, shape):
    _, state = decoded(built(name, shape), inputs(shape))
    expected = attnprof.cost(name, workload(shape, phase="decode")).state_entries
    caches = {id(cache): cache for cache in vars(state).values()}.values()
    assert sum(cache.seen.numel() for cache in caches) == expected


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", names(decode=True))
def test_operations_of_all_steps_are_those_of_the_causal_forward_pass(name, heads):
    spec = registry.get(name, **params(name))
    shape = (2, 12, heads, 4)
    whole = spec.definition(workload(shape, causal=True)).operations
    steps = [
        spec.definition(workload((2, t, heads, 4), phase="decode")).operations
        for t in range(1, shape[1] + 1)
    ]
    assert sum(steps) == whole
