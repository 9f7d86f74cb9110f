"""Mixed block and native sparse attention against loops over the blocks that they pick."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.compressed import window_pairs
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.checks import close, drawn, loops
from tests.mechanisms.variants import MOBA, NSA, forms


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
def test_mixed_blocks_are_the_definition(impl, n, kv_heads, top, block):
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
def test_the_pairs_of_mixed_blocks_are_counted_one_by_one(n, top):
    spec = registry.get("moba", top=top, block=4)
    steps = [min(t // 4, top - 1) * 4 + t % 4 + 1 for t in range(n)]
    assert spec.pairs(Workload(n, 1, 4)) == sum(steps)
    assert [spec.pairs(Workload(t + 1, 1, 4, phase="decode")) for t in range(n)] == steps


# -- native sparse attention: three branches, window by window --------------------------------
def softmax(row, keys):
    """Weights of one row over some keys."""
    raised = [math.exp(float(row @ key)) for key in keys]
    return [x / sum(raised) for x in raised]


def chosen(shares, current, top):
    """The first block, a row's own and the one before, and those of the largest shares."""
    always = {0, current, max(0, current - 1)}
    others = sorted((-shares[block], block) for block in {*range(current + 1)} - always)
    return always | {block for _, block in others[: top - len(always)]}


def branches(q, k, v, *, top, block, pool, stride, window):
    """The three branches (3, b, h, n, dv), one row after the other."""
    (b, h, n, d), g = q.shape, k.shape[1]
    out = torch.zeros(3, b, h, n, v.shape[-1], dtype=q.dtype)
    for sample, group, t in torch.cartesian_prod(*map(torch.arange, (b, g, n))).tolist():
        keys, values, shares = k[sample, group], v[sample, group], [0.0] * (t // block + 1)
        heads = [
            (head, q[sample, head, t] / d**0.5) for head in range(h) if head // (h // g) == group
        ]
        spans = [range(i, i + pool) for i in range(0, t + 2 - pool, stride)]
        for head, row in heads:
            means = [keys[span.start : span.stop].mean(0) for span in spans]
            for weight, span in zip(softmax(row, means), spans, strict=True):
                out[0, sample, head, t] += weight * values[span.start : span.stop].mean(0)
                for token in span[::stride]:
                    shares[token // block] += weight
        blocks = chosen(shares, t // block, top)
        among = (
            [j for j in range(t + 1) if j // block in blocks],
            range(max(0, t + 1 - window), t + 1),
        )
        for head, row in heads:
            for branch, tokens in enumerate(among, 1):
                for weight, j in zip(softmax(row, [keys[j] for j in tokens]), tokens, strict=True):
                    out[branch, sample, head, t] += weight * values[j]
    return out


@pytest.mark.parametrize(("n", "kv_heads", "params"), NSA)
@pytest.mark.parametrize("impl", forms("nsa"))
def test_attend_adds_the_three_branches_and_a_layer_gates_them(impl, n, kv_heads, params):
    shapes = (2, 4, n, 3), (2, kv_heads, n, 3), (2, kv_heads, n, 5)
    q, k, v = (drawn(shape, 1)[0] for shape in shapes)
    got = attnprof.attend("nsa", q, k, v, causal=True, impl=impl, **params)
    close(got, branches(q, k, v, **params).sum(0))
    shape = (2, n, 4, 3)
    layer = built("nsa", shape, torch.float64, num_kv_heads=kv_heads, impl=impl, **params)
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        q, k, v = (layer.heads(letter, x) for letter in "qkv")
        gates = layer.gate_proj(x).sigmoid().view(2, n, 3, 4).permute(2, 0, 3, 1).unsqueeze(-1)
        rows = (gates * branches(q, k, v, **params)).sum(0).transpose(1, 2).flatten(2)
        close(layer(x, causal=True), layer.o_proj(rows))


@pytest.mark.parametrize(("n", "rows"), [(8192, 2048), (16384, 2560), (32768, 3584), (65536, 5632)])
def test_a_step_reads_as_many_rows_as_the_papers_table_says(n, rows):
    """Its Table 4, of 64 heads on 4, keys of 192 and values of 128 entries: n/16 + 1536 tokens."""
    step = Workload(
        n, 64, 192, num_kv_heads=4, value_head_dim=128, phase="decode", dtype="bfloat16"
    )
    spec, full = registry.get("nsa"), registry.get("standard")
    assert spec.state_traffic(step) == rows * 4 * (192 + 128) * 2
    assert full.state_traffic(step) == n * 4 * (192 + 128) * 2
    assert spec.state_entries(step) == 4 * (192 + 128) * (n + n // 16)
    windows = (n - 32) // 16 + 1
    assert spec.cost(step, "core").matmul_flops == 2 * 64 * 320 * (windows + 16 * 64 + 512)


def test_it_has_the_parameters_of_grouped_queries_and_three_gates_a_head():
    work = Workload(64, 8, 16, num_kv_heads=2)
    more = registry.get("nsa").parameters(work) - registry.get("gqa").parameters(work)
    assert more == 3 * 8 * 128


@pytest.mark.parametrize("n", [1, 7, 8, 31])
@pytest.mark.parametrize(("pool", "stride"), [(8, 4), (4, 4), (3, 1)])
def test_pairs_of_rows_and_windows_are_counted_one_by_one(n, pool, stride):
    steps = [len(range(0, t + 1 - pool, stride)) for t in range(1, n + 1)]
    pairs, rows = window_pairs(Workload(n, 1, 4), pool, stride)
    assert (pairs, rows) == (sum(steps), sum(map(bool, steps)))
    asked = [Workload(t, 1, 4, phase="decode") for t in range(1, n + 1)]
    assert [window_pairs(w, pool, stride)[0] for w in asked] == steps
