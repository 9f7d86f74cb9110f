"""What every mechanism promises, whatever it computes, for prompts and token by token."""

from dataclasses import fields
from inspect import get_annotations
from typing import ClassVar, get_origin

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.costs import COST_FIELDS
from attnprof.errors import RequestError
from attnprof.mechanisms import neural
from attnprof.mechanisms.standard import Standard
from tests.mechanisms.cases import (
    PARAMS,
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
    SCALARS,
    check_forms,
    check_peak,
    check_steps,
    close,
    closed_form,
    held,
)
from tests.mechanisms.variants import (
    INDEX,
    NEURAL,
    RECURRENT,
    SYMMETRIC,
    VARIANTS,
    forms,
    windows,
)
from tests.oracles.evaluate import Evaluator
from tests.oracles.memory import allocator_peak

#: Those whose rows attend to places that they pick.
PICKING = ("moba", "nsa", "topk", "dsa")
SIZES = ("batch_size", "seq_len", "num_heads", "head_dim", "num_kv_heads")
SYMBOLS = dict(zip(SIZES, sympy.symbols("b n h d g", positive=True), strict=True))


def scopes(name):
    return ("core", "layer") if registry.get(name).abilities.attend else ("layer",)


def telling_requests(name):
    """Every mask and phase, by turns of the core and the layer around it.

    A backward pass is a part of the training step, whose run it is counted in.
    """
    of = scopes(name)
    pairs = [(c, phase) for c in causals(name) for phase in ("forward", "train")]
    pairs += [(False, "decode")] * registry.get(name).abilities.decode
    return [(*pair, of[place % len(of)]) for place, pair in enumerate(pairs)]


def numbers(table):
    """Everything a table says: all counts, the peak, parameters and state."""
    cost = table.total
    counts = [getattr(cost, field) for field in COST_FIELDS]
    return [*counts, table.peak(), table.parameters, table.state_entries]


def check_sizes(spec, shapes, scope="layer", *, grid=True, **conditions):
    """Symbols, and all shapes in one grid, give what each shape gives by itself.

    Shapes are batch, tokens, heads and head width, and heads of keys where these are fewer.
    """
    asked = SIZES[: len(shapes[0])]

    def count(sizes):
        work = Workload(**dict(zip(asked, sizes, strict=True)), **conditions)
        return numbers(spec.cost(work, scope))

    symbols, columns = count([SYMBOLS[name] for name in asked]), []
    if grid:
        columns = [np.broadcast_to(x, len(shapes)).tolist() for x in count(np.array(shapes).T)]
    for place, shape in enumerate(shapes):
        expected = count(shape)
        value = Evaluator({SYMBOLS[name]: x for name, x in zip(asked, shape, strict=True)})
        of_grid = [column[place] for column in columns] or expected
        for values in ([value(x) for x in symbols], of_grid):
            assert (conditions, scope, shape, values) == (conditions, scope, shape, expected)


FEW = (SHAPES[2], (2, 64, 4, 8), (3, 33, 3, 4))
#: More samples than heads, a length within a block, one that is a block, and one token more.
BESIDE_BLOCKS = (
    (5, 9, 2, 4), (3, 16, 1, 4), (2, 17, 2, 4), (3, 64, 2, 4), (1, 65, 4, 8), (3, 128, 2, 4),
    (4, 257, 2, 4), (7, 1, 2, 4), (3, 3, 3, 3),
)  # fmt: skip


@pytest.mark.parametrize(("name", "more"), [
    *((name, {}) for name in registry.names()), *PARAMS.items(), ("taylor-efficient", SYMMETRIC),
])  # fmt: skip
def test_symbols_and_grids_of_sizes_are_the_numbers_one_by_one(name, more):
    """Few tokens by parameters that fit them, sizes within blocks and beside them by default."""
    needed = registry.get(name).decodes_with
    for causal, phase, scope in telling_requests(name):
        shapes = FEW if more or name not in PARAMS else ()
        if not more and phase != "forward":  # which training has, too
            shapes += BESIDE_BLOCKS
        steps = {needed: PARAMS[name][needed]} if needed and phase == "decode" else {}
        if shapes:
            spec = registry.get(name, **{**steps, **more})
            check_sizes(spec, shapes, scope, causal=causal, phase=phase)


@pytest.mark.parametrize("name", registry.names())
def test_a_large_parameter_is_counted_at_once_or_refused(name):
    for parameter in [item.name for item in fields(registry.get(name)) if "int" in str(item.type)]:
        try:
            table = registry.get(name, **{parameter: 2000}).cost(workload((2, 16, 4, 8)))
        except RequestError:
            continue
        assert len(table.stages) < 1000, parameter


