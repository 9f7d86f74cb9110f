"""Longformer against a loop over its definition, and what it must never do."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError


def sees(i, j, window, first, causal):
    if causal and j > i:
        return False
    return abs(i - j) <= window or i < first or j < first


def loops(q, k, v, window, first, causal):
    n, d = q.shape
    out = torch.zeros_like(v)
    for i in range(n):
        seen = [j for j in range(n) if sees(i, j, window, first, causal)]
        weights = [math.exp(float(q[i] @ k[j]) / math.sqrt(d)) for j in seen]
        for weight, j in zip(weights, seen, strict=True):
            out[i] += weight / sum(weights) * v[j]
    return out


#: Shapes, with windows and numbers of global tokens: within a block of 64 and beyond one.
CASES = [
    ((3, 2, 37, 4), 2, 0), ((3, 2, 37, 4), 70, 3), ((3, 2, 37, 4), 2, 60),
    ((1, 1, 130, 3), 2, 3), ((1, 1, 130, 3), 70, 0), ((1, 1, 130, 3), 2, 60),
    ((1, 2, 200, 5), 70, 60), ((2, 1, 1, 4), 2, 3), ((2, 1, 1, 4), 70, 0),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "window", "first"), CASES, ids=str)
def test_attend_is_the_definition(shape, window, first, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    last = loops(q[-1, -1], k[-1, -1], v[-1, -1], window, first, causal)
    for impl in ("blocks", "dense-mask"):
        params = {"window": window, "global_tokens": first, "impl": impl}
        got = attnprof.attend("longformer", q, k, v, causal=causal, **params)
        torch.testing.assert_close(got[-1, -1], last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [5, 64, 129])
def test_a_window_over_everything_is_standard_attention(n, causal):
    q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64) for _ in range(3))
    got = attnprof.attend("longformer", q, k, v, causal=causal, window=n)
    expected = attnprof.attend("standard", q, k, v, causal=causal)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize(("n", "window"), [(1, 3), (9, 2), (64, 30), (193, 64), (250, 70)])
def test_the_definitions_pairs_are_counted_one_by_one(n, window, first, causal):
    spec = registry.get("longformer", window=window, global_tokens=first)
    work = Workload(seq_len=n, num_heads=1, head_dim=4, causal=causal)
    pairs = sum(sees(i, j, window, first, causal) for i in range(n) for j in range(n))
    assert spec.pairs(work) == pairs


@pytest.mark.parametrize("first", [0, 3])
def test_gradients_are_those_of_the_function(first):
    layer = attnprof.build("longformer", 4, 2, window=2, global_tokens=first).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))
    assert torch.autograd.gradcheck(layer, (x,))


def test_memory_and_work_are_linear_in_the_length():
    spec = registry.get("longformer", window=64)

    def costs(n):
        table = spec.cost(Workload(seq_len=n, num_heads=1, head_dim=16, phase="train"))
        return table.flops, table.peak()

    small, large = costs(1 << 14), costs(1 << 20)
    assert large[0] / small[0] == pytest.approx(64, rel=0.02)
    assert large[1] / small[1] == pytest.approx(64, rel=0.02)


def test_the_dense_mask_is_quadratic():
    spec = registry.get("longformer", window=64, impl="dense-mask")
    work = Workload(seq_len=1 << 14, num_heads=1, head_dim=16)
    more = work.with_(seq_len=1 << 15)
    assert spec.cost(more).peak() / spec.cost(work).peak() == pytest.approx(4, rel=0.01)


def test_an_unknown_impl_or_window_is_refused():
    with pytest.raises(RequestError, match="blocks, dense-mask"):
        registry.get("longformer", impl="magic")
    with pytest.raises(RequestError, match="at least 1"):
        registry.get("longformer", window=0)
