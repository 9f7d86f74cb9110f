"""TaylorShift: all forms against loops, each other, autograd, and the document's closed forms."""

import math

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.taylor import BOXED, SYMMETRIC, scan, sums
from tests.mechanisms.checks import check_executed, close, mixed
from tests.oracles.aten import count, count_layer
from tests.oracles.evaluate import Evaluator
from tests.oracles.memory import held

FORMS = ("taylor-direct", "taylor-efficient", "taylorshift")


def loops(q, k, v, temperature, causal):
    """Algorithm 1's result from its definition, one row at a time."""
    n, d = q.shape

    def weight(i, j):
        x = temperature * float(q[i] @ k[j] / (q[i].norm() * k[j].norm()))
        return 1 + x + x * x / 2

    weights = [{j: weight(i, j) for j in range(i + 1 if causal else n)} for i in range(n)]
    scales = v.new_tensor([math.sqrt(len(row) / d) for row in weights])
    return mixed(v, weights) * scales.unsqueeze(1)


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


#: Shapes of heads, and how the efficient form takes them.
AGREEING = [
    *((sizes, {}) for sizes in ((3, 4, 33, 8), (1, 1, 197, 16), (2, 3, 130, 4), (3, 1, 1, 5))),
    *(((2, 2, 7, 3), {"chunk": chunk}) for chunk in (1, 2, 3, 7)),
    *((sizes, {"impl": "symmetric", "chunk": 4}) for sizes in (
        (3, 2, 9, 4), (1, 3, 70, 5), (2, 1, 8, 3), (2, 1, 7, 1), (1, 2, 33, 2), (2, 2, 1, 6),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("sizes", "params"), AGREEING, ids=str)
def test_the_forms_agree_and_so_do_their_gradients(sizes, params, causal, dtype, off):
    q, k, v, weights = drawn(*sizes, dtype)
    leaves = [x.requires_grad_() for x in (q, k, v, weights["temperature"])]
    results = []
    for name, how in (("taylor-direct", {}), ("taylor-efficient", params)):
        y = attnprof.attend(name, q, k, v, causal=causal, weights=weights, **how)
        results.append((y, *torch.autograd.grad(y, leaves, torch.cos(y.detach()))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=off, atol=off)


@pytest.mark.parametrize(
    ("function", "features", "n", "d", "chunk"),
    [*((scan, BOXED, n, 3, chunk) for n, chunk in ((5, 2), (4, 2), (3, 8))),
     *((function, SYMMETRIC, 5, d, 2) for function in (sums, scan) for d in (1, 2, 3))],
)  # fmt: skip
def test_each_backward_pass_is_the_derivative(function, features, n, d, chunk):
    rows = [torch.randn(2, n, w, dtype=torch.float64, requires_grad=True) for w in (d, d, d + 1)]
    assert torch.autograd.gradcheck(lambda *x: function(*x, size=chunk, features=features), rows)


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


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_n_by_d_squared_is_held(causal):
    work = Workload(1 << 20, 1, 32, causal=causal, phase="train")
    peak = attnprof.cost("taylor-efficient", work, "core", impl="symmetric").peak()
    assert peak < 4 * (1 << 20) * 32 * 20


def test_symmetric_features_are_fewer_and_cross_earlier():
    step = attnprof.cost("taylor-efficient", Workload(9, 2, 4, 3, phase="decode"), impl="symmetric")
    assert step.state_entries == 3 * 2 * (4 * 5 // 2 + 4 + 1) * (4 + 1)
    first = {}
    for impl in ("boxed", "symmetric"):
        report = attnprof.crossover(*FORMS[:2], 16, kinds=["formula"], impl=impl)
        first[impl] = [record.first_seq_len for record in report.records]
        assert report.records[0].params_b["impl"] == impl
        assert "impl" not in report.records[0].params_a
    assert all(a < b for a, b in zip(first["symmetric"], first["boxed"], strict=True))


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


# -- what the document prints ---------------------------------------------------------------


def printed(name, quantity, heads):
    forms = registry.get(name).published()
    return next(f for f in forms if f.quantity == quantity and f.heads == heads)


def test_published_forms_of_a_head_are_the_printed_ones():
    """Those of several are claims (tests/papers), crossings are in tests/cli/test_crossover.py."""
    N, d = sympy.symbols("N d")
    expected = {
        ("taylor-direct", "flops"): 4 * N**2 * d + 6 * N**2,
        ("taylor-direct", "peak_entries"): d * N + 2 * N**2,
        ("taylor-efficient", "flops"): N * (4 * d**3 + 10 * d**2 + 8 * d + 3),
        ("taylor-efficient", "peak_entries"): d**3 + (N + 1) * d**2 + 3 * N * d + N,
    }
    for (name, quantity), form in expected.items():
        got = printed(name, quantity, "one")
        assert sympy.expand(got.formula(Workload(N, 1, d)) - form) == 0
        for one in (got, printed(name, quantity, "any")):
            assert isinstance(one.formula(Workload(1025, 3, 64)), int)
            columns = one.formula(Workload(np.array([5, 7]), 3, 64))
            assert columns[1] == one.formula(Workload(7, 3, 64))