@pytest.mark.parametrize(("name", "more"), [("gated-deltanet", "key_heads"), ("mamba2", "groups")])
def test_symbols_hold_where_no_head_of_keys_is_repeated(name, more):
    spec = registry.get(name, **{more: 2})
    for phase in ("forward", "train", "decode"):
        check_sizes(spec, [(3, 9, heads, 4) for heads in (2, 4, 6)], grid=False, phase=phase)


@pytest.mark.parametrize("name", ["nsa", "dsa", "topk"])
def test_symbols_hold_where_blocks_divide_the_tokens_and_where_they_do_not(name):
    more = {"block": 4} if name == "nsa" else {"index_block": 4}
    spec = registry.get(name, **{**params(name), **more}, impl="dense-mask")
    shapes = [(b, n, h, 6) for n in (8, 9) for h, b in ((4, 1), (1, 3))]
    for causal, phase, scope in telling_requests(name):
        check_sizes(spec, shapes, scope, grid=False, causal=causal, phase=phase)


@pytest.mark.parametrize("name", names(grouped_kv=True))
def test_symbols_of_grouped_key_heads_are_the_numbers_too(name):
    spec = registry.get(name, **params(name))
    shapes = [(1, 5, 4, 2, 2), (3, 6, 4, 4, 1), (1, 5, 3, 2, 3)]
    for causal, phase, scope in telling_requests(name):
        check_sizes(spec, shapes, scope, grid=False, causal=causal, phase=phase)


