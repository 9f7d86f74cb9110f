"""What every mechanism promises, whatever it computes, for prompts and token by token."""

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.costs import COST_FIELDS
from attnprof.errors import RequestError
from tests.mechanisms.cases import (
    SHAPES,
    WORKSPACE,
    built,
    causals,
    inputs,
    names,
    params,
    phases,
    workload,
)
from tests.mechanisms.checks import SCALARS, check_peak, check_steps, close, decoded, held, split
from tests.oracles.evaluate import Evaluator
from tests.oracles.memory import allocator_peak

#: Those whose rows attend to places that they pick.
PICKING = ("moba", "nsa", "topk", "dsa")
SIZES = ("seq_len", "num_heads", "head_dim", "batch_size")
SYMBOLS = dict(zip(SIZES, sympy.symbols("n h d b", positive=True), strict=True))


def scopes(name):
    return ("core", "layer") if registry.get(name).abilities.attend else ("layer",)


def telling_requests(name):
    """Every mask with every phase, decoding too, by turns of the core and the layer around it."""
    of = scopes(name)
    pairs = phases(name) + [(False, "decode")] * registry.get(name).abilities.decode
    return [(*pair, of[place % len(of)]) for place, pair in enumerate(pairs)]


def numbers(table):
    """Everything a table says: all counts, the peak, parameters and state."""
    cost = table.total
    return [
        *(getattr(cost, field) for field in COST_FIELDS),
        table.peak(),
        table.parameters,
        table.state_entries,
    ]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", registry.names())
def test_parameters_are_those_of_the_built_module(name, shape, bias):
    layer = built(name, shape, bias=bias)
    spec = registry.get(name, **params(name), bias=bias)
    assert spec.parameters(workload(shape)) == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("name", registry.names())
def test_symbols_and_grids_of_sizes_are_the_numbers_one_by_one(name):
    shapes = (SHAPES[2], (2, 64, 4, 8), (3, 33, 3, 4))
    batches, lengths, heads, widths = np.array(shapes).T
    for causal, phase, scope in telling_requests(name):
        conditions = {"causal": causal, "phase": phase}

        def count(*sizes, conditions=conditions, scope=scope):
            return numbers(
                attnprof.cost(name, Workload(*sizes, **conditions), scope, **params(name))
            )

        symbols, columns = count(*SYMBOLS.values()), count(lengths, heads, widths, batches)
        table = [np.broadcast_to(column, len(shapes)).tolist() for column in columns]
        for shape, *row in zip(shapes, *table, strict=True):
            b, n, h, d = shape
            value = Evaluator(dict(zip(SYMBOLS.values(), (n, h, d, b), strict=True)))
            expected = count(n, h, d, b)
            assert (causal, phase, scope, shape, row) == (causal, phase, scope, shape, expected)
            got = [value(x) for x in symbols]
            assert (causal, phase, scope, shape, got) == (causal, phase, scope, shape, expected)


@pytest.mark.parametrize("name", names(grouped_kv=True))
def test_symbols_of_grouped_key_heads_are_the_numbers_too(name):
    kv_heads = sympy.Symbol("g", positive=True)
    for causal, phase, scope in telling_requests(name):
        symbolic = Workload(**SYMBOLS, num_kv_heads=kv_heads, causal=causal, phase=phase)
        table = numbers(attnprof.cost(name, symbolic, scope, **params(name)))
        for (b, n, h, d), g in (((1, 5, 4, 2), 2), ((3, 6, 4, 4), 1), ((1, 5, 3, 2), 3)):
            sizes = zip((*SYMBOLS.values(), kv_heads), (n, h, d, b, g), strict=True)
            value = Evaluator(dict(sizes))
            work = workload((b, n, h, d), num_kv_heads=g, causal=causal, phase=phase)
            expected = numbers(attnprof.cost(name, work, scope, **params(name)))
            got = [value(x) for x in table]
            assert (causal, phase, scope, b, g, got) == (causal, phase, scope, b, g, expected)


@pytest.mark.parametrize("name", registry.names())
def test_training_is_forward_and_backward_together(name):
    for causal in causals(name):
        forward, backward, train = (
            attnprof.cost(name, workload(SHAPES[1], causal=causal, phase=phase), **params(name))
            for phase in ("forward", "backward", "train")
        )
        assert forward.flops + backward.flops == train.flops
        assert train.peak() >= max(forward.peak(), backward.live_before)


