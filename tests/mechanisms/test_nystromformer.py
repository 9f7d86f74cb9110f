"""Nystromformer against loops over its definition, and its limit."""

import math

import pytest
import torch

import attnprof
from attnprof.blocks.gathered import ROWS as CONVOLUTION_ROWS
from attnprof.blocks.gathered import band_convolution
from attnprof.blocks.inverse_product import inverse_product
from attnprof.blocks.softmax import ROWS
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs, workload
from tests.oracles.aten import count_layer
from tests.oracles.memory import allocator_peak


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
    found, start = [], 0
    for i in range(m):
        end = start + size + (i < more)
        found.append(sum(x[j] for j in range(start, end)) / (end - start))
        start = end
    return torch.stack(found)


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
def test_attend_is_the_definition(b, h, n, d, m, size):
    torch.manual_seed(1)
    q, k, v = (torch.randn(b, h, n, d, dtype=torch.float64) for _ in range(3))
    kernel = None if size is None else torch.randn(h, size, dtype=torch.float64)
    weights = None if size is None else {"kernel": kernel}
    got = attnprof.attend(
        "nystromformer", q, k, v, weights=weights, num_landmarks=m, iterations=3, conv_kernel=size
    )
    for i in range(b):
        for j in range(h):
            taps = None if kernel is None else kernel[j]
            expected = definition(q[i, j], k[i, j], v[i, j], min(m, n), 3, taps)
            torch.testing.assert_close(got[i, j], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [5, 12])
def test_as_many_landmarks_as_tokens_is_standard_attention(n):
    torch.manual_seed(3)
    q = 3 * torch.eye(n, dtype=torch.float64).expand(1, 2, n, n)
    k, v = q, torch.randn(1, 2, n, n, dtype=torch.float64)
    got = attnprof.attend("nystromformer", q, k, v, num_landmarks=n, iterations=30)
    expected = attnprof.attend("standard", q, k, v)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


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
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(
            inverse_product(a, x, iterations=iterations), expected, rtol=0, atol=1e-11
        )
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
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    grad = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, (x, kernel), grad) for y in (got, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


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
        seen = count_layer(layer, x, phase)
        table = attnprof.cost("nystromformer", workload(shape, phase=phase), **params)
        assert not seen.unknown
        assert {kind: getattr(table.total, kind) for kind in seen.by_kind()} == seen.by_kind()
        assert table.total.bytes_moved == seen.bytes_moved


@pytest.mark.parametrize(("shape", "m", "kernel"), COSTED)
def test_peaks_of_blocks_and_convolutions_are_the_allocators(shape, m, kernel):
    params = {"num_landmarks": m, "conv_kernel": kernel}
    layer, x = built("nystromformer", shape, **params), inputs(shape)
    with torch.no_grad():
        layer(x)
        seen = allocator_peak(lambda: layer(x))
    peak = attnprof.cost("nystromformer", workload(shape), **params).peak()
    assert peak == pytest.approx(seen, abs=16, rel=0)


def test_half_the_digits_are_counted_as_they_run():
    shape = (2, 9, 2, 4)
    layer = built("nystromformer", shape, torch.bfloat16, num_landmarks=4)
    for phase in ("forward", "train"):
        seen = count_layer(layer, inputs(shape, torch.bfloat16), phase)
        asked = workload(shape, phase=phase, dtype="bfloat16")
        table = attnprof.cost("nystromformer", asked, num_landmarks=4)
        assert {kind: getattr(table.total, kind) for kind in seen.by_kind()} == seen.by_kind()
        assert table.total.bytes_moved == seen.bytes_moved


@pytest.mark.parametrize("size", [None, 3])
def test_gradients_are_those_of_the_function(size):
    torch.manual_seed(0)
    layer = attnprof.build("nystromformer", 6, 2, num_landmarks=3, iterations=2, conv_kernel=size)
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer.double(), (x,))


def test_what_cannot_be_is_refused():
    layer = attnprof.build("nystromformer", 8, 2)
    with pytest.raises(RequestError, match="later ones"):
        layer(torch.randn(1, 4, 8), causal=True)
    with pytest.raises(RequestError, match="odd"):
        attnprof.build("nystromformer", 8, 2, conv_kernel=4)
