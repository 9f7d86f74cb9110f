"""Linear attention and Performer against loops, softmax, their own scan and torch's counts."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import Workload
from attnprof.blocks.kernel_attention import kernel_attention
from attnprof.errors import RequestError
from tests.mechanisms.checks import check_executed, check_steps, close, drawn, held
from tests.oracles.aten import count_layer

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
    n, width = v.shape
    floor = 1e-6 if params.get("features") == "elu" else 0.0
    queries = [features(name, params, row.tolist(), projection) for row in q]
    keys = [features(name, params, row.tolist(), projection) for row in k]
    out = torch.zeros(n, width, dtype=torch.float64)
    for i in range(n):
        visible = range(i + 1 if causal else n)
        weights = [sum(a * b for a, b in zip(queries[i], keys[j], strict=True)) for j in visible]
        for c in range(width):
            out[i, c] = sum(w * float(v[j, c]) for w, j in zip(weights, visible, strict=True))
        out[i] /= sum(weights) + floor
    return out


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
def test_blocks_of_any_length_give_the_same_rows_and_gradients(projects, softmax, causal):
    torch.manual_seed(2)
    q, k, v = (x.requires_grad_() for x in drawn((2, 11, 4)))
    projection = features_of(4) if projects else None
    results = []
    for length in (11, 4, 1):
        y = kernel_attention(q, k, v, projection, softmax=softmax, causal=causal, rows=length)
        results.append((y, *torch.autograd.grad(y.sin().sum(), (q, k, v))))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("projects", "softmax"), [(False, False), (True, False), (True, True)])
def test_gradients_are_numerically_right(projects, softmax, causal):
    torch.manual_seed(3)
    q, k, v = (x.requires_grad_() for x in drawn((2, 7, 3)))
    projection = features_of(3, 5) if projects else None

    def run(*x):
        return kernel_attention(*x, projection, softmax=softmax, causal=causal, rows=3)

    assert torch.autograd.gradcheck(run, (q, k, v))


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
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_no_row_moves_with_a_later_token_and_no_sample_with_another(name, params, size):
    torch.manual_seed(5)
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


@pytest.mark.parametrize(("name", "params"), KINDS)
def test_steps_are_the_causal_rows_from_a_state_that_does_not_grow(name, params):
    torch.manual_seed(7)
    layer = attnprof.build(name, 8, 2, **params).double()
    state = check_steps(layer, *drawn((3, 9, 8), 1))
    entries = state.sums.numel() + (0 if state.top is None else state.top.numel())
    workload = Workload(9, 2, 4, 3, phase="decode")
    assert attnprof.cost(name, workload, **params).state_entries == entries


def test_layers_with_other_features_give_the_same_compiled():
    layer = attnprof.build("performer", 8, 2, **KINDS[2][1])
    x = torch.randn(2, 5, 8)
    torch.compiler.reset()  # the layers compiled before this one count against a limit
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, causal=True), layer(x, causal=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "params"), KINDS)
@pytest.mark.parametrize("shape", [(2, 129, 2, 8), (1, 513, 3, 2)])
def test_products_are_those_torch_counts(name, params, causal, shape):
    b, n, h, d = shape
    with torch.device("meta"):
        layer = attnprof.build(name, h * d, h, **params)
    x = torch.empty(b, n, h * d, device="meta", requires_grad=True)
    for phase in ("forward", "train"):
        with FlopCounterMode(display=False) as counter:
            y = layer(x, causal=causal)
            if phase == "train":
                y.sum().backward()
        cost = attnprof.cost(name, Workload(n, h, d, b, causal=causal, phase=phase), **params)
        assert cost.matmul_flops == counter.get_total_flops()


@pytest.mark.parametrize(("dtype", "causal"), [("float32", False), ("bfloat16", True)])
@pytest.mark.parametrize(("name", "params"), KINDS)
def test_counts_and_peaks_across_blocks_are_those_of_the_run(name, params, causal, dtype):
    layer = attnprof.build(name, 24, 2, **params).to(getattr(torch, dtype))
    x = torch.randn(2, 519, 24, dtype=getattr(torch, dtype))
    workload = Workload(519, 2, 12, 2, causal=causal, dtype=dtype)
    counted = count_layer(layer, x, "train", causal=causal)
    for phase in ("forward", "train"):
        cost = attnprof.cost(name, workload.with_(phase=phase), **params)
        assert held(layer, x, phase, causal=causal) == cost.peak()
    check_executed(cost, counted)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["linear", "performer"])
@pytest.mark.parametrize("phase", ["forward", "train"])
def test_time_and_memory_grow_with_the_length_alone(name, causal, phase):
    def at(n):
        cost = attnprof.cost(name, Workload(n, 1, 64, causal=causal, phase=phase))
        return cost.flops, cost.peak()

    (flops, peak), (flops_2, peak_2) = at(2**16), at(2**17)
    assert 1.99 < flops_2 / flops < 2.01
    assert 1.8 < peak_2 / peak < 2.01


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


@pytest.mark.parametrize("params", [{"num_features": 0}, {"features": "relu"}])
def test_unusable_parameters_are_refused(params):
    with pytest.raises(RequestError, match=next(iter(params))):
        attnprof.build("performer", 8, 2, **params)
