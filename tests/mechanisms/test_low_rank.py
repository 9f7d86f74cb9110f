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
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.checks import close, drawn, loops, mixed


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


# -- linformer: E K, F V ----------------------------------------------------------------------
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("b", "h", "n", "d", "p"), [(1, 1, 5, 3, 2), (3, 2, 7, 2, 4)])
def test_linformer_is_the_definition(b, h, n, d, p, shared):
    torch.manual_seed(1)
    (q, k, v), (e, f) = drawn((b, h, n, d)), drawn((p, n), 2)
    weights = {"key_map": e} if shared else {"key_map": e, "value_map": f}
    got = attnprof.attend("linformer", q, k, v, weights=weights, proj_len=p, shared=shared)
    close(got, loops(q, e @ k, (e if shared else f) @ v), 1e-10)


def test_shorter_inputs_use_the_first_columns_of_the_maps():
    layer = attnprof.build("linformer", 8, 2, 10, proj_len=3)
    short = attnprof.build("linformer", 8, 2, 6, proj_len=3)
    state = layer.state_dict()
    for name in ("core.key_map", "core.value_map"):
        state[name] = state[name][:, :6]
    short.load_state_dict(state)
    x = torch.randn(2, 6, 8)
    torch.testing.assert_close(layer(x), short(x))


@pytest.mark.parametrize("n", [ROWS - 1, ROWS, 2 * ROWS + 3])
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


# -- nystromformer: landmarks -----------------------------------------------------------------
def softmax_rows(q, k):
    scale = math.sqrt(q.shape[1])
    weights = [{j: math.exp(float(x @ y) / scale) for j, y in enumerate(k)} for x in q]
    return mixed(torch.eye(len(k), dtype=torch.float64), weights)


def means(x, m):
    """The mean of every segment, the first n mod m one token longer."""
    size, more = divmod(len(x), m)
    averages, start = [], 0
    for i in range(m):
        end = start + size + (i < more)
        averages.append(sum(x[j] for j in range(start, end)) / (end - start))
        start = end
    return torch.stack(averages)


def iterated(a, iterations):
    """The iteration as the paper prints it, the matrix product AZ anew each time."""
    eye = torch.eye(a.shape[1], dtype=a.dtype)
    z = a.transpose(1, 2) / a.sum(1).amax(1).view(-1, 1, 1)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def definition(q, k, v, m, iterations, kernel):
    q_mean, k_mean = means(q, m), means(k, m)
    z = iterated(softmax_rows(q_mean, k_mean)[None], iterations)[0]
    out = softmax_rows(q, k_mean) @ z @ softmax_rows(q_mean, k) @ v
    if kernel is not None:
        half = len(kernel) // 2
        for i in range(len(v)):
            for tap, weight in enumerate(kernel):
                if 0 <= i + tap - half < len(v):
                    out[i] += weight * v[i + tap - half]
    return out


@pytest.mark.parametrize(
    ("b", "h", "n", "d", "m", "size"),
    [(1, 1, 6, 3, 2, None), (3, 2, 7, 2, 3, None), (3, 2, 7, 2, 3, 1), (3, 2, 7, 2, 3, 5),
     (1, 2, 4, 3, 8, None), (1, 2, 4, 3, 8, 9), (2, 1, 1, 2, 2, 5)],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("name", "params", "tokens", "causal", "says"),
    [("low-rank", {"rank": 3}, 4, True, "over all tokens"),
     ("linformer", {"proj_len": 3}, 7, False, "at most 6 tokens and got 7"),
     ("linformer", {"proj_len": 3}, 6, True, "later tokens"),
     ("nystromformer", {}, 4, True, "later ones"),
     ("nystromformer", {"conv_kernel": 4}, 4, False, "odd")],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(name, params, tokens, causal, says):
    with pytest.raises(RequestError, match=says):
        attnprof.build(name, 8, 2, 6, **params)(torch.randn(1, tokens, 8), causal=causal)


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
