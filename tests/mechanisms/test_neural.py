"""Neural Attention against a loop over its equations, in both forms."""

import math

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.mechanisms import neural as neural_spec
from tests.mechanisms.checks import close, dot, drawn, mixed
from tests.mechanisms.variants import NEURAL

SHAPES = [(3, 2, 7, 4), (1, 1, 13, 3), (2, 3, 1, 2)]
#: Every variant in both forms, each at one of the shapes, which take turns.
CASES = [
    (SHAPES[(v + i) % 3], params, impl)
    for v, params in enumerate(NEURAL)
    for i, impl in enumerate(("factored", "naive"))
]


def layer_by_loops(weight, bias, x):
    return [dot(row, x) + b for row, b in zip(weight.tolist(), bias.tolist(), strict=True)]


def loops(q, k, v, weights, causal):
    """Equations 5 to 10 of document 001 for one head, number by number."""
    n, d = q.shape

    def reduced(which, x):
        if f"{which}_down" not in weights:
            return x.tolist()
        return layer_by_loops(weights[f"{which}_down"].T, weights[f"{which}_down_bias"], x.tolist())

    def score(i, j):
        hidden = reduced("query", q[i]) + reduced("key", k[j])
        for name in ("hidden", "second"):
            if f"{name}_weight" in weights:
                sums = layer_by_loops(weights[f"{name}_weight"], weights[f"{name}_bias"], hidden)
                hidden = [max(0.0, x) for x in sums]
        return layer_by_loops(weights["score_weight"], weights["score_bias"], hidden)[0]

    scale, tokens = math.sqrt(d), range(n)
    weights = [
        {j: math.exp(score(i, j) / scale) for j in tokens if j <= i or not causal} for i in tokens
    ]
    return mixed(v, weights)


def made(shape, **params):
    """A core's weights, away from their start, and q, k, v."""
    torch.manual_seed(1)
    _, h, n, d = shape
    core = attnprof.build("neural", h * d, h, n, **params).core.double()
    weights = {name: w.detach() + 0.3 * torch.randn_like(w) for name, w in core.named_parameters()}
    return weights, drawn(shape)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "params", "impl"), CASES, ids=str)
def test_attend_is_the_definition(shape, params, impl, causal, monkeypatch):
    monkeypatch.setattr(neural_spec, "CHUNK_ENTRIES", 64)  # chunks of a few rows
    weights, (q, k, v) = made(shape, **params)
    got = attnprof.attend("neural", q, k, v, causal=causal, weights=weights, impl=impl, **params)
    for i in range(shape[0]):
        for j in range(shape[1]):
            expected = loops(q[i, j], k[i, j], v[i, j], weights, causal)
            close(got[i, j], expected, 1e-10)


def test_the_definition_counts_every_pairs_whole_network():
    n, d, w = 12, 8, 5
    spec = registry.get("neural", depth=1, hidden_dim=w, down_dim=2)
    cost = spec.definition(Workload(n, 1, d), "core").total
    score = n * n * (4 * 2 * w + w + w + 2 * w + 1) + 2 * (2 * n * d * 2 + n * 2)
    assert cost.flops == score + n * n * (1 + 3) + 2 * n * n * d
    causal = spec.definition(Workload(n, 1, d, causal=True), "core").total
    pairs = n * (n + 1) // 2
    assert causal.flops == cost.flops - (n * n - pairs) * (4 * 2 * w + 4 * w + 1 + 4 + 2 * d)


def test_the_factored_form_holds_a_small_part_of_c():
    work = Workload(seq_len=4096, num_heads=1, head_dim=64, phase="train")
    naive = registry.get("neural", impl="naive").cost(work, "core").peak()
    factored = registry.get("neural").cost(work, "core").peak()
    assert naive > 4 * 4096**2 * 128
    assert factored < naive / 100
