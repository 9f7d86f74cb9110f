"""Low-rank attention, Linformer and Nystromformer against loops over their definitions."""

import math

import pytest
import torch

import attnprof
from attnprof.blocks.gathered import ROWS as CONVOLUTION_ROWS
from attnprof.blocks.gathered import band_convolution
from attnprof.blocks.softmax import ROWS, row_attention
from attnprof.errors import RequestError
from attnprof.mechanisms.low_rank import inverse_product
from tests.mechanisms.cases import built, inputs, workload
from tests.mechanisms.checks import (
    check_executed,
    check_gradients,
    check_peak,
    close,
    drawn,
    loops,
)
from tests.oracles.aten import count_layer


# -- low-rank: U Vᵀ ---------------------------------------------------------------------------
def factorised(q, k, v, a, b):
    """U Vᵀ v with both factors normalised, one number at a time."""
    n, d = q.shape
    m, r = k.shape[0], a.shape[1]

    def score(x, w, i, s):
        return sum(float(x[i, c]) * float(w[c, s]) for c in range(d)) / math.sqrt(d)

    u = [[math.exp(score(q, a, i, s)) for s in range(r)] for i in range(n)]
    w = [[math.exp(score(k, b, j, s)) for s in range(r)] for j in range(m)]
    columns = [sum(w[j][s] for j in range(m)) for s in range(r)]
    out = torch.zeros(n, v.shape[1], dtype=v.dtype)
    rows = []
    for i in range(n):
        total = sum(u[i])
        row = [sum(u[i][s] / total * w[j][s] / columns[s] for s in range(r)) for j in range(m)]
        rows.append(sum(row))
        for c in range(v.shape[1]):
            out[i, c] = sum(row[j] * float(v[j, c]) for j in range(m))
    return out, rows


@pytest.mark.parametrize(("b", "h", "n", "m", "d", "r"), [(1, 1, 4, 4, 3, 2), (3, 2, 5, 7, 2, 3)])
def test_low_rank_is_the_definition_and_its_rows_sum_to_one(b, h, n, m, d, r):
    torch.manual_seed(1)
    (q,), (k, v), (a, w) = drawn((b, h, n, d), 1), drawn((b, h, m, d), 2), drawn((d, r), 2)
    got = attnprof.attend("low-rank", q, k, v, weights={"query_map": a, "key_map": w}, rank=r)
    for i in range(b):
        for j in range(h):
            expected, rows = factorised(q[i, j], k[i, j], v[i, j], a, w)
            close(got[i, j], expected, 1e-10)
            assert rows == pytest.approx([1.0] * n)


def test_the_weights_have_the_asked_rank():
    q, k = drawn((1, 1, 9, 6), 2)
    eye = torch.eye(9, 9, dtype=torch.float64)[None, None]
    columns = [attnprof.attend("low-rank", q, k, eye[..., i : i + 6], rank=3) for i in (0, 3)]
    weights = torch.cat([columns[0], columns[1][..., 3:]], -1)[0, 0]
    assert torch.linalg.matrix_rank(weights) == 3


def test_causal_low_rank_is_refused_with_the_reason():
    layer = attnprof.build("low-rank", 8, 2, rank=3)
    with pytest.raises(RequestError, match="over all tokens"):
        layer(torch.randn(1, 4, 8), causal=True)


# -- linformer: E K, F V ----------------------------------------------------------------------
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("b", "h", "n", "d", "p"), [(1, 1, 5, 3, 2), (3, 2, 7, 2, 4)])
def test_linformer_is_the_definition(b, h, n, d, p, shared):
    torch.manual_seed(1)
    (q, k, v), (e, f) = drawn((b, h, n, d)), drawn((p, n), 2)
    weights = {"key_map": e} if shared else {"key_map": e, "value_map": f}
    got = attnprof.attend("linformer", q, k, v, weights=weights, proj_len=p, shared=shared)
    close(got, loops(q, e @ k, (e if shared else f) @ v), 1e-10)


