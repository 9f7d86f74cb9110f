"""Sparse Transformer attention against a loop over its patterns."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError


def sees(i, j, stride, pattern, causal):
    if causal and j > i:
        return False
    if pattern == "strided":
        return abs(i - j) < stride or (i - j) % stride == 0
    return i // stride == j // stride or j % stride == stride - 1


def loops(q, k, v, *pattern):
    n, d = q.shape
    out = torch.zeros_like(v)
    for i in range(n):
        seen = [j for j in range(n) if sees(i, j, *pattern)]
        weights = [math.exp(float(q[i] @ k[j]) / math.sqrt(d)) for j in seen]
        for weight, j in zip(weights, seen, strict=True):
            out[i] += weight / sum(weights) * v[j]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize(
    ("shape", "stride"),
    [((3, 2, 37, 4), None), ((3, 2, 37, 4), 5), ((1, 1, 130, 3), 1), ((1, 1, 130, 3), 64),
     ((2, 1, 1, 4), 5)],
    ids=str,
)  # fmt: skip
def test_attend_is_the_definition(shape, stride, pattern, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    got = attnprof.attend("sparse", q, k, v, causal=causal, stride=stride, pattern=pattern)
    used = stride or math.ceil(math.sqrt(shape[2]))
    last = loops(q[-1, -1], k[-1, -1], v[-1, -1], used, pattern, causal)
    torch.testing.assert_close(got[-1, -1], last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_a_stride_over_everything_is_standard_attention(pattern, causal):
    q, k, v = (torch.randn(2, 2, 23, 4, dtype=torch.float64) for _ in range(3))
    got = attnprof.attend("sparse", q, k, v, causal=causal, stride=23, pattern=pattern)
    expected = attnprof.attend("standard", q, k, v, causal=causal)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize(("n", "stride"), [(1, 3), (9, 2), (64, 8), (61, 8), (50, 70), (40, 1)])
def test_the_definitions_pairs_are_counted_one_by_one(n, stride, pattern, causal):
    spec = registry.get("sparse", stride=stride, pattern=pattern)
    work = Workload(seq_len=n, num_heads=1, head_dim=4, causal=causal)
    pairs = [sees(i, j, stride, pattern, causal) for i in range(n) for j in range(n)]
    assert spec.pairs(work) == sum(pairs)
    if causal:
        steps = [spec.pairs(work.with_(seq_len=t, phase="decode")) for t in range(1, n + 1)]
        assert sum(steps) == sum(pairs)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_work_grows_like_the_length_times_its_root(pattern):
    spec = registry.get("sparse", pattern=pattern)

    def flops(n):
        return spec.cost(Workload(seq_len=n, num_heads=1, head_dim=16), "core").flops

    exponent = math.log(flops(1 << 20) / flops(1 << 14)) / math.log(64)
    assert exponent == pytest.approx(1.5, abs=0.03)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_gradients_are_those_of_the_function(pattern):
    layer = attnprof.build("sparse", 4, 2, stride=3, pattern=pattern).double()
    x = torch.randn(2, 8, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))
    assert torch.autograd.gradcheck(layer, (x,))


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_a_step_is_the_causal_forwards_row(pattern):
    layer = attnprof.build("sparse", 8, 2, stride=4, pattern=pattern).double()
    x = torch.randn(2, 19, 8, dtype=torch.float64)
    state = layer.init_state(2)
    rows = []
    with torch.no_grad():
        for t in range(19):
            row, state = layer.step(x[:, t], state)
            rows.append(row)
        expected = layer(x, causal=True)
    torch.testing.assert_close(torch.stack(rows, 1), expected, rtol=0, atol=1e-12)


def test_decoding_without_a_stride_is_refused_with_what_to_type():
    work = Workload(seq_len=9, num_heads=1, head_dim=4, phase="decode")
    with pytest.raises(RequestError, match="stride=128"):
        registry.get("sparse").cost(work)
    with pytest.raises(RequestError, match="strided, fixed"):
        registry.get("sparse", pattern="spiral")
