"""Latent attention over picked rows: against the dense form, latent attention, and counts."""

import pytest
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.cases import built, inputs
from tests.mechanisms.test_latent import check_counts
from tests.mechanisms.test_topk import picked

INDEX = {"index_heads": 16, "index_dim": 4}
SIZES = [
    {"kv_rank": 3, "rope_dim": 4, "top": 4}, {"kv_rank": 5, "rope_dim": 0, "top": 2},
    {"q_rank": 3, "kv_rank": 4, "rope_dim": 2, "top": 3, "nope_dim": 3, "value_dim": 5},
]  # fmt: skip
FORMS = ("gathered", "dense-mask")


def ranked(layer, x):
    """The places that each row picks: scores of layer-normed keys, by torch's own norm."""
    spec = layer.spec
    source = x if spec.q_rank is None else layer.q_down(x)
    if spec.q_rank is not None:
        source = source / (source.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.q_norm
    keys = torch.nn.functional.layer_norm(
        layer.index_k(x), (spec.index_dim,), layer.index_norm, layer.index_shift, 1e-6
    )
    q = layer.index_q(source).view(len(x), spec.index_heads, spec.index_dim)
    return picked(q, keys, layer.index_shares(x), spec.top, causal=True)


@pytest.mark.parametrize("params", SIZES, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_a_row_is_that_of_latent_attention_over_its_picks(impl, params):
    """A row alone with the rows that it picks, by expanded latent attention, in place of a loop."""
    shape = (2, 7, 3, 4)
    layer = built("dsa", shape, torch.float64, impl=impl, **INDEX, **params)
    latent = {name: params[name] for name in params if name != "top"}
    dense = attnprof.build("mla", 12, 3, impl="expanded", **latent).double()
    dense.load_state_dict(
        {name: x for name, x in layer.state_dict().items() if "index" not in name}
    )
    x = inputs(shape, torch.float64)
    with torch.no_grad():
        rows, state = layer(x, causal=True), layer.init_state(2)
        for t, token in enumerate(x.unbind(1)):
            y, state = layer.step(token, state)
            torch.testing.assert_close(y, rows[:, t], rtol=0, atol=1e-12)
            for sample in range(2):
                places = sorted({*ranked(layer, x[sample])[t], t})
                own = t in ranked(layer, x[sample])[t]
                if own:  # at its place of the sequence, so that turns are the same
                    masked = dense_over(dense, x[sample], places)
                    torch.testing.assert_close(rows[sample, t], masked, rtol=0, atol=1e-10)


def dense_over(layer, x, places):
    """The last of these places' row of latent attention, when it sees no other place."""
    spec, t = layer.spec, places[-1]
    turns = None
    if spec.rope_dim:
        from attnprof.blocks.layer_rows import angles
        from attnprof.ops.functional import wide_positions

        turns = angles(x, wide_positions(x, len(x)), spec.rope_dim)
    rows = x.unsqueeze(0)
    key, shared, latent, rotary = spec._rows(layer, rows, spec._source(layer, rows), turns)
    keys, values = spec._heads(layer, torch.nn.functional.linear(latent, layer.up), rotary)
    q = key if shared is None else torch.cat([key, shared], -1)
    scores = (q[0, :, t : t + 1] @ keys[0][:, places].mT) / q.shape[-1] ** 0.5
    return layer.o_proj((scores.softmax(-1) @ values[0][:, places]).transpose(0, 1).flatten())


@pytest.mark.parametrize("params", SIZES, ids=str)
@pytest.mark.parametrize("impl", FORMS)
def test_both_forms_count_as_executed(impl, params):
    params = {**INDEX, **params, "impl": impl}
    check_counts("dsa", (2, 6, 3, 4), params, lambda state: vars(state).values())


@pytest.mark.parametrize("impl", FORMS)
def test_gradients_pass_what_was_picked(impl):
    shape = (1, 5, 2, 2)
    layer = built("dsa", shape, torch.float64, top=3, rope_dim=2, impl=impl, **INDEX)
    x = inputs(shape, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, causal=True), (x,))


@pytest.mark.parametrize(("b", "n", "top"), [(1, 300, 20), (2, 130, 64)])
def test_products_are_the_known_formulas(b, n, top):
    """2 B N² H (d + 1) of the indexer, 2 B h N k (2c + r) of attention, and the maps."""
    h, d, c, r, heads, width = 8, 16, 24, 4, 4, 6
    params = {"top": top, "kv_rank": c, "rope_dim": r, "index_heads": heads, "index_dim": width}
    asked, spec = Workload(n, h, d, b, causal=True), registry.get("dsa", **params)
    maps = spec.parameters(asked) - c - 2 * width  # but norms
    ranked = 2 * b * n * n * heads * (width + 1)
    expected = 2 * b * n * maps + ranked + 2 * b * h * n * top * (2 * c + r)
    assert spec.cost(asked).matmul_flops == expected
    step = asked.with_(causal=False, phase="decode")
    one = 2 * b * maps + 2 * b * n * heads * (width + 1) + 2 * b * h * top * (2 * c + r)
    assert spec.cost(step).matmul_flops == one
    assert spec.cost(step).state_entries == b * n * (c + r + width)
    assert spec.state_traffic(step) == 4 * b * (top * (c + r) + n * width)


def test_several_tokens_a_step_are_refused():
    with pytest.raises(RequestError, match="dsa takes one at a time"):
        registry.get("dsa", step_tokens=2)