@pytest.mark.parametrize("shape", [(2, 3, 17, 8), (1, 1, 4, 5)])
def test_the_identity_map_of_full_length_is_standard_attention(shape):
    q, k, v = drawn(shape)
    eye = torch.eye(shape[2], dtype=torch.float64)
    got = attnprof.attend(
        "linformer", q, k, v, weights={"key_map": eye}, proj_len=shape[2], shared=True
    )
    close(got, attnprof.attend("standard", q, k, v))


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
    close(layer(x), layer.o_proj(heads))


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
    close(got, expected)
    with torch.no_grad():
        close(row_attention(q, k, v), expected)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, (q, k, v), grad) for y in (got, expected))
    close(ours, theirs)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(2, 2 * ROWS + 3, 2, 4), (1, ROWS, 1, 3), (5, ROWS + 1, 2, 3)])
def test_several_blocks_cost_what_is_executed(shape, shared):
    layer, x = built("linformer", shape, shared=shared), inputs(shape)
    for phase in ("forward", "train"):
        table = attnprof.cost("linformer", workload(shape, phase=phase), proj_len=3, shared=shared)
        check_executed(table, count_layer(layer, x, phase), phase)
    peak = attnprof.cost("linformer", workload(shape), proj_len=3, shared=shared)
    check_peak(peak, layer, x)


# -- nystromformer: landmarks -----------------------------------------------------------------
def softmax_rows(q, k):
    d = q.shape[1]
    rows = []
    for i in range(len(q)):
        weights = [
            math.exp(sum(float(q[i, c]) * float(k[j, c]) for c in range(d)) / math.sqrt(d))
            for j in range(len(k))
        ]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64)


def means(x, m):
    """The mean of every segment, the first n mod m one token longer."""
    size, more = divmod(len(x), m)
    averages, start = [], 0
    for i in range(m):
        end = start + size + (i < more)
        averages.append(sum(x[j] for j in range(start, end)) / (end - start))
        start = end
    return torch.stack(averages)


def definition(q, k, v, m, iterations, kernel):
    q_mean, k_mean = means(q, m), means(k, m)
    a = softmax_rows(q_mean, k_mean)
    eye = torch.eye(m, dtype=torch.float64)
    z = a.T / a.sum(0).max()
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    out = softmax_rows(q, k_mean) @ z @ softmax_rows(q_mean, k) @ v
    if kernel is not None:
        half = len(kernel) // 2
        for i in range(len(v)):
            for tap, weight in enumerate(kernel):
                if 0 <= i + tap - half < len(v):
                    out[i] += weight * v[i + tap - half]
    return out


@pytest.mark.parametrize("size", [None, 1, 5, 9])
@pytest.mark.parametrize(
    ("b", "h", "n", "d", "m"), [(1, 1, 6, 3, 2), (3, 2, 7, 2, 3), (1, 2, 4, 3, 8), (2, 1, 1, 2, 2)]
)
def test_nystromformer_is_the_definition(b, h, n, d, m, size):
    torch.manual_seed(1)
    q, k, v = drawn((b, h, n, d))
    kernel = None if size is None else torch.randn(h, size, dtype=torch.float64)
    weights = None if size is None else {"kernel": kernel}
    got = attnprof.attend(
        "nystromformer", q, k, v, weights=weights, num_landmarks=m, iterations=3, conv_kernel=size
    )
    for i in range(b):
        for j in range(h):
            taps = None if kernel is None else kernel[j]
            expected = definition(q[i, j], k[i, j], v[i, j], min(m, n), 3, taps)
            close(got[i, j], expected, 1e-10)


@pytest.mark.parametrize("n", [5, 12])
def test_as_many_landmarks_as_tokens_is_standard_attention(n):
    torch.manual_seed(3)
    q = 3 * torch.eye(n, dtype=torch.float64).expand(1, 2, n, n)
    k, v = q, torch.randn(1, 2, n, n, dtype=torch.float64)
    got = attnprof.attend("nystromformer", q, k, v, num_landmarks=n, iterations=30)
    close(got, attnprof.attend("standard", q, k, v), 1e-10)


