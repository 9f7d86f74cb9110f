"""Closed forms against what torch dispatches, operation by operation, and what it holds."""

import pytest
import torch

import attnprof
from attnprof import registry
from attnprof.mechanisms import neural
from tests.mechanisms.cases import (
    SHAPES,
    WORKSPACE,
    built,
    causals,
    inputs,
    names,
    params,
    workload,
)
from tests.mechanisms.checks import (
    check_counts,
    check_executed,
    check_peak,
    check_phases,
    closed_form,
    executed,
    kinds,
)
from tests.mechanisms.variants import BLOCKS, EXTRACTORS, IMPLS, VARIANTS
from tests.oracles.aten import count_layer

DEFAULTS = [(name, shape, {}) for name in registry.names() for shape in SHAPES]


@pytest.mark.parametrize(("name", "shape", "more"), DEFAULTS + VARIANTS, ids=str)
def test_flops_and_bytes_of_each_phase_and_step_are_those_dispatched(name, shape, more):
    check_counts(name, shape, more)


@pytest.mark.parametrize(("name", "shape", "more"), BLOCKS, ids=str)
def test_several_blocks_count_and_hold_what_runs(name, shape, more, monkeypatch):
    monkeypatch.setattr(neural, "CHUNK_ENTRIES", 64)  # chunks of a few rows
    layer, x = check_phases(name, shape, more)
    for causal in causals(name):
        for phase in ("forward", "train"):
            table = closed_form(name, shape, more, causal=causal, phase=phase)
            check_peak(table, layer, x, phase, causal=causal)


#: In half the digits, sums and products have other operands in places.
HALF = [
    ("linear", (2, 519, 2, 12), {}), ("performer", (2, 519, 2, 12), {"num_features": 6}),
    ("performer", (2, 519, 2, 12), {"num_features": 6, "features": "elu"}),
    ("nystromformer", (2, 9, 2, 4), {"num_landmarks": 4}),
    *((name, (2, 70, 1, 4), {"impl": impl}) for name, impl in IMPLS),
    ("differential", (3, 1, 4, 2), {"impl": "separate"}),  # means are of copies in float32
    ("gated-deltanet", (1, 37, 1, 3),
     {"chunk": 3, "conv": None, "output_gate": False, "value_head_dim": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "more"), HALF, ids=str)
def test_half_the_digits_count_and_hold_what_runs(name, shape, more):
    layer, x = built(name, shape, torch.bfloat16, **more), inputs(shape, torch.bfloat16)
    causal = causals(name)[-1]
    for phase in ("forward", "train"):
        how = {"phase": phase, "causal": causal, "dtype": "bfloat16"}
        table = closed_form(name, shape, more, **how)
        check_executed(table, count_layer(layer, x, phase, causal=causal), phase)
        if name != "nystromformer" and (phase == "forward" or name not in EXTRACTORS):
            check_peak(table, layer, x, phase, causal=causal)


@pytest.mark.parametrize("name", names(attend=True))
def test_flops_of_a_core_are_those_dispatched(name):
    b, n, h, d = shape = SHAPES[1]
    q, k, v = (torch.randn(b, h, n, d) for _ in range(3))
    core = built(name, shape).core
    for causal, phase, counts in executed(core, q, k, v, causals=causals(name)):
        work = workload(shape, causal=causal, phase=phase)
        cost = attnprof.cost(name, work, "core", **params(name)).total
        assert not counts.unknown
        assert (phase, causal, kinds(cost)) == (phase, causal, counts.by_kind())


@pytest.mark.parametrize("name", registry.names())
def test_the_other_bias_counts_as_executed(name):
    """Than the default, which the first test has."""
    check_phases(name, SHAPES[1], {"bias": not registry.get(name, **params(name)).bias})


@pytest.mark.parametrize("name", [n for n in names(attend=True) if n != "differential"])
def test_biases_of_heads_of_one_entry_are_added_apart(name):
    """Torch adds a bias while it multiplies only where rows lie one after the other."""
    shape, more = (2, 9, 3, 1), {"bias": True}
    layer, x = check_phases(name, shape, more)
    table = closed_form(name, shape, more)
    if name not in WORKSPACE:
        check_peak(table, layer, x)


@pytest.mark.parametrize("name", names(cross=True))
def test_cross_attention_counts_as_executed(name):
    shape = SHAPES[1]
    layer = built(name, shape)
    context = torch.randn(shape[0], 9, shape[2] * shape[3], requires_grad=True)
    for phase in ("forward", "train"):
        counts = count_layer(layer, inputs(shape), phase, context=context)
        context.grad = None
        work = workload(shape, kv_seq_len=9, phase=phase)
        check_executed(attnprof.cost(name, work, **params(name)), counts, phase)
