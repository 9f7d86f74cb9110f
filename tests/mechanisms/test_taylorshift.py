"""TaylorShift: both forms against loops, each other, autograd, and the document's closed forms."""

import math

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.taylor import BOXED, scan
from attnprof.errors import RequestError
from tests.mechanisms.checks import check_executed, close, held
from tests.oracles.aten import count, count_layer
from tests.oracles.evaluate import Evaluator

FORMS = ("taylor-direct", "taylor-efficient", "taylorshift")


def loops(q, k, v, temperature, causal):
    """Algorithm 1's result from its definition, one row at a time."""
    n, d = q.shape
    out = torch.zeros_like(v)
    for i in range(n):
        visible = i + 1 if causal else n
        weights = []
        for j in range(visible):
            cosine = float(q[i] @ k[j] / (q[i].norm() * k[j].norm()))
            x = temperature * cosine
            weights.append(1 + x + x * x / 2)
        for j, weight in enumerate(weights):
            out[i] += weight / sum(weights) * v[j] * math.sqrt(visible / d)
    return out


def drawn(b, h, n, d, dtype=torch.float64):
    torch.manual_seed(3)
    q, k, v = (torch.randn(b, h, n, d, dtype=dtype) for _ in range(3))
    return q, k, v, {"temperature": 0.5 + torch.rand(h, dtype=dtype)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_attend_is_the_definition(name, causal):
    q, k, v, weights = drawn(3, 2, 9, 4)
    got = attnprof.attend(name, q, k, v, causal=causal, weights=weights)
    for i in range(3):
        for j in range(2):
            expected = loops(q[i, j], k[i, j], v[i, j], float(weights["temperature"][j]), causal)
            close(got[i, j], expected, 1e-10)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4, 33, 8), (1, 1, 197, 16), (2, 3, 130, 4), (3, 1, 1, 5)])