@pytest.mark.parametrize(
    ("shape", "phase"),
    [((1, 129, 2, 16), "forward"),
     *((shape, phase) for shape in ((3, 65, 4, 8), (2, 64, 1, 32))
       for phase in ("forward", "train"))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", [n for n in registry.names() if n not in WORKSPACE])
def test_the_peak_is_the_allocators(name, shape, phase):
    layer, x = built(name, shape), inputs(shape)
    for causal in causals(name):
        cost = attnprof.cost(name, workload(shape, causal=causal, phase=phase), **params(name))
        check_peak(cost, layer, x, phase, causal=causal)


@pytest.mark.parametrize("name", WORKSPACE)
def test_a_peak_that_leaves_out_a_workspace_says_so_and_is_below(name):
    shape = (2, 65, 4, 8)
    table = attnprof.cost(name, workload(shape))
    assert table.peak() <= held(built(name, shape), inputs(shape))
    assert any("workspace" in note for note in table.notes)


@pytest.mark.parametrize("name", names(causal=True))
def test_no_row_moves_when_a_later_token_changes(name):
    shape = (2, 9, 2, 4)
    layer, x = built(name, shape, torch.float64), inputs(shape, torch.float64)
    for t in (1, 4, 8):
        changed = x.clone()
        changed[:, t:] = torch.randn_like(changed[:, t:])
        with torch.no_grad():
            before, after = layer(x, causal=True), layer(changed, causal=True)
        close(after[:, :t], before[:, :t])
        assert not torch.allclose(after[:, t], before[:, t])


@pytest.mark.parametrize("name", registry.names())
def test_no_sample_moves_when_another_sample_changes(name):
    shape = (3, 9, 2, 4)
    layer, x = built(name, shape, torch.float64), inputs(shape, torch.float64)
    changed = x.clone()
    changed[1] = torch.randn_like(changed[1])
    with torch.no_grad():
        before, after = layer(x), layer(changed)
    close(after[::2], before[::2])
    assert not torch.allclose(after[1], before[1])


@pytest.mark.parametrize("name", registry.names())
def test_the_same_seed_builds_the_same_layer(name):
    x = inputs(SHAPES[1])
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(built(name, SHAPES[1])(x))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("ability", ["causal", "decode", "grouped_kv", "value_width", "cross"])
def test_what_a_mechanism_cannot_do_it_refuses_by_name(ability):
    ask = {
        "causal": {"causal": True},
        "decode": {"phase": "decode"},
        "grouped_kv": {"num_kv_heads": 2},
        "value_width": {"value_head_dim": 7},
        "cross": {"kv_seq_len": 11},
    }[ability]
    for name in names(**{ability: False}):
        with pytest.raises(RequestError, match=name):
            attnprof.cost(name, workload((1, 5, 4, 4), **ask), **params(name))


# -- token by token ---------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [*SHAPES, (2, 70, 2, 4)], ids=str)
@pytest.mark.parametrize("name", names(decode=True))
def test_steps_are_the_rows_of_the_causal_forward_pass(name, shape):
    check_steps(built(name, shape, torch.float64), inputs(shape, torch.float64), 1e-10)


@pytest.mark.parametrize("name", names(decode=True))
def test_a_token_keeps_its_shape(name):
    layer, x = built(name, SHAPES[1]), inputs(SHAPES[1])
    with torch.no_grad():
        flat, _ = layer.step(x[:, 0], layer.init_state(3))
        kept, _ = layer.step(x[:, :1], layer.init_state(3))
    assert flat.shape == (3, 16)
    assert kept.shape == (3, 1, 16)
    assert torch.equal(flat, kept[:, 0])


@pytest.mark.parametrize("name", names(decode=True, grouped_kv=True))
def test_grouped_key_heads_decode_too(name):
    shape = (3, 6, 4, 4)
    layer = built(name, shape, torch.float64, num_kv_heads=2)
    check_steps(layer, inputs(shape, torch.float64), 1e-10)


@pytest.mark.parametrize("shape", [(1, 40, 1, 16), (3, 33, 4, 8)], ids=str)
@pytest.mark.parametrize(
    ("name", "more"),
    [*((n, {}) for n in ("standard", "optimised", "efficient", "super", *PICKING)),
     ("super", {"per_head": True}), ("standard", {"num_kv_heads": 1}),
     ("topk", {"num_kv_heads": 1})],
)  # fmt: skip
def test_the_peak_of_a_step_is_the_allocators(name, more, shape):
    layer, x = built(name, shape, **more), inputs(shape).transpose(0, 1).contiguous()
    state = layer.init_state(shape[0])
    sizes, more = split(more)
    with torch.no_grad():
        for token in x[:-1]:
            layer.step(token, state)
        peak = allocator_peak(lambda: layer.step(x[-1], state))
    work = workload(shape, phase="decode", **sizes)
    table = attnprof.cost(name, work, **{**params(name), **more})
    assert table.peak() == pytest.approx(peak, abs=SCALARS * (name in PICKING), rel=0)


@pytest.mark.parametrize("name", PICKING)
def test_rows_are_picked_of_heads_that_lie_between_others_without_a_copy_of_all(name):
    """Torch copies what index_select takes from a second dimension, if it is no whole tensor."""
    shape, more = (1, 600, 2, 32), {"block": 64, "top": 3} if name == "moba" else {"top": 192}
    more = {"nsa": {"top": 3, "block": 64, "pool": 32, "stride": 16}}.get(name, more)
    layer, x = built(name, shape, **more), inputs(shape)
    table = attnprof.cost(name, workload(shape, causal=True), **{**params(name), **more})
    check_peak(table, layer, x, causal=True)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("name", ["standard", "sdpa", "optimised", "efficient", "super"])
def test_state_entries_are_what_the_caches_hold(name, shape):
    _, state = decoded(built(name, shape), inputs(shape))
    expected = attnprof.cost(name, workload(shape, phase="decode")).state_entries
    caches = {id(cache): cache for cache in vars(state).values()}.values()
    assert sum(cache.filled.numel() for cache in caches) == expected


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", names(decode=True))
def test_operations_of_all_steps_are_those_of_the_causal_forward_pass(name, heads):
    spec = registry.get(name, **params(name))
    shape = (2, 12, heads, 4)
    whole = spec.definition(workload(shape, causal=True)).operations
    steps = [
        spec.definition(workload((2, t, heads, 4), phase="decode")).operations
        for t in range(1, shape[1] + 1)
    ]
    assert sum(steps) == whole
