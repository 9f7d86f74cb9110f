"""The Extractors against loops over their definitions and against the tables of document 002."""

from itertools import pairwise

import numpy as np
import pytest
import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.causal_convolution import causal_convolution
from attnprof.errors import RequestError
from attnprof.mechanisms.extractors import FFT_FROM
from attnprof.ops.functional import padded_length
from tests.mechanisms.checks import check_executed, check_gradients, close, held
from tests.oracles.aten import count_layer

NAMES = ("she", "he", "we", "me")
IMPLS = [(name, impl) for name in NAMES for impl in registry.get(name).allowed["impl"]]
N, H, D = sympy.symbols("n h d", positive=True)


def built(name, b, n, d, window=None, **params):
    torch.manual_seed(n + d)
    layer = attnprof.build(name, d, 1, window or n, **params).double()
    return layer, torch.randn(b, n, d, dtype=torch.float64)


def definition(layer, x):
    """Equations 23 to 29 of document 002, one weight and one token at a time."""
    weights, rows = layer.weight, x
    if "in_proj" in layer.maps:
        rows = layer.in_proj(x)
    extracted = torch.zeros_like(x)
    for i in range(x.shape[1]):
        for j in range(i + 1):
            weight, row = weights[i - j], rows[:, j]
            extracted[:, i] += row @ weight if weight.dim() == 2 else row * weight
    if "adj_proj" not in layer.maps:
        return extracted
    adjusted = layer.adj_proj(x) * extracted
    return layer.out_proj(adjusted) if "out_proj" in layer.maps else adjusted


# -- the function -------------------------------------------------------------------------------
#: names, parameters, sizes (the window may be longer than the input)
CASES = [
    *((name, {"impl": impl}, shape) for name, impl in IMPLS for shape in (
        (3, 7, 4), (1, 1, 1), (2, 1, 3), (1, 17, 1), (3, 67, 2), (2, 5, 3, 9),
    )),
    *((name, {part: True}, (2, 9, 3)) for name in ("she", "he", "we")
      for part in ("extract_only", "bias")),
    *((name, {"output": False}, (2, 9, 3)) for name in ("she", "he", "we")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "sizes"), CASES, ids=str)
def test_each_implementation_is_the_definition(name, params, sizes):
    layer, x = built(name, *sizes, **params)
    close(layer(x), definition(layer, x), 1e-10)
    work = Workload(len(layer.weight), 1, x.shape[-1])
    entries = sum(p.numel() for p in layer.parameters())
    assert registry.get(name, **params).parameters(work) == entries


@pytest.mark.parametrize("name", NAMES)
def test_an_input_longer_than_the_window_is_refused_with_the_length_to_build_for(name):
    layer, x = built(name, 1, 6, 2, window=5)
    with pytest.raises(RequestError, match="window of 5 tokens and got 6: build it with seq_len=6"):
        layer(x)
    state = layer.init_state(1)
    for t in range(5):
        _, state = layer.step(x[:, t], state)
    with pytest.raises(RequestError, match="got 6"):
        layer.step(x[:, 5], state)


def test_unknown_implementations_are_refused_with_those_there_are():
    with pytest.raises(RequestError, match="she has no impl 'fft': possible: auto, products"):
        registry.get("she", impl="fft")
    with pytest.raises(RequestError, match="did you mean fft"):
        registry.get("we", impl="ftt")


