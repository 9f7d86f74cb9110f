"""Low-rank attention against loops over its definition."""

import math

import pytest
import torch

import attnprof
from attnprof.errors import RequestError


def loops(q, k, v, a, b):
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
def test_attend_is_the_definition_and_its_rows_sum_to_one(b, h, n, m, d, r):
    torch.manual_seed(1)
    q = torch.randn(b, h, n, d, dtype=torch.float64)
    k, v = (torch.randn(b, h, m, d, dtype=torch.float64) for _ in range(2))
    a, w = (torch.randn(d, r, dtype=torch.float64) for _ in range(2))
    got = attnprof.attend("low-rank", q, k, v, weights={"query_map": a, "key_map": w}, rank=r)
    for i in range(b):
        for j in range(h):
            expected, rows = loops(q[i, j], k[i, j], v[i, j], a, w)
            torch.testing.assert_close(got[i, j], expected, rtol=0, atol=1e-10)
            assert rows == pytest.approx([1.0] * n)


def test_the_weights_have_the_asked_rank():
    q, k = (torch.randn(1, 1, 9, 6, dtype=torch.float64) for _ in range(2))
    eye = torch.eye(9, 9, dtype=torch.float64)[None, None]
    columns = [attnprof.attend("low-rank", q, k, eye[..., i : i + 6], rank=3) for i in (0, 3)]
    weights = torch.cat([columns[0], columns[1][..., 3:]], -1)[0, 0]
    assert torch.linalg.matrix_rank(weights) == 3


def test_causal_is_refused_with_the_reason():
    layer = attnprof.build("low-rank", 8, 2, rank=3)
    with pytest.raises(RequestError, match="over all tokens"):
        layer(torch.randn(1, 4, 8), causal=True)
