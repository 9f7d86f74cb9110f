"""Linformer against loops over its definition and against what it becomes in the limit."""

import math

import pytest
import torch

import attnprof
from attnprof.blocks.softmax import ROWS, row_attention
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs, workload
from tests.oracles.aten import count_layer
from tests.oracles.memory import allocator_peak


def loops(q, k, v, e, f):
    """softmax(q (E k)ᵀ / sqrt d) F v, one number at a time."""
    n, d = q.shape
    p = e.shape[0]
    out = torch.zeros_like(q)
    for i in range(n):
        scores = []
        for r in range(p):
            short = [sum(float(e[r, j]) * float(k[j, c]) for j in range(n)) for c in range(d)]
            scores.append(sum(float(q[i, c]) * short[c] for c in range(d)) / math.sqrt(d))
        weights = [math.exp(score) for score in scores]
        total = sum(weights)
        for c in range(d):
            for r in range(p):
                value = sum(float(f[r, j]) * float(v[j, c]) for j in range(n))
                out[i, c] += weights[r] / total * value
    return out


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("b", "h", "n", "d", "p"), [(1, 1, 5, 3, 2), (3, 2, 7, 2, 4)])
def test_attend_is_the_definition(b, h, n, d, p, shared):
    torch.manual_seed(1)
    q, k, v = (torch.randn(b, h, n, d, dtype=torch.float64) for _ in range(3))
    e, f = (torch.randn(p, n, dtype=torch.float64) for _ in range(2))
    weights = {"key_map": e} if shared else {"key_map": e, "value_map": f}
    got = attnprof.attend("linformer", q, k, v, weights=weights, proj_len=p, shared=shared)
    for i in range(b):
        for j in range(h):
            expected = loops(q[i, j], k[i, j], v[i, j], e, e if shared else f)
            torch.testing.assert_close(got[i, j], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(2, 3, 17, 8), (1, 1, 4, 5)])
def test_the_identity_map_of_full_length_is_standard_attention(shape):
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    eye = torch.eye(shape[2], dtype=torch.float64)
    got = attnprof.attend(
        "linformer", q, k, v, weights={"key_map": eye}, proj_len=shape[2], shared=True
    )
    torch.testing.assert_close(got, attnprof.attend("standard", q, k, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_layer_is_its_projections_around_the_core(bias, shared):
    torch.manual_seed(2)
    layer = attnprof.build("linformer", 12, 3, 9, proj_len=4, bias=bias, shared=shared).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = (
        projection(x).view(2, 9, 3, 4).transpose(1, 2)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    heads = layer.core(q, k, v).transpose(1, 2).reshape(2, 9, 12)
    torch.testing.assert_close(layer(x), layer.o_proj(heads), rtol=0, atol=1e-12)


def test_shorter_inputs_use_the_first_columns_of_the_maps():
    layer = attnprof.build("linformer", 8, 2, 10, proj_len=3)
    short = attnprof.build("linformer", 8, 2, 6, proj_len=3)
    state = layer.state_dict()
    for name in ("core.key_map", "core.value_map"):
        state[name] = state[name][:, :6]
    short.load_state_dict(state)
    x = torch.randn(2, 6, 8)
    torch.testing.assert_close(layer(x), short(x))


def test_longer_inputs_are_refused_with_the_length_to_build_for():
    layer = attnprof.build("linformer", 8, 2, 6, proj_len=3)
    with pytest.raises(RequestError, match="at most 6 tokens and got 7"):
        layer(torch.randn(1, 7, 8))
    with pytest.raises(RequestError, match="later tokens"):
        layer(torch.randn(1, 6, 8), causal=True)


@pytest.mark.parametrize("n", [ROWS - 1, ROWS, 2 * ROWS, 2 * ROWS + 3])
def test_blocks_of_rows_are_the_rows_and_their_gradients(n):
    q = torch.randn(2, n, 3, 5, dtype=torch.float64).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(2, 3, 7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = torch.softmax(q @ k.transpose(2, 3), -1) @ v
    got = row_attention(q, k, v)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(row_attention(q, k, v), expected, rtol=0, atol=1e-12)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, (q, k, v), grad) for y in (got, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(2, 2 * ROWS + 3, 2, 4), (1, ROWS, 1, 3), (5, ROWS + 1, 2, 3)])
def test_several_blocks_cost_what_is_executed(shape, shared):
    layer, x = built("linformer", shape, shared=shared), inputs(shape)
    for phase in ("forward", "train"):
        seen = count_layer(layer, x, phase)
        table = attnprof.cost("linformer", workload(shape, phase=phase), proj_len=3, shared=shared)
        assert {kind: getattr(table.total, kind) for kind in seen.by_kind()} == seen.by_kind()
        assert table.total.bytes_moved == seen.bytes_moved
    with torch.no_grad():
        seen = allocator_peak(lambda: layer(x))
    peak = attnprof.cost("linformer", workload(shape), proj_len=3, shared=shared).peak()
    assert peak == pytest.approx(seen, abs=16, rel=0)


@pytest.mark.parametrize("name", ["linformer", "nystromformer"])
def test_automatic_mixed_precision_is_near_and_trains(name):
    shape = (2, 9, 2, 4)
    more = {"conv_kernel": 3} if name == "nystromformer" else {}
    layer, x = built(name, shape, **more), inputs(shape).requires_grad_()
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    assert (got - expected).abs().max() < 0.05 * expected.abs().max()
    for y in (expected, got.float()):
        grads = torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))
        assert all(grad.isfinite().all() and grad.dtype == torch.float32 for grad in grads)