@pytest.mark.parametrize(
    ("shape", "phase"),
    [((1, 129, 2, 16), "forward"), ((3, 65, 4, 8), "forward"), ((3, 65, 4, 8), "train"),
     ((2, 64, 1, 32), "train")],
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
def test_the_same_seed_builds_the_same_layer_and_core(name):
    x, rows, outputs = inputs(SHAPES[1]), torch.randn(3, 2, 2, 9, 4), []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(built(name, SHAPES[1])(x))
    assert torch.equal(*outputs)
    if registry.get(name).abilities.attend:
        cores = [attnprof.attend(name, *rows, seed=5, **params(name)) for _ in range(2)]
        assert torch.equal(*cores)


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


def test_a_decoding_step_has_no_key_length_of_its_own():
    with pytest.raises(RequestError, match=r"leave --kv-seq \(kv_seq_len\) or --phase decode out"):
        Workload(10, 8, 64, kv_seq_len=100, phase="decode")


# -- token by token ---------------------------------------------------------------------------
DECODED = [(name, shape, {}) for name in names(decode=True) for shape in (SHAPES[0], (2, 70, 2, 4))]
DECODED += [case for case in VARIANTS if case[0] in names(decode=True)]


@pytest.mark.parametrize(("name", "shape", "more"), DECODED, ids=str)
def test_steps_are_the_rows_of_the_causal_forward_pass(name, shape, more):
    layer, x = built(name, shape, torch.float64, **more), inputs(shape, torch.float64)
    check_steps(layer, x, 1e-10)


@pytest.mark.parametrize("name", names(decode=True))
def test_a_token_keeps_its_shape(name):
    layer, x = built(name, SHAPES[1]), inputs(SHAPES[1])
    with torch.no_grad():
        flat, _ = layer.step(x[:, 0], layer.init_state(3))
        kept, _ = layer.step(x[:, :1], layer.init_state(3))
    assert flat.shape == (3, 16)
    assert kept.shape == (3, 1, 16)
    assert torch.equal(flat, kept[:, 0])


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
    with torch.no_grad():
        for token in x[:-1]:
            layer.step(token, state)
        peak = allocator_peak(lambda: layer.step(x[-1], state))
    table = closed_form(name, shape, more, phase="decode")
    assert table.peak() == pytest.approx(peak, abs=SCALARS * (name in PICKING), rel=0)


@pytest.mark.parametrize("name", PICKING)
def test_rows_are_picked_of_heads_that_lie_between_others_without_a_copy_of_all(name):
    """Torch copies what index_select takes from a second dimension, if it is no whole tensor."""
    shape, more = (1, 600, 2, 32), {"block": 64, "top": 3} if name == "moba" else {"top": 192}
    more = {"nsa": {"top": 3, "block": 64, "pool": 32, "stride": 16}}.get(name, more)
    layer, x = built(name, shape, **more), inputs(shape)
    check_peak(closed_form(name, shape, more, causal=True), layer, x, causal=True)


#: Mechanisms of several forms, each at several blocks of rows or chunks.
FORMS = [
    ("topk", (1, 600, 2, 4), {"top": 128, **INDEX}),  # 32 rows a block
    ("nsa", (2, 200, 4, 4), {"num_kv_heads": 2, **windows(4, 16, 8, 4, 20)}),
    *((name, (2, 37, 3, 4), {"chunk": 16}) for name in RECURRENT),
    *(("neural", (2, 21, 3, 4), more) for more in NEURAL),
]


@pytest.mark.parametrize(("name", "shape", "more"), FORMS, ids=str)
def test_all_forms_and_their_gradients_are_one(name, shape, more, monkeypatch):
    monkeypatch.setattr(neural, "CHUNK_ENTRIES", 64)  # chunks of a few rows
    layer, x = built(name, shape, torch.float64, **more), inputs(shape, torch.float64)
    specs = [layer.spec.with_params({"impl": impl}) for impl in forms(name)]
    for causal in causals(name):
        check_forms(layer, x, specs, causal=causal)


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


@pytest.mark.parametrize("name", registry.names())
def test_parameters_are_listed_as_classes_declare_them_the_base_first(name):
    spec = registry.get(name)
    bases = map(get_annotations, reversed(type(spec).__mro__))
    declared = dict.fromkeys(
        parameter
        for annotations in bases
        for parameter, kind in annotations.items()
        if get_origin(kind) is not ClassVar
    )
    assert [*spec.params] == [*declared]


def test_without_a_step_the_state_is_all_keys_and_values():
    endless, fixed = registry.get("sparse"), registry.get("sparse", stride=3)
    assert (endless.decodes, fixed.decodes) == (False, True)
    work = workload((2, 9, 3, 4))
    assert endless.state_entries(work) == fixed.state_entries(work) == 2 * 9 * 3 * (4 + 4)


def test_an_error_of_the_first_state_is_not_taken_for_a_mechanism_without_steps():
    class Faulty(Standard):
        def init_state(self, sizes, cache):
            raise RequestError("no cache of this kind")

    with pytest.raises(RequestError, match="no cache of this kind"):
        Faulty().state_entries(workload((2, 9, 3, 4)))


#: Parameters that a mechanism cannot have, and what is said of them.
REFUSED = [
    ("neural", {"impl": "fast"}, "factored, naive"), ("neural", {"depth": 3}, "possible: 1"),
    ("neural", {"down_dim": 0}, "at least 1"), ("neural", {"hidden_dim": 0}, "at least 1"),
    ("performer", {"num_features": 0}, "num_features"),
    ("performer", {"features": "relu"}, "features"),
    ("longformer", {"impl": "magic"}, "blocks, dense-mask"),
    ("longformer", {"window": 0}, "at least 1"), ("sparse", {"pattern": "x"}, "strided, fixed"),
    ("reformer", {"num_buckets": 3}, "even"), ("reformer", {"bucket_size": 0}, "at least 1"),
    ("taylorshift", {"switch": "formulae"}, "switch"), ("taylorshift", {"chunk": 0}, "chunk"),
    ("taylor-efficient", {"chunk": 0}, "chunk"),
    ("taylor-efficient", {"impl": "symetric"}, "symmetric"),
    *(("nsa", wrong, "for example")
      for wrong in ({"pool": 24}, {"block": 40}, {"pool": 128}, {"top": 2})),
    ("she", {"impl": "fft"}, "she has no impl 'fft': possible: auto, products"),
    ("we", {"impl": "ftt"}, "did you mean fft"), ("mla", {"rope_dim": 3}, "for example rope_dim=4"),
    ("dsa", {"step_tokens": 2}, "dsa has no parameter 'step_tokens'"),
    *((f"gqa@{number}", {}, "at most 4 digits")
      for number in ("1000000000", "9" * 5000, "0", "x", "pattern=3:1")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "says"), REFUSED)
def test_what_a_mechanism_cannot_be_is_refused_with_what_to_type(name, wrong, says):
    with pytest.raises(RequestError, match=says):
        registry.get(name, **wrong)


@pytest.mark.parametrize(("name", "says"), [("sparse", "stride=128"), ("reformer", "num_buckets")])
def test_a_step_that_needs_a_parameter_says_which(name, says):
    with pytest.raises(RequestError, match=says):
        attnprof.cost(name, Workload(9, 1, 4, phase="decode"))
    with pytest.raises(RequestError, match=says):
        attnprof.build(name, 8, 2).init_state(1)


# -- layers of several mechanisms; what they cost is in tests/cli/test_released_layers.py ---------
def test_a_hybrid_has_no_core_and_needs_a_length_if_one_of_its_layers_does():
    hybrid = "gated-deltanet@3+gqa@1"
    with pytest.raises(RequestError, match="has no queries, keys and values of its own"):
        attnprof.attend(hybrid, *torch.zeros(3, 1, 2, 4, 8))
    assert registry.get("gqa@1+linformer@1").abilities.needs_seq_len
    assert not registry.get(hybrid).abilities.needs_seq_len
