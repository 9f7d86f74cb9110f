"""Neural Attention against a loop over its equations, in both forms."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from attnprof.mechanisms import neural as neural_spec
from tests.mechanisms.checks import check_counts, check_executed, check_steps, close, drawn, held
from tests.oracles.aten import count_layer

VARIANTS = [
    {},
    {"down_dim": 2},
    {"depth": 1},
    {"depth": 1, "hidden_dim": 7, "down_dim": 3},
    {"hidden_dim": 5},
]
IMPLS = ["factored", "naive"]


def by_turns(*shapes):
    """Every variant in both forms, each at one of the shapes, which take turns."""
    return [
        (shapes[(v + i) % len(shapes)], params, impl)
        for v, params in enumerate(VARIANTS)
        for i, impl in enumerate(IMPLS)
    ]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows, so that short sequences take many."""
    monkeypatch.setattr(neural_spec, "CHUNK_ENTRIES", 64)


def dot(weights, values):
    return sum(w * x for w, x in zip(weights, values, strict=True))


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

    out = torch.zeros_like(v)
    for i in range(n):
        visible = range(i + 1 if causal else n)
        exps = [math.exp(score(i, j) / math.sqrt(d)) for j in visible]
        for j, e in zip(visible, exps, strict=True):
            out[i] += e / sum(exps) * v[j]
    return out


def made(shape, **params):
    """A core's weights, away from their start, and q, k, v."""
    torch.manual_seed(1)
    _, h, n, d = shape
    core = attnprof.build("neural", h * d, h, n, **params).core.double()
    weights = {name: w.detach() + 0.3 * torch.randn_like(w) for name, w in core.named_parameters()}
    return weights, drawn(shape)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "params", "impl"), by_turns((3, 2, 7, 4), (1, 1, 13, 3), (2, 3, 1, 2)), ids=str
)
@pytest.mark.usefixtures("small_chunks")
def test_attend_is_the_definition(shape, params, impl, causal):
    weights, (q, k, v) = made(shape, **params)
    got = attnprof.attend("neural", q, k, v, causal=causal, weights=weights, impl=impl, **params)
    for i in range(shape[0]):
        for j in range(shape[1]):
            expected = loops(q[i, j], k[i, j], v[i, j], weights, causal)
            close(got[i, j], expected, 1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("params", VARIANTS, ids=str)
@pytest.mark.usefixtures("small_chunks")
def test_both_forms_have_the_same_gradients(params, causal):
    weights, operands = made((2, 3, 21, 4), **params)
    leaves = [*operands, *weights.values()]
    grads = []
    for impl in IMPLS:
        for leaf in leaves:
            leaf.requires_grad_()
        out = attnprof.attend(
            "neural", *operands, causal=causal, weights=weights, impl=impl, **params
        )
        grads.append(torch.autograd.grad(out, leaves, torch.sin(out.detach() * 50)))
    for ours, theirs in zip(*grads, strict=True):
        close(ours, theirs, 1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("params", VARIANTS[:3], ids=str)
@pytest.mark.usefixtures("small_chunks")
def test_gradients_are_those_of_the_function(params, causal):
    weights, operands = made((1, 1, 6, 4), **params)
    names = list(weights)

    def run(*leaves):
        weights = dict(zip(names, leaves[3:], strict=True))
        return attnprof.attend("neural", *leaves[:3], causal=causal, weights=weights, **params)

    leaves = [x.requires_grad_() for x in (*operands, *weights.values())]
    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize(("down_dim", "head_dim", "added"), [
    (2, 64, 275), (16, 64, 2_753), (None, 64, 10_369), (2, 96, 403),
])  # fmt: skip
def test_added_parameters_are_the_published_models(down_dim, head_dim, added):
    work = Workload(seq_len=8, num_heads=8, head_dim=head_dim)
    spec = registry.get("neural", down_dim=down_dim)
    assert spec.parameters(work, "core") == added
    assert spec.parameters(work) == added + 4 * work.d_model**2


@pytest.mark.parametrize(
    ("shape", "params", "impl"), by_turns((3, 5, 4, 4), (1, 23, 3, 2), (2, 37, 1, 3)), ids=str
)
@pytest.mark.usefixtures("small_chunks")
def test_costs_are_what_is_dispatched(shape, params, impl):
    b, n, h, d = shape
    layer = attnprof.build("neural", h * d, h, n, impl=impl, **params)
    for causal in (False, True):
        for phase in ("forward", "train"):
            counts = count_layer(layer, torch.randn(b, n, h * d), phase, causal=causal)
            work = Workload(n, h, d, b, causal=causal, phase=phase)
            check_executed(attnprof.cost("neural", work, impl=impl, **params), counts, phase)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("params", VARIANTS, ids=str)
def test_peaks_are_the_allocators(params, impl, causal):
    b, n, h, d = 2, 129, 2, 8
    layer, x = attnprof.build("neural", h * d, h, n, impl=impl, **params), torch.randn(b, n, h * d)
    for phase in ("forward", "train"):
        work = Workload(n, h, d, b, causal=causal, phase=phase)
        peak = attnprof.cost("neural", work, impl=impl, **params).peak()
        held_bytes = held(layer, x, phase, causal=causal)
        assert peak == pytest.approx(held_bytes, abs=64, rel=1e-3), phase


@pytest.mark.parametrize("params", VARIANTS, ids=str)
def test_a_step_is_the_causal_forwards_row_and_costs_what_it_runs(params):
    check_counts("neural", (3, 9, 2, 4), params, lambda state: [state])
    layer = attnprof.build("neural", 8, 2, **params).double()
    check_steps(layer, *drawn((3, 9, 8), 1), 1e-10)


@pytest.mark.parametrize("n", [33, 1_000, 4_097, 32_769])
def test_torchs_counter_agrees_on_the_products_at_any_length(n):
    with torch.device("meta"):
        layer = attnprof.build("neural", 2, 1, n)
        x = torch.randn(1, n, 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x)
    assert attnprof.cost("neural", Workload(n, 1, 2)).matmul_flops == counter.get_total_flops()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", IMPLS)
def test_low_precision_is_near_double(impl, dtype):
    weights, operands = made((2, 2, 17, 4), impl=impl)
    exact = attnprof.attend("neural", *operands, weights=weights, impl=impl)
    low = {name: w.to(dtype) for name, w in weights.items()}
    got = attnprof.attend("neural", *(x.to(dtype) for x in operands), weights=low, impl=impl)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=64 * torch.finfo(dtype).eps)


def test_the_naive_form_compiles():
    layer = attnprof.build("neural", 8, 2, impl="naive")
    x = torch.randn(2, 9, 8)
    torch.compiler.reset()  # the layers compiled before this one count against a limit
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, causal=True), layer(x, causal=True))


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


def test_growth_is_as_claimed():
    def peak(n):
        return registry.get("neural").cost(Workload(n, 1, 64), "core").peak()

    assert math.log(peak(1 << 20) / peak(1 << 14)) / math.log(64) == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize(("params", "says"), [
    ({"impl": "fast"}, "factored, naive"), ({"depth": 3}, "possible: 1"),
    ({"down_dim": 0}, "at least 1"), ({"hidden_dim": 0}, "at least 1"),
])  # fmt: skip
def test_unusable_parameters_are_refused(params, says):
    with pytest.raises(RequestError, match=says):
        registry.get("neural", **params)
