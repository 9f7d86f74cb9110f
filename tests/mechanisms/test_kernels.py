"""Linear attention and Performer against loops, softmax, their own scan and torch's counts."""

import math
from functools import partial

import pytest
import torch

import attnprof
from attnprof import Workload
from attnprof.blocks.kernel_attention import kernel_attention
from tests.mechanisms.checks import close, dot, drawn, mixed

KINDS = [
    ("linear", {}),
    ("performer", {"num_features": 6}),
    ("performer", {"num_features": 6, "features": "elu"}),
]
SHAPES = [(1, 1, 5, 3), (3, 2, 7, 4), (2, 1, 1, 2)]


def features(name, params, x, projection):
    """φ(x) as the definitions say, one number at a time."""
    d = len(x)
    if name == "linear":
        return [v + 1 if v > 0 else math.exp(v) for v in x]
    m = projection.shape[1]
    z = [sum(x[c] * float(projection[c, r]) for c in range(d)) for r in range(m)]
    if params.get("features") == "elu":
        return [v + 1 if v > 0 else math.exp(v) for v in z]
    norm = sum(v * v for v in x) / (2 * math.sqrt(d))
    return [math.exp(v - norm) + 1e-6 * math.exp(max(z) - norm) for v in z]


def loops(name, params, q, k, v, projection, causal):
    queries, keys = (
        [features(name, params, x.tolist(), projection) for x in rows] for rows in (q, k)
    )
    weights = [
        {j: dot(row, keys[j]) for j in range(i + 1 if causal else len(keys))}
        for i, row in enumerate(queries)
    ]
    return mixed(v, weights, floor=1e-6 if params.get("features") == "elu" else 0.0)


def features_of(d, m=6):
    return torch.randn(d, m, dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "params"), KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attend_is_the_definition(name, params, shape, causal):
    torch.manual_seed(1)
    q, k, v = drawn(shape)
    projection = None if name == "linear" else features_of(shape[-1])
    weights = None if projection is None else {"projection": projection}
    got = attnprof.attend(name, q, k, v, causal=causal, weights=weights, **params)
    for b in range(shape[0]):
        for h in range(shape[1]):
            expected = loops(name, params, q[b, h], k[b, h], v[b, h], projection, causal)
            close(got[b, h], expected, 1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("projects", "softmax"), [(False, False), (True, False), (True, True)])
def test_blocks_of_any_length_give_the_same_rows_and_numerical_gradients(projects, softmax, causal):
    torch.manual_seed(3)
    operands = [x.requires_grad_() for x in drawn((2, 7, 3))]
    projection = features_of(3, 5) if projects else None

    def run(*x, rows):
        return kernel_attention(*x, projection, softmax=softmax, causal=causal, rows=rows)

    whole = run(*operands, rows=7)
    for rows in (3, 1):
        torch.testing.assert_close(run(*operands, rows=rows), whole, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(partial(run, rows=3), operands)


def test_the_error_of_performer_falls_with_the_root_of_its_features():
    torch.manual_seed(4)
    q, k, v = (0.5 * x for x in drawn((2, 2, 32, 16)))
    exact = attnprof.attend("standard", q, k, v)

    def error(m):
        runs = [
            attnprof.attend("performer", q, k, v, seed=seed, num_features=m) for seed in range(24)
        ]
        return math.sqrt(sum(float((run - exact).square().mean()) for run in runs) / len(runs))

    small, large = error(32), error(32 * 64)
    assert 8 / 1.6 < small / large < 8 * 1.6


@pytest.mark.parametrize(("name", "params"), KINDS)
def test_no_row_moves_with_a_large_later_token_and_no_sample_with_another(name, params):
    torch.manual_seed(5)
    size = 30
    q, k, v = drawn((2, 2, 140, 8), dtype=torch.float32)
    before = attnprof.attend(name, q, k, v, causal=True, **params)
    full = attnprof.attend(name, q, k, v, **params)
    for x in (q, k, v):
        x[:, :, 100:] = size * torch.randn_like(x[:, :, 100:])
    after = attnprof.attend(name, q, k, v, causal=True, **params)
    assert torch.equal(before[:, :, :100], after[:, :, :100])
    assert after.isfinite().all()
    for x in (q, k, v):
        x[1] *= size
    moved = attnprof.attend(name, q, k, v, **params)
    alone = attnprof.attend(name, *(x[:1] for x in (q, k, v)), **params)
    torch.testing.assert_close(moved[:1], alone)
    assert not torch.equal(full, moved)


def test_large_keys_neither_overflow_nor_vanish():
    q, k, v = (20 * x for x in drawn((1, 1, 300, 64), dtype=torch.float32))
    for causal in (False, True):
        q.grad = k.grad = None
        y = attnprof.attend("performer", q.requires_grad_(), k.requires_grad_(), v, causal=causal)
        y.sum().backward()
        assert all(x.isfinite().all() for x in (y, q.grad, k.grad))


def test_features_are_orthogonal_frozen_and_drawn_again_with_a_seed():
    layer = attnprof.build("performer", 16, 2, num_features=20)
    core = layer.core
    gram = core.projection.T @ core.projection
    for block in (gram[:8, :8], gram[8:16, 8:16], gram[16:, 16:]):
        off = block - torch.diag(block.diagonal())
        assert off.abs().max() < 1e-5
    assert not core.projection.requires_grad
    assert "core.projection" in layer.state_dict()
    first = core.projection.clone()
    core.redraw(7)
    again = core.projection.clone()
    assert not torch.equal(first, again)
    core.redraw(8)
    core.redraw(7)
    assert torch.equal(core.projection, again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "params"), KINDS)
def test_fewer_digits_stay_near_float64(name, params, dtype, causal):
    torch.manual_seed(6)
    layer = attnprof.build(name, 16, 2, **params).to(dtype)
    x = torch.randn(2, 300, 16, dtype=dtype)
    got = layer(x, causal=causal)
    exact = layer.double()(x.double(), causal=causal)
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)


def test_linear_definition_by_hand():
    n, d = 5, 3
    table = attnprof.registry.get("linear").definition(Workload(n, 1, d), "core")
    features = 2 * n * d * 3
    state = d * d * (2 * n - 1) + d * (n - 1)
    output = n * d * (2 * d - 1) + n * (2 * d - 1) + n * d
    assert table.operations == features + state + output


def test_features_by_default_are_d_ln_d():
    for d in (1, 2, 16, 64):
        with torch.device("meta"):
            core = attnprof.build("performer", d, 1).core
        assert core.projection.shape == (d, max(1, math.floor(d * math.log(d))))