def iterated(a, iterations):
    """The iteration as the paper prints it, the matrix product AZ anew each time."""
    eye = torch.eye(a.shape[1], dtype=a.dtype)
    z = a.transpose(1, 2) / a.sum(1).amax(1).view(-1, 1, 1)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


@pytest.mark.parametrize("iterations", [1, 2, 6])
def test_the_inverses_product_and_its_gradients_are_the_iterations(iterations):
    torch.manual_seed(4)
    scores = torch.randn(3, 7, 7, dtype=torch.float64)
    a = torch.softmax(2 * scores, -1).requires_grad_()
    x = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    got, expected = inverse_product(a, x, iterations=iterations), iterated(a, iterations) @ x
    close(got, expected, 1e-11)
    with torch.no_grad():
        close(inverse_product(a, x, iterations=iterations), expected, 1e-11)
    grad = torch.randn_like(x)
    ours, theirs = (torch.autograd.grad(y, (a, x), grad) for y in (got, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_matrices_that_are_not_stochastic_have_their_gradients_too():
    a = torch.rand(2, 4, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda a, x: inverse_product(a / a.sum(), x, iterations=3), (a, x)
    )


@pytest.mark.parametrize("size", [1, 3, 33, 2 * CONVOLUTION_ROWS + 3])
@pytest.mark.parametrize("n", [1, CONVOLUTION_ROWS, 2 * CONVOLUTION_ROWS + 5])
def test_band_products_are_torchs_depthwise_convolution(n, size):
    x = torch.randn(2, n, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    kernel = torch.randn(3, size, dtype=torch.float64, requires_grad=True)
    got = band_convolution(x, kernel)
    weight = kernel.view(3, 1, size, 1)
    expected = torch.nn.functional.conv2d(x, weight, padding=(size // 2, 0), groups=3)
    close(got, expected)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, (x, kernel), grad) for y in (got, expected))
    close(ours, theirs, 1e-11)


COSTED = [
    ((2, 2 * ROWS + 3, 2, 4), 3, None),
    ((1, ROWS, 1, 3), ROWS + 44, None),
    ((5, ROWS + 3, 2, 4), 3, 5),
    ((2, 2 * CONVOLUTION_ROWS + 5, 3, 4), 5, 9),
    ((2, 7, 2, 4), 3, 33),
    ((1, 3 * CONVOLUTION_ROWS, 2, 4), 64, 2 * CONVOLUTION_ROWS + 3),
]


@pytest.mark.parametrize(("shape", "m", "kernel"), COSTED)
def test_blocks_and_convolutions_cost_what_is_executed(shape, m, kernel):
    params = {"num_landmarks": m, "conv_kernel": kernel, "iterations": 2}
    layer, x = built("nystromformer", shape, **params), inputs(shape)
    for phase in ("forward", "train"):
        table = attnprof.cost("nystromformer", workload(shape, phase=phase), **params)
        check_executed(table, count_layer(layer, x, phase), phase)
    check_peak(attnprof.cost("nystromformer", workload(shape), **params), layer, x)


def test_half_the_digits_are_counted_as_they_run():
    shape = (2, 9, 2, 4)
    layer = built("nystromformer", shape, torch.bfloat16, num_landmarks=4)
    for phase in ("forward", "train"):
        work = workload(shape, phase=phase, dtype="bfloat16")
        table = attnprof.cost("nystromformer", work, num_landmarks=4)
        check_executed(table, count_layer(layer, inputs(shape, torch.bfloat16), phase), phase)


@pytest.mark.parametrize("size", [None, 3])
def test_gradients_are_those_of_the_function(size):
    torch.manual_seed(0)
    layer = attnprof.build("nystromformer", 6, 2, num_landmarks=3, iterations=2, conv_kernel=size)
    check_gradients(layer.double(), *drawn((2, 7, 6), 1), (False,))


def test_what_cannot_be_is_refused():
    layer = attnprof.build("nystromformer", 8, 2)
    with pytest.raises(RequestError, match="later ones"):
        layer(torch.randn(1, 4, 8), causal=True)
    with pytest.raises(RequestError, match="odd"):
        attnprof.build("nystromformer", 8, 2, conv_kernel=4)


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
