"""Checks that several mechanisms' tests share: loops, counts, peaks, steps, gradients."""

import math

import pytest
import torch

import attnprof
from tests.mechanisms.cases import built, inputs, workload
from tests.oracles.aten import KINDS, count, count_core, count_training
from tests.oracles.memory import held

#: bytes of Python numbers that torch wraps on the way, 4 or 8 each; nothing relative on top
SCALARS = 16


def close(ours, theirs, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def drawn(shape, count=3, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype) for _ in range(count)]


def loops(q, k, v, sees=None, sink=None):
    """Softmax of one pair after the other; a row i of q sees all tokens j, or by ``sees(i, j)``."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        visible = [j for j in range(k.shape[2]) if sees is None or sees(i, j)]
        row = q[b, h, i] / math.sqrt(q.shape[-1])
        weights = [math.exp(float(row @ k[b, h // group, j])) for j in visible]
        total = sum(weights) + (0 if sink is None else math.exp(float(sink[h])))
        for weight, j in zip(weights, visible, strict=True):
            out[b, h, i] += weight / total * v[b, h // group, j]
    return out


def kinds(cost):
    return {kind: int(getattr(cost, kind)) for kind in KINDS}


def check_executed(table, seen, *where):
    """A closed form counts what was dispatched: each kind of operation, and bytes."""
    assert not seen.unknown
    assert (*where, kinds(table.total)) == (*where, seen.by_kind())
    assert (*where, table.total.bytes_moved) == (*where, seen.bytes_moved)


def executed(module, *given, causals=(False, True)):
    """With a mask and without: what each phase dispatches."""
    for causal in causals:
        yield causal, "forward", count_core(module, given, "forward", causal=causal)
        for phase, counts in count_training(module, given, causal=causal).items():
            yield causal, phase, counts


def check_phases(name, shape, params, sizes=None, causals=(False, True)):
    """Every phase of a layer executes what the closed form counts; returns it and its input."""
    sizes = sizes or {}
    layer, x = built(name, shape, **params, **sizes), inputs(shape)
    for causal, phase, counts in executed(layer, x, causals=causals):
        work = workload(shape, causal=causal, phase=phase, **sizes)
        check_executed(attnprof.cost(name, work, **params), counts, causal, phase)
    return layer, x


def check_counts(name, shape, params, caches, sizes=None):
    """All phases and steps execute what the closed form counts; ``caches`` are those of a state."""
    layer, x = check_phases(name, shape, params, sizes)
    state = layer.init_state(len(x))
    for t, token in enumerate(x.transpose(0, 1).contiguous()):
        with torch.no_grad():
            counts = count(lambda token=token: layer.step(token, state))
        work = workload(shape, phase="decode", **(sizes or {})).with_(seq_len=t + 1)
        table = attnprof.cost(name, work, **params)
        check_executed(table, counts, t)
        assert (t, table.state_entries) == (t, sum(c.filled.numel() for c in caches(state)))


def check_peak(table, layer, x, phase="forward", **options):
    """The closed form's peak is the allocator's, but for numbers that torch wraps."""
    assert table.peak() == pytest.approx(held(layer, x, phase, **options), abs=SCALARS, rel=0)


def decoded(layer, x):
    """Outputs of ``step`` for every token, and the last state."""
    state, outputs = layer.init_state(x.shape[0]), []
    with torch.no_grad():
        for token in x.unbind(1):
            y, state = layer.step(token, state)
            outputs.append(y)
    return torch.stack(outputs, 1), state


def check_steps(layer, x, atol=1e-12):
    """Steps are the rows of the causal forward pass; returns the last state."""
    rows, state = decoded(layer, x)
    with torch.no_grad():
        close(rows, layer(x, causal=True), atol)
    return state


def check_gradients(layer, x, causals=(True,), parameters=False, **options):
    """Gradients of the input, and of all parameters if asked for, are numerical ones."""
    weights = dict(layer.named_parameters()) if parameters else {}
    leaves = [w.detach().clone().requires_grad_() for w in (x, *weights.values())]
    for causal in causals:

        def run(x, *values, causal=causal):
            named = dict(zip(weights, values, strict=True))
            return torch.func.functional_call(layer, named, (x, causal))

        assert torch.autograd.gradcheck(run, leaves, **options)


def split(more):
    """Sizes of a workload apart from parameters of a mechanism."""
    sizes = {name: more[name] for name in more if name in ("num_kv_heads", "value_head_dim")}
    return sizes, {name: more[name] for name in more if name not in sizes}


def check_forms(layer, x, specs, *, causal):
    """Outputs and gradients of a layer are the same by each of several specs."""
    results = []
    for spec in specs:
        layer.spec = spec
        if hasattr(layer, "core"):
            layer.core.spec = spec
        row = x.clone().requires_grad_()
        y = layer(row, causal=causal)
        y.square().sum().backward()
        results.append((y.detach(), row.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
