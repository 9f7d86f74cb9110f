"""Gated delta rule, Kimi delta attention, retention, lightning, GLA, Mamba-2: one recurrence."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.layer_rows import convolved_step, short_convolution
from attnprof.blocks.recurrence import recurrence, unit_rows
from attnprof.costs import COST_FIELDS
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.checks import (
    check_executed,
    check_peak,
    close,
    closed_form,
    drawn,
    executed,
)
from tests.mechanisms.variants import RECURRENT
from tests.oracles.aten import count_layer, count_training

GATES = ("none", "token", "channel")


def looped(q, k, v, g, beta):
    """The definition, token by token: S decays, what it does not know of v is written, q reads."""
    state, out = q.new_zeros(q.shape[0], q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        if g is not None:
            state = state * g[:, t].exp().unsqueeze(-1)
        update = v[:, t]
        if beta is not None:
            update = beta[:, t] * (update - torch.einsum("bd,bde->be", k[:, t], state))
        state = state + torch.einsum("bd,be->bde", k[:, t], update)
        out.append(torch.einsum("bd,bde->be", q[:, t], state))
    return torch.stack(out, 1)


def operands(gate, delta, n=11, dk=3, dv=5, dtype=torch.float64):
    q, k = (torch.nn.functional.normalize(torch.randn(2, n, dk, dtype=dtype), dim=-1) for _ in "qk")
    width = {"none": 0, "token": 1, "channel": dk}[gate]
    g = -torch.rand(2, n, width, dtype=dtype) if width else None
    beta = torch.rand(2, n, 1, dtype=dtype) if delta else None
    return q, k, torch.randn(2, n, dv, dtype=dtype), g, beta


@pytest.mark.parametrize("form", ["chunkwise", "inverse", "recurrent", "parallel"])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("gate", GATES)
def test_every_form_and_its_gradients_are_those_of_the_loop(gate, delta, form):
    for n, rows in ((11, 4), (8, 4), (1, 4), (3, 64)):
        operands_of_run = operands(gate, delta, n)
        leaves = [x.requires_grad_() for x in operands_of_run if x is not None]
        ours = recurrence(*operands_of_run, rows=rows, form=form, by_channel=gate == "channel")
        theirs = looped(*operands_of_run)
        close(ours, theirs)
        weights = torch.randn_like(theirs)
        grads = [torch.autograd.grad((y * weights).sum(), leaves) for y in (ours, theirs)]
        for one, other in zip(*grads, strict=True):
            close(one, other)


@pytest.mark.parametrize("gate", ["token", "channel"])
@pytest.mark.parametrize("delta", [False, True])
def test_gates_that_forget_at_once_do_not_overflow_in_float32(gate, delta):
    q, k, v, g, beta = operands(gate, delta, n=150, dk=16, dtype=torch.float32)
    operands_of_run = (q, k, v, g * 60, beta)  # exp(64 · 30) inside a chunk, were it formed
    leaves = [x.requires_grad_() for x in operands_of_run if x is not None]
    rows = recurrence(*operands_of_run, rows=64, by_channel=gate == "channel")
    wide = [None if x is None else x.detach().double() for x in operands_of_run]
    torch.testing.assert_close(rows.double(), looped(*wide), rtol=1e-4, atol=1e-5)
    rows.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_unit_rows_have_the_gradient_of_their_formula():
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_rows, (x,))
    torch.testing.assert_close(unit_rows(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())


@pytest.mark.parametrize("name", RECURRENT)
def test_a_mask_changes_nothing_of_a_recurrence(name):
    layer, (x,) = attnprof.build(name, 12, 3), drawn((2, 10, 12), 1, torch.float32)
    outputs, counts = [], []
    for causal in (False, True):
        outputs.append(layer(x, causal=causal))
        counts.append(count_training(layer, (x,), causal=causal)["train"].calls)
    assert torch.equal(*outputs)
    assert [call.counts for call in counts[0]] == [call.counts for call in counts[1]]
    for phase, scope in product(("forward", "backward", "train"), ("core", "layer")):
        masked, table = (
            attnprof.cost(name, Workload(10, 3, 4, 2, causal=causal, phase=phase), scope)
            for causal in (True, False)
        )
        assert (masked.total, masked.peak()) == (table.total, table.peak())
        assert (masked.parameters, masked.state_entries) == (table.parameters, table.state_entries)


# -- closed forms ----------------------------------------------------------------------------
def test_a_short_convolution_is_torchs_and_steps_are_its_rows():
    x, w = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    for n in (9, 2):
        padded = torch.nn.functional.pad(x[:, :n].mT, (3, 0))
        theirs = torch.nn.functional.conv1d(padded, w.t().unsqueeze(1), groups=6).mT
        ours = short_convolution(x[:, :n], w)
        close(ours, theirs)
        grads = [torch.autograd.grad(y.square().sum(), leaves) for y in (ours, theirs)]
        close(*grads)
    tail = torch.zeros(2, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        for t, row in enumerate(short_convolution(x, w).unbind(1)):
            step = convolved_step(x[:, t : t + 1], w, tail)
            close(step[:, 0], row)


@pytest.mark.parametrize("phase", ["forward", "train", "decode"])
@pytest.mark.parametrize("name", ["gated-deltanet", "kimi-delta", "mamba2"])
def test_every_tap_costs_as_much_as_the_one_before(name, phase):
    def count(taps):
        table = attnprof.cost(name, Workload(16, 2, 8, 3, phase=phase), conv=taps)
        return np.array(
            [*(getattr(table.total, field) for field in COST_FIELDS), table.state_entries]
        )

    first, second, last = count(4), count(5), count(3_000_000)
    assert (last == first + (second - first) * (3_000_000 - 4)).all()


@pytest.mark.parametrize("name", RECURRENT)
def test_chunks_in_half_precision_count_as_executed(name):
    """Copies of a chunk into float32 lie in rows, whatever they are cut from."""
    shape, more, dtype = (2, 7, 2, 4), {"chunk": 3}, torch.bfloat16
    layer, x = built(name, shape, dtype, **more), inputs(shape, dtype)
    for causal, phase, counts in executed(layer, x, causals=(False,)):
        table = closed_form(name, shape, more, causal=causal, phase=phase, dtype="bfloat16")
        check_executed(table, counts, phase)


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", ["retnet", "gla"])
def test_a_chunks_copies_in_float32_die_before_the_next_ones_are_made(name, phase):
    shape, more, dtype = (2, 7, 4, 4), {"chunk": 3}, torch.bfloat16
    table = closed_form(name, shape, more, causal=True, phase=phase, dtype="bfloat16")
    layer, x = built(name, shape, dtype, **more), inputs(shape, dtype)
    check_peak(table, layer, x, phase, causal=True)


@pytest.mark.parametrize("name", ["lightning", "mamba2"])
def test_outputs_are_normed_and_gated(name):
    layer = attnprof.build(name, 12, 3).double()
    bare = attnprof.build(name, 12, 3, output_gate=False).double()
    weights = layer.state_dict()
    bare.load_state_dict({key: weights[key] for key in bare.state_dict()})
    bare.o_proj, x = torch.nn.Identity(), torch.randn(2, 9, 12, dtype=torch.float64)
    gate, y = layer.gate_proj(x), bare(x)
    norm = partial(torch.nn.functional.rms_norm, normalized_shape=(12,), eps=1e-6)
    before = norm(y * torch.nn.functional.silu(gate))
    expected = before if name == "mamba2" else norm(y) * gate.sigmoid()
    close(layer(x), layer.o_proj(expected))


# -- what others run -------------------------------------------------------------------------
def heads(b=2, n=70, h=3, d=8):
    """(b, n, h, d) as transformers has them."""
    return [torch.randn(b, n, h, d) for _ in range(3)]


def rows_of(x):
    b, n, h, d = x.shape
    return x.transpose(1, 2).reshape(b * h, n, d)


def run(q, k, v, g, beta, **settings):
    operands_of_run = [None if x is None else rows_of(x) for x in (q, k, v, g, beta)]
    b, n, h, _ = q.shape
    return recurrence(*operands_of_run, **settings).view(b, h, n, -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("model", "function", "form"),
    [
        ("qwen3_next", "torch_chunk_gated_delta_rule", "chunkwise"),
        ("qwen3_next", "torch_recurrent_gated_delta_rule", "recurrent"),
        ("kimi_linear", "chunk_kimi_delta_attention", "chunkwise"),
    ],
)
def test_delta_rules_are_those_of_transformers(model, function, form):
    theirs = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    (q, k, v), by_channel = heads(), model == "kimi_linear"
    g, beta = -torch.rand(2, 70, 3, 8 if by_channel else 1), torch.rand(2, 70, 3)
    # recurrent and chunked functions of other libraries take beta and g in other orders: by name
    expected, _ = getattr(theirs, function)(
        q, k, v, g=g if by_channel else g.squeeze(-1), beta=beta, initial_state=None,
        output_final_state=False, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    ours = run(
        unit_rows(q) * 8**-0.5, unit_rows(k), v, g, beta.unsqueeze(-1), rows=16, form=form,
        by_channel=by_channel,
    )  # fmt: skip
    close(ours, expected, 1e-5)


def test_mamba2_is_that_of_transformers():
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    c, b, x = heads()
    steps, rate, skip = torch.randn(2, 70, 3), torch.rand(3), torch.rand(3)
    expected = theirs.mamba2_chunk_scan(
        x, steps, -rate.exp(), b, c, 16, D=skip, dt_bias=torch.ones(3), dt_softplus=True
    )
    spec = registry.get("mamba2", chunk=16)
    core = registry.module_of("mamba2").CORES["mamba2"](
        spec, attnprof.ops.layer.LayerSizes(3, 8, 3, 8)
    )
    with torch.no_grad():
        for name, value in (("rate", rate), ("offset", torch.ones(3)), ("skip", skip)):
            getattr(core, name).copy_(value)
        raised = steps.transpose(1, 2).unsqueeze(-1)
        ours = core(*(y.transpose(1, 2) for y in (c, b, x)), gates={"a": raised}).transpose(1, 2)
    close(ours, expected, 1e-5)


def test_lightning_is_that_of_transformers():
    theirs = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    config = theirs.MiniMaxConfig(
        hidden_size=24, num_attention_heads=3, head_dim=8, num_hidden_layers=4, block_size=16
    )
    layer = theirs.MiniMaxLightningAttention(config, layer_idx=2)
    layer.norm, layer.out_proj = torch.nn.Identity(), torch.nn.Identity()
    layer.output_gate.weight.data.zero_()  # σ(0) = 1/2
    x = torch.randn(2, 70, 24)
    with torch.no_grad():
        expected = 2 * layer(x, None, None)[0]
        qkv = layer.qkv_proj(x).view(2, 70, 3, 24).transpose(1, 2)
        ours = attnprof.attend("lightning", *qkv.split(8, -1), depth=2 / 3)
    close(ours.transpose(1, 2).flatten(2), expected, 1e-5)


SHARED = {"mamba2": "groups", "gated-deltanet": "key_heads"}


@pytest.mark.parametrize("name", SHARED)
def test_fewer_heads_of_queries_and_keys_must_divide_heads(name):
    with pytest.raises(RequestError, match="2 heads of queries and keys do not divide num_heads=3"):
        attnprof.build(name, 12, 3, **{SHARED[name]: 2})


@pytest.mark.parametrize("name", SHARED)
def test_fewer_heads_of_queries_and_keys_are_repeated(name):
    fewer = attnprof.build(name, 32, 4, **{SHARED[name]: 2}).double()
    whole = attnprof.build(name, 32, 4, **{SHARED[name]: 4}).double()
    weights = dict(fewer.state_dict())
    assert weights["q_proj.weight"].shape == (16, 32)
    for letter in "qk":
        heads = weights[f"{letter}_proj.weight"].view(2, 8, 32)
        weights[f"{letter}_proj.weight"] = heads.repeat_interleave(2, 0).view(32, 32)
        for key in {f"{letter}_taps", f"{letter}_shift"} & {*weights}:  # a filter a channel
            heads = weights[key].view(-1, 2, 8)
            weights[key] = (
                heads.repeat_interleave(2, 1).flatten(1).view(*weights[key].shape[:-1], 32)
            )
    whole.load_state_dict(weights)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        close(fewer(x), whole(x))
    for phase in ("forward", "train"):
        work = Workload(9, 4, 8, 2, phase=phase)
        table = attnprof.cost(name, work, **{SHARED[name]: 2})
        assert table.parameters == sum(p.numel() for p in fewer.parameters())
        check_executed(table, count_layer(fewer.float(), x.float(), phase), phase)


def test_the_cost_says_which_form_ran():
    work = Workload(9, 4, 8)
    assert "form: chunkwise, 64 tokens a chunk" in attnprof.cost("gated-deltanet", work).notes
    assert attnprof.cost("retnet", work, impl="parallel").notes == ("form: parallel",)