def test_the_forms_agree_and_so_do_their_gradients(sizes, causal, dtype, off):
    q, k, v, weights = drawn(*sizes, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v, weights["temperature"])]
    results = []
    for name in FORMS[:2]:
        y = attnprof.attend(name, q, k, v, causal=causal, weights=weights)
        results.append((y, *torch.autograd.grad(y, leaves, torch.cos(torch.ones_like(y)))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=off, atol=off)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_any_chunk_gives_the_same_rows(chunk):
    q, k, v, weights = drawn(2, 2, 7, 3)
    one = attnprof.attend("taylor-efficient", q, k, v, causal=True, weights=weights, chunk=chunk)
    other = attnprof.attend("taylor-direct", q, k, v, causal=True, weights=weights)
    close(one, other)


@pytest.mark.parametrize(("n", "chunk"), [(5, 2), (4, 2), (3, 8)])
def test_the_scans_own_backward_is_its_derivative(n, chunk):
    torch.manual_seed(0)
    q, k = (torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: scan(*x, size=chunk, features=BOXED), (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FORMS[:2])
def test_gradients_are_derivatives(name, causal):
    q, k, v, weights = drawn(2, 2, 5, 2)
    temperature = weights["temperature"].requires_grad_()

    def run(q, k, v, temperature):
        weights = {"temperature": temperature}
        return attnprof.attend(name, q, k, v, causal=causal, weights=weights)

    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    assert torch.autograd.gradcheck(run, (*inputs, temperature))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", FORMS[:2])
def test_zero_rows_give_numbers_and_no_gradient(name, causal):
    q, k, v, weights = drawn(1, 2, 6, 3)
    q[0, 0, 2] = k[0, 1, 4] = 0
    leaves = [x.requires_grad_() for x in (q, k, v)]
    y = attnprof.attend(name, q, k, v, causal=causal, weights=weights)
    grads = torch.autograd.grad(y.square().sum(), leaves)
    assert all(torch.isfinite(x).all() for x in (y, *grads))
    assert not grads[0][0, 0, 2].any()
    assert not grads[1][0, 1, 4].any()


def test_training_causally_never_holds_n_by_d_squared():
    n, d = 512, 16
    peak = held(
        attnprof.build("taylor-efficient", d, 1, n), torch.randn(1, n, d), "train", causal=True
    )
    table = attnprof.cost("taylor-efficient", Workload(n, 1, d, causal=True, phase="train"))
    assert peak < 4 * n * d * d
    assert abs(peak - table.peak()) <= 1e-3 * peak + 64


@pytest.mark.parametrize(("name", "causal"), [(n, c) for n in FORMS[:2] for c in (False, True)])
@pytest.mark.parametrize(
    ("sizes", "phase"),
    [((3, 129, 2, 4), "train"), ((1, 65, 3, 5), "forward"), ((2, 128, 1, 3), "train")],
)
def test_lengths_around_a_chunk_count_as_dispatched(name, causal, phase, sizes):
    b, n, h, d = sizes
    layer = attnprof.build(name, h * d, h, n)
    counts = count_layer(layer, torch.randn(b, n, h * d), phase, causal=causal)
    table = attnprof.cost(name, Workload(n, h, d, b, causal=causal, phase=phase))
    check_executed(table, counts)


# -- the one that switches ----------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("phase", ["forward", "backward", "train", "decode"])
@pytest.mark.parametrize("d", [1, 3, 6])
def test_the_switch_takes_the_cheaper_form(d, phase, causal):
    seen = set()
    for n in (1, 2, 7, 30, 64, 65, 150):
        w = Workload(n, 2, d, 3, causal=causal, phase=phase)
        whole = w.with_(phase="train") if phase == "backward" else w
        direct, efficient = (attnprof.cost(f, whole, "core").flops for f in FORMS[:2])
        chosen = FORMS[0] if direct <= efficient else FORMS[1]
        got = attnprof.cost("taylorshift", w, "core")
        # leaving the direct form costs the sums of the cache once more
        assert got.flops >= attnprof.cost(chosen, w, "core").flops
        if phase != "decode":
            assert got == attnprof.cost(chosen, w, "core")
        seen.add(chosen)
    assert d == 1 or len(seen) == 2


@pytest.mark.parametrize("switch", ["formula", "published", "memory"])
def test_symbols_and_grids_are_the_numbers_for_every_switch(switch):
    n, h, d, b = sympy.symbols("n h d b", positive=True)
    grid = np.arange(1, 40)
    for phase, causal in (("forward", False), ("decode", False), ("train", True)):
        conditions = {"causal": causal, "phase": phase}
        table = attnprof.cost("taylorshift", Workload(n, h, d, b, **conditions), switch=switch)
        flops, peak = table.flops, table.peak()
        across = attnprof.cost("taylorshift", Workload(grid, 2, 3, 2, **conditions), switch=switch)
        for size in (1, 2, 11, 12, 13, 14, 39):
            w = Workload(size, 2, 3, 2, **conditions)
            exact = attnprof.cost("taylorshift", w, switch=switch)
            value = Evaluator({n: size, h: 2, d: 3, b: 2})
            assert value(flops) == exact.flops
            assert value(peak) == exact.peak()
            assert across.flops[size - 1] == exact.flops
            assert across.peak()[size - 1] == exact.peak()


@pytest.mark.parametrize("switch", ["published", "memory", "formula"])
def test_the_module_switches_where_the_cost_does(switch):
    switched = False
    for size in (2, 9, 60):
        layer = attnprof.build("taylorshift", 6, 2, size, switch=switch)
        for phase in ("forward", "train"):
            w = Workload(size, 2, 3, 2, phase=phase)
            counts = count_layer(layer, torch.randn(2, size, 6), phase)
            assert attnprof.cost("taylorshift", w, switch=switch).flops == counts.flops
        switched |= attnprof.cost("taylorshift", w, "core").stages[0].name != "queries: norms"
        switched |= any(s.name == "A_mod" for s in attnprof.cost("taylorshift", w, switch=switch))
    assert switched


@pytest.mark.parametrize(("d", "chunk"), [(1, 4), (2, 5), (3, 64)])
def test_decoding_changes_form_once_and_counts_it(d, chunk):
    n, h, b = 30, 2, 3
    layer = attnprof.build("taylorshift", h * d, h, n, chunk=chunk)
    x = torch.randn(b, n, h * d)
    rows, built = [], []
    with torch.no_grad():
        expected, state = layer(x, causal=True), layer.init_state(b)
        for t in range(1, n + 1):
            token = x[:, t - 1].contiguous()
            counts = count(
                lambda token=token, state=state: rows.append(layer.step(token, state)[0])
            )
            w = Workload(t, h, d, b, phase="decode")
            table = attnprof.cost("taylorshift", w, chunk=chunk)
            check_executed(table, counts, t)
            built += [t] if any(s.name == "build state" and s.allocates for s in table) else []
            kept = registry.get("taylorshift", chunk=chunk).state_entries(w)
            held = [state.sums] if state.keys is None else [state.keys.filled, state.values.filled]
            assert kept == sum(part.numel() for part in held)
    torch.testing.assert_close(torch.stack(rows, 1), expected, rtol=1e-4, atol=1e-4)
    assert len(built) == 1


def test_bad_parameters_are_refused():
    with pytest.raises(RequestError, match="switch"):
        attnprof.build("taylorshift", 8, 2, switch="formulae")
    with pytest.raises(RequestError, match="chunk"):
        attnprof.build("taylorshift", 8, 2, chunk=0)
    with pytest.raises(RequestError, match="chunk"):
        attnprof.build("taylor-efficient", 8, 2, chunk=0)


# -- what the document prints ---------------------------------------------------------------


def printed(name, quantity, heads):
    forms = registry.get(name).published()
    return next(f for f in forms if f.quantity == quantity and f.heads == heads)


def test_published_forms_are_the_printed_ones():
    N, d, h = sympy.symbols("N d h", positive=True)
    e = h * d
    w = Workload(N, h, d)
    expected = {
        ("taylor-direct", "flops", "one"): 4 * N**2 * d + 6 * N**2,
        ("taylor-direct", "peak_entries", "one"): d * N + 2 * N**2,
        ("taylor-direct", "flops", "any"): 4 * N**2 * e + 6 * h * N**2,
        ("taylor-direct", "peak_entries", "any"): e * N + 2 * N**2 * h,
        ("taylor-efficient", "flops", "one"): N * (4 * d**3 + 10 * d**2 + 8 * d + 3),
        ("taylor-efficient", "peak_entries", "one"): d**3 + (N + 1) * d**2 + 3 * N * d + N,
        ("taylor-efficient", "flops", "any"): N * (4 * e**3 / h**2 + 10 * e**2 / h + 8 * e + 3 * h),
        ("taylor-efficient", "peak_entries", "any"): e**3 / h**2
        + (N + 1) * e**2 / h
        + 3 * N * e
        + N * h,
    }
    for (name, quantity, heads), form in expected.items():
        got = printed(name, quantity, heads)
        assert sympy.expand(got.formula(w) - form) == 0
        assert isinstance(got.formula(Workload(1025, 3, 64)), int)
        assert got.formula(Workload(np.array([5, 7]), 3, 64))[1] == got.formula(Workload(7, 3, 64))


@pytest.mark.parametrize(
    ("d", "flops", "entries"), [(8, 73, 47), (16, 273, 159), (32, 1057, 574), (64, 4161, 2174)]
)
def test_published_forms_cross_where_table_2_says(d, flops, entries):
    for quantity, first in (("flops", flops), ("peak_entries", entries)):
        direct, efficient = (printed(name, quantity, "one").formula for name in FORMS[:2])
        below, here = Workload(first - 1, 1, d), Workload(first, 1, d)
        assert direct(below) < efficient(below)
        assert direct(here) >= efficient(here)