@pytest.mark.parametrize("n", [6, 70])
@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_no_row_sees_later_tokens_or_other_samples(name, impl, n):
    layer, x = built(name, 3, n, 2, impl=impl)
    other = x.clone()
    other[1, n // 2 :] += 1
    with torch.no_grad():
        y, z = layer(x), layer(other)
        assert torch.equal(y, layer(x, causal=True))
    for a, b in ((y[1, : n // 2], z[1, : n // 2]), (y[0], z[0]), (y[2], z[2])):
        close(a, b)
    assert (y[1, n // 2 :] - z[1, n // 2 :]).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_gradients_are_those_of_the_function(name, impl):
    check_gradients(*built(name, 2, 5, 2, impl=impl), (False,), parameters=True)


@pytest.mark.parametrize("n", [19, 70])
@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_gradients_over_several_chunks_are_autograds_own(name, impl, n):
    layer, x = built(name, 2, n, 2, impl=impl)
    grad = torch.randn(x.shape, dtype=x.dtype)
    wanted = torch.autograd.grad(
        definition(layer, x.requires_grad_()), [x, *layer.parameters()], grad
    )
    got = torch.autograd.grad(layer(x), [x, *layer.parameters()], grad)
    for a, b in zip(got, wanted, strict=True):
        close(a, b, 1e-10)


@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_half_precision_stays_near_double(name, impl):
    layer, x = built(name, 2, 66, 4, impl=impl)
    with torch.no_grad():
        wanted = layer(x)
        got = layer.bfloat16()(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_a_compiled_layer_is_the_layer():
    layer, x = built("he", 2, 9, 4, impl="fft")  # short sequences take the other one by themselves
    torch.compiler.reset()  # the layers compiled before this one count against a limit
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_the_rows_of_the_forward_pass_with_a_state_that_does_not_grow(name):
    layer, x = built(name, 3, 66, 4)
    state = layer.init_state(3)
    with torch.no_grad():
        for t, row in enumerate(layer(x).unbind(1)):
            y, state = layer.step(x[:, t], state)
            close(y, row, 1e-10)
            assert state.rows.shape == (3, 66, 4)
            entries = attnprof.cost(name, Workload(t + 1, 1, 4, 3, phase="decode")).state_entries
            assert entries == state.rows[:, -state.length :].numel()


# -- what it costs ------------------------------------------------------------------------------
TOTALS = {"she": 278_888_448, "he": 14_647_296, "we": 10_469_376, "me": 2_097_152}
PARAMETERS = {"she": 2_129_920, "he": 65_536, "we": 49_152, "me": 128}
QUANTITIES = ("multiplications", "additions", "divisions", "exponentials")


@pytest.mark.parametrize("name", NAMES)
def test_table_7_comes_out_to_the_unit(name):
    spec = registry.get(name)
    for heads in (1, 32):
        table = spec.definition(Workload(128, heads, 128 // heads, causal=True))
        assert (table.operations, table.parameters) == (TOTALS[name], PARAMETERS[name])


def defined(spec, quantity, workload):
    """A quantity of the definition in the tables' convention."""
    table = spec.definition(workload)
    if quantity == "parameters":
        return table.parameters
    total = table.total
    value = getattr(total, quantity)
    return value - total.dot_outputs - total.reduction_outputs if quantity == "additions" else value


@pytest.mark.parametrize("name", [*NAMES, "standard"])
def test_printed_forms_are_the_definitions_but_for_the_misprint(name):
    spec = registry.get(name, bias=False)
    forms = [form for form in spec.published() if form.document == "002"]
    assert [form.phase for form in forms] == ["forward"] * 5 + ["decode"] * 4
    for form in forms:
        w = Workload(N, H, D, causal=form.phase == "forward", phase=form.phase)
        wanted = defined(spec, form.quantity, w)
        wrong = 0
        if (name, form.source, form.quantity) == ("standard", "002-T5", "additions"):
            wrong = -N * H + N - 1 + H
        assert sympy.expand(form.formula(w) - wanted - wrong) == 0
        for n, h, d in ((5, 1, 3), (128, 4, 32)):
            sizes = w.with_(seq_len=n, num_heads=h, head_dim=d)
            assert form.formula(sizes) == form.formula(w).subs({N: n, H: h, D: d})


@pytest.mark.parametrize("name", [*NAMES, "standard"])
def test_decoding_sums_to_training(name):
    spec = registry.get(name, bias=False)
    whole = Workload(N, 1, D, causal=True)
    for quantity in QUANTITIES:
        step = sympy.sympify(defined(spec, quantity, Workload(N, 1, D, phase="decode")))
        summed = sympy.summation(step, (N, 1, N))
        assert sympy.expand(summed - defined(spec, quantity, whole)) == 0


@pytest.mark.parametrize("shape", [(1, 100, 6), (3, 131, 4), (2, 1, 5), (1, 7, 1)], ids=str)
@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_counts_bytes_and_peaks_are_what_torch_runs(name, impl, shape):
    b, n, d = shape
    layer, x = (part.float() for part in built(name, *shape, impl=impl))
    for phase in ("forward", "train"):
        cost = attnprof.cost(name, Workload(n, 1, d, b, phase=phase), impl=impl)
        check_executed(cost, count_layer(layer, x, phase), phase)
    assert attnprof.cost(name, Workload(n, 1, d, b), impl=impl).peak() == held(layer, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize(("name", "impl"), IMPLS)
def test_peaks_of_other_formats_are_the_allocators(name, impl, dtype):
    layer, x = (part.to(getattr(torch, dtype)) for part in built(name, 2, 70, 4, impl=impl))
    cost = attnprof.cost(name, Workload(70, 1, 4, 2, dtype=dtype), impl=impl)
    assert cost.peak() == held(layer, x)


@pytest.mark.parametrize("n", [33, 1025, 8193])
@pytest.mark.parametrize(("name", "impl"), [pair for pair in IMPLS if pair[1] != "auto"])
def test_products_are_those_torchs_counter_sees(name, impl, n):
    if (name, impl) == ("she", "direct"):
        n = min(n, 257)  # one product a token
    with torch.device("meta"):
        layer, x = attnprof.build(name, 2, 1, n, impl=impl), torch.empty(3, n, 2)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    cost = attnprof.cost(name, Workload(n, 1, 2, 3), impl=impl)
    assert counter.get_total_flops() == cost.matmul_flops


@pytest.mark.parametrize("name", ["he", "we", "me"])
def test_auto_takes_the_form_of_fewer_flops(name):
    def flops(impl, n):
        return attnprof.cost(name, Workload(n, 1, 4, 64), impl=impl).flops

    for n in (*range(1, 80), 128, 129, 1000, 4096, 65_536):
        assert flops("auto", n) == flops("fft" if n >= FFT_FROM else "direct", n)
        assert flops("auto", n) <= 1.01 * min(flops("fft", n), flops("direct", n))


@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_linearly_for_long_inputs(name):
    peaks = [
        attnprof.cost(name, Workload(n, 1, 64, phase=phase)).peak()
        for phase in ("forward", "train")
        for n in (16_384, 32_768, 65_536)
    ]
    for a, b in (*pairwise(peaks[:3]), *pairwise(peaks[3:])):
        assert b / a == pytest.approx(2, rel=0.01)
    assert max(peaks) < 4 << 30


def test_the_fft_is_named_where_it_runs():
    def notes(name, n, **params):
        return attnprof.cost(name, Workload(n, 1, 4), **params).notes

    assert "log2 F" in notes("we", 100)[0]
    assert notes("we", N)
    assert notes("we", FFT_FROM - 1) == notes("we", 100, impl="direct") == notes("she", 100) == ()


def test_the_padded_length_is_a_power_of_two_for_numbers_symbols_and_arrays():
    lengths = [1, 2, 3, 4, 5, 127, 128, 129, 65_536, 65_537]
    numbers = [padded_length(n) for n in lengths]
    assert all(length & (length - 1) == 0 for length in numbers)
    assert all(2 * n <= length < 4 * n for n, length in zip(lengths, numbers, strict=True))
    assert [padded_length(N).subs(N, n) for n in lengths] == numbers
    assert padded_length(np.array(lengths)).tolist() == numbers


def test_a_compiled_convolution_by_frequencies_has_its_gradients():
    x, w = torch.randn(2, 7, 3), torch.randn(7, 3)

    def convolved(x, w):
        return causal_convolution(x, w, flags=(0, 1), block=4, length=16)

    def grads(function):
        operands = [operand.clone().requires_grad_() for operand in (x, w)]
        return torch.autograd.grad(function(*operands).square().sum(), operands)

    torch.compiler.reset()
    compiled = torch.compile(convolved, backend="eager", fullgraph=True)
    torch.testing.assert_close(grads(compiled), grads(convolved))
