"""Nystromformer against loops over its definition, and its limit."""

import math

import pytest
import torch

import attnprof
from attnprof.errors import RequestError


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


def test_no_sample_moves_when_another_one_does():
    q, k, v = (torch.randn(2, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    before = attnprof.attend("nystromformer", q, k, v, num_landmarks=3)
    q2, k2 = q.clone(), k.clone()
    q2[1] *= 9
    k2[1] *= 9
    after = attnprof.attend("nystromformer", q2, k2, v, num_landmarks=3)
    assert torch.equal(before[0], after[0])


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
