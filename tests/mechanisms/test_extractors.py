"""The Extractors against loops over their definitions and against the tables of document 002."""

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from attnprof.mechanisms.extractors import FFT_FROM
from attnprof.ops.functional import padded_length
from tests.mechanisms.checks import close
from tests.mechanisms.variants import EXTRACTORS, IMPLS

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
    *((name, {part: True}, (2, 9, 3)) for name in EXTRACTORS[:3]
      for part in ("extract_only", "bias")),
    *((name, {"output": False}, (2, 9, 3)) for name in EXTRACTORS[:3]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "sizes"), CASES, ids=str)
def test_each_implementation_and_its_gradients_are_those_of_the_definition(name, params, sizes):
    layer, x = built(name, *sizes, **params)
    leaves, grad = [x.requires_grad_(), *layer.parameters()], torch.randn(x.shape, dtype=x.dtype)
    rows = layer(x), definition(layer, x)
    close(*rows, 1e-10)
    for ours, theirs in zip(*(torch.autograd.grad(y, leaves, grad) for y in rows), strict=True):
        close(ours, theirs, 1e-10)
    work = Workload(len(layer.weight), 1, x.shape[-1])
    entries = sum(p.numel() for p in layer.parameters())
    assert registry.get(name, **params).parameters(work) == entries


@pytest.mark.parametrize("name", EXTRACTORS)
def test_an_input_longer_than_the_window_is_refused_with_the_length_to_build_for(name):
    layer, x = built(name, 1, 6, 2, window=5)
    with pytest.raises(RequestError, match="window of 5 tokens and got 6: build it with seq_len=6"):
        layer(x)
    state = layer.init_state(1)
    for t in range(5):
        _, state = layer.step(x[:, t], state)
    with pytest.raises(RequestError, match="got 6"):
        layer.step(x[:, 5], state)


# -- what it costs ------------------------------------------------------------------------------
TOTALS = {"she": 278_888_448, "he": 14_647_296, "we": 10_469_376, "me": 2_097_152}
PARAMETERS = {"she": 2_129_920, "he": 65_536, "we": 49_152, "me": 128}


@pytest.mark.parametrize("name", EXTRACTORS)
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


@pytest.mark.parametrize("name", [*EXTRACTORS, "standard"])
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


@pytest.mark.parametrize("name", ["he", "we", "me"])
def test_auto_takes_the_form_of_fewer_flops(name):
    def flops(impl, n):
        return attnprof.cost(name, Workload(n, 1, 4, 64), impl=impl).flops

    for n in (*range(1, 80), 128, 129, 1000, 4096, 65_536):
        assert flops("auto", n) == flops("fft" if n >= FFT_FROM else "direct", n)
        assert flops("auto", n) <= 1.01 * min(flops("fft", n), flops("direct", n))


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
