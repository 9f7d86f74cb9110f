"""Mixture of block attention against a loop over the blocks that each head picks."""

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from tests.mechanisms.checks import close, drawn, loops
from tests.mechanisms.variants import MOBA, forms


def definition(q, k, v, top, block):
    """One head of one sample after the other, blocks ranked by their mean keys."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, h in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        query, keys, values = q[b, h], k[b, h // group], v[b, h // group]
        picks = []
        for t, row in enumerate(query):
            means = [keys[i : i + block].mean(0) for i in range(0, t - t % block, block)]
            ranked = sorted((-float(row @ mean), place) for place, mean in enumerate(means))
            picks.append({t // block, *(place for _, place in ranked[: top - 1])})
        one = loops(
            query[None, None], keys[None, None], values[None, None],
            lambda i, j, picks=picks: j <= i and j // block in picks[i],
        )  # fmt: skip
        out[b, h] = one[0, 0]
    return out


@pytest.mark.parametrize(("n", "kv_heads", "top", "block"), MOBA)
@pytest.mark.parametrize("impl", forms("moba"))
def test_attend_is_the_definition(impl, n, kv_heads, top, block):
    shapes = (2, 4, n, 3), (2, kv_heads, n, 3), (2, kv_heads, n, 5)
    q, k, v = (drawn(shape, 1)[0] for shape in shapes)
    got = attnprof.attend("moba", q, k, v, causal=True, top=top, block=block, impl=impl)
    close(got, definition(q, k, v, top, block))


@pytest.mark.parametrize(("b", "n", "g"), [(1, 4096, 8), (2, 8192, 2)])
def test_products_are_the_known_formulas(b, n, g):
    """2 B h N (N / block) d to rank blocks, 4 B h N k block d to attend; whole blocks."""
    h, d, top, block = 8, 64, 4, 256
    spec = registry.get("moba", top=top, block=block)
    work = Workload(n, h, d, b, num_kv_heads=g, causal=True)
    step = work.with_(causal=False, phase="decode")
    each = 2 * b * h * (n // block) * d + 4 * b * h * top * block * d
    assert spec.cost(work, "core").matmul_flops == n * each
    assert spec.cost(step, "core").matmul_flops == each
    assert spec.state_entries(step) == 2 * b * g * d * n + b * g * d * n // block
    read = min(h * top * block, g * n)
    assert spec.state_traffic(step) == 4 * b * d * (2 * read + g * n // block)


@pytest.mark.parametrize("n", [1, 6, 8, 23])
@pytest.mark.parametrize("top", [1, 2, 9])
def test_the_definitions_pairs_are_counted_one_by_one(n, top):
    spec = registry.get("moba", top=top, block=4)
    steps = [min(t // 4, top - 1) * 4 + t % 4 + 1 for t in range(n)]
    assert spec.pairs(Workload(n, 1, 4)) == sum(steps)
    assert [spec.pairs(Workload(t + 1, 1, 4, phase="decode")) for t in range(n)] == steps
