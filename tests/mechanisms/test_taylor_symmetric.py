"""TaylorShift's symmetric features: the direct form's values, exact counts, a smaller state."""

import pytest
import sympy
import torch

import attnprof
from attnprof import Workload
from attnprof.blocks.taylor import SYMMETRIC, scan, sums
from attnprof.errors import RequestError
from tests.mechanisms.checks import check_executed, held
from tests.oracles.aten import count, count_layer
from tests.oracles.evaluate import Evaluator

NAME = "taylor-efficient"
SHAPES = ((3, 9, 2, 4), (1, 70, 3, 5), (2, 8, 1, 3), (2, 7, 1, 1), (1, 33, 2, 2), (2, 1, 2, 6))
PARAMS = {"impl": "symmetric", "chunk": 4}


def asked(shape, **more):
    b, n, h, d = shape
    return Workload(n, h, d, b, **more)


def built(shape):
    torch.manual_seed(0)
    b, n, h, d = shape
    return attnprof.build(NAME, h * d, h, n, **PARAMS), torch.randn(b, n, h * d)


def cost(shape, **more):
    return attnprof.cost(NAME, asked(shape, **more), **PARAMS)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_the_direct_form(shape, causal, dtype, close):
    torch.manual_seed(0)
    b, n, h, d = shape
    leaves = [torch.randn(b, h, n, d, dtype=dtype, requires_grad=True) for _ in range(3)]
    results = []
    for name, params in ((NAME, PARAMS), ("taylor-direct", {})):
        y = attnprof.attend(name, *leaves, causal=causal, **params)
        results.append((y, *torch.autograd.grad(y, leaves, torch.cos(y.detach()))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)


@pytest.mark.parametrize("function", [sums, scan])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_backward_is_the_derivative(function, d):
    torch.manual_seed(0)
    rows = [torch.randn(2, 5, w, dtype=torch.float64, requires_grad=True) for w in (d, d, d + 1)]
    assert torch.autograd.gradcheck(lambda *x: function(*x, size=2, features=SYMMETRIC), rows)


#: Every shape with a mask and without, in phases that take turns.
RUNS = [
    (shape, causal, ("forward", "train")[(place + causal) % 2])
    for place, shape in enumerate(SHAPES)
    for causal in (False, True)
]


@pytest.mark.parametrize(("shape", "causal", "phase"), RUNS, ids=str)
def test_counts_bytes_and_peak_are_those_of_the_run(shape, causal, phase):
    layer, x = built(shape)
    table = cost(shape, causal=causal, phase=phase)
    check_executed(table, count_layer(layer, x, phase, causal=causal))
    peak = held(layer, x, phase, causal=causal)
    assert abs(peak - table.peak()) <= 1e-3 * peak + 64


def test_a_compiled_layer_is_the_layer():
    layer, x = built(SHAPES[2])
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for run in (compiled, layer):
        leaf = x.clone().requires_grad_()
        y = run(leaf, causal=True)
        results.append((y, *torch.autograd.grad(y.square().sum(), leaf)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_the_causal_rows_and_count_as_dispatched(shape):
    layer, x = built(shape)
    state, rows = layer.init_state(shape[0]), []
    with torch.no_grad():
        expected = layer(x, causal=True)
        for t in range(shape[1]):
            token = x[:, t].contiguous()
            counts = count(lambda token=token: rows.append(layer.step(token, state)[0]))
    d, table = shape[3], cost(shape, phase="decode")
    check_executed(table, counts)
    features = d * (d + 1) // 2 + d + 1
    assert table.state_entries == state.sums.numel() == shape[0] * shape[2] * features * (d + 1)
    torch.testing.assert_close(torch.stack(rows, 1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("phase", "scope"),
    [("forward", "core"), ("backward", "layer"), ("train", "core"), ("decode", "layer")],
)
def test_symbols_are_the_numbers(phase, scope):
    n, h, d, b = sympy.symbols("n h d b", positive=True)
    for causal in (False, True):
        w = Workload(n, h, d, b, causal=causal, phase=phase)
        table = attnprof.cost(NAME, w, scope, **PARAMS)
        for shape in SHAPES[:4]:
            exact = attnprof.cost(NAME, asked(shape, causal=causal, phase=phase), scope, **PARAMS)
            value = Evaluator(dict(zip((b, n, h, d), shape, strict=True)))
            assert value(table.flops) == exact.flops
            assert value(table.total.bytes_moved) == exact.total.bytes_moved
            assert max(map(value, table.live())) == exact.peak()


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_n_by_d_squared_is_held(causal):
    n, d = 1 << 20, 32
    w = Workload(n, 1, d, causal=causal, phase="train")
    more = attnprof.cost(NAME, w, "core", impl="symmetric").peak()
    assert more < 4 * n * d * 20


def test_it_crosses_earlier_and_says_its_parameters():
    first = {}
    for impl in ("boxed", "symmetric"):
        report = attnprof.crossover("taylor-direct", NAME, 16, kinds=["formula"], impl=impl)
        first[impl] = [record.first_seq_len for record in report.records]
        assert report.records[0].params_b["impl"] == impl
        assert "impl" not in report.records[0].params_a
    assert all(a < b for a, b in zip(first["symmetric"], first["boxed"], strict=True))


def test_an_unknown_impl_is_refused():
    with pytest.raises(RequestError, match="symmetric"):
        attnprof.build(NAME, 8, 2, impl="symetric")
