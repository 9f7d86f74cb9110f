"""Checks that several mechanisms' tests share: loops, counts, peaks, steps, gradients."""

import math

import pytest
import torch

import attnprof
from attnprof import registry
from attnprof.blocks.cache import tensors_within
from tests.mechanisms.cases import built, causals, inputs, params, workload
from tests.oracles.aten import KINDS, count, count_core, count_training
from tests.oracles.memory import held

#: bytes of Python numbers that torch wraps on the way, 4 or 8 each; nothing relative on top
SCALARS = 16
#: decoding steps that are counted: as many of the first ones, and the last
COUNTED_STEPS = 12


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


def dot(ours, theirs):
    return sum(x * y for x, y in zip(ours, theirs, strict=True))


def mixed(v, weights, floor=0.0):
    """Rows of v by numbers: row i is Σ w v[j] / (Σ w + floor) over its weights, by place j."""
    rows = [sum(w * v[j] for j, w in row.items()) / (sum(row.values()) + floor) for row in weights]
    return torch.stack(rows)


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


def closed_form(name, shape, more, **how):
    """The cost of a layer with these parameters and sizes."""
    sizes = {key: more[key] for key in more if key in ("num_kv_heads", "value_head_dim")}
    settings = {key: more[key] for key in more if key not in sizes}
    work = workload(shape, **sizes, **how)
    return attnprof.cost(name, work, **{**params(name), **settings})


def check_phases(name, shape, more):
    """Every phase of a layer executes what the closed form counts; returns it and its input."""
    layer, x = built(name, shape, **more), inputs(shape)
    for causal, phase, counts in executed(layer, x, causals=causals(name)):
        table = closed_form(name, shape, more, causal=causal, phase=phase)
        check_executed(table, counts, causal, phase)
    assert table.parameters == sum(weight.numel() for weight in layer.parameters())
    return layer, x


def check_counts(name, shape, more):
    """All phases and steps execute what the closed form counts; a state has as many entries."""
    layer, x = check_phases(name, shape, more)
    if not registry.get(name).abilities.decode:
        return
    (b, n, *heads), state = shape, layer.init_state(len(x))
    for t, token in enumerate(x.transpose(0, 1).contiguous(), 1):
        with torch.no_grad():
            if COUNTED_STEPS < t < n:
                layer.step(token, state)
                continue
            counts = count(lambda token=token: layer.step(token, state))
        table = closed_form(name, (b, t, *heads), more, phase="decode")
        check_executed(table, counts, t)
        entries = sum(tensor.numel() for tensor in tensors_within(state))
        assert (t, table.state_entries) == (t, entries)


def check_peak(table, layer, x, phase="forward", **options):
    """The closed form's peak is the allocator's, but for numbers that torch wraps."""
    assert table.peak() == pytest.approx(held(layer, x, phase, **options), abs=SCALARS, rel=0)


def check_steps(layer, x, atol=1e-12):
    """Steps are the rows of the causal forward pass; returns the last state."""
    state, outputs = layer.init_state(x.shape[0]), []
    with torch.no_grad():
        for token in x.unbind(1):
            y, state = layer.step(token, state)
            outputs.append(y)
        close(torch.stack(outputs, 1), layer(x, causal=True), atol)
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


def check_forms(layer, x, specs, *, causal):
    """Outputs and gradients of a layer are the same by each of several specs."""
    results = []
    for spec in specs:
        layer.spec = spec
        if hasattr(layer, "core"):
            layer.core.spec = spec
        layer.zero_grad()
        row = x.clone().requires_grad_()
        y = layer(row, causal=causal)
        y.square().sum().backward()
        weights = [w.grad for w in layer.parameters() if w.grad is not None]
        results.append((y.detach(), row.grad, *weights))
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
