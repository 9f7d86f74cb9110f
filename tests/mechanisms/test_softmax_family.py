"""Standard, Optimised, Efficient, Super and the fused kernel against document 000.

Its numbers of parameters and its equations are in ``tests/papers/test_better_attention.py``.
"""

import pytest
import sympy
import torch

import attnprof
from attnprof import Workload
from attnprof.errors import RequestError
from tests.mechanisms.cases import SHAPES, built, inputs
from tests.mechanisms.checks import close, drawn, loops


def definition(layer, x, causal):
    """000, Definitions 1 to 4 for one sample (n, d_model), one pair after the other."""

    def heads(letter):
        projection = getattr(layer, f"{letter}_proj", None)
        rows = x if projection is None else projection(x)
        return rows.view(1, len(x), layer.sizes.num_heads, -1).transpose(1, 2)

    q, k, v = map(heads, "qkv")
    if (mixing := getattr(layer.core, "mixing", None)) is not None:
        v = (mixing.tril() if causal else mixing) @ v + layer.core.mixing_bias.unsqueeze(-1)
    out = loops(q, k, v, lambda i, j: not causal or j <= i)
    return layer.o_proj(out[0].transpose(0, 1).flatten(1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("name", "params"),
    [*((name, {}) for name in ("standard", "optimised", "efficient", "super", "sdpa")),
     ("super", {"per_head": True})],
)  # fmt: skip
@torch.no_grad()
def test_a_layer_is_its_definition(name, params, shape, causal):
    layer, x = built(name, shape, torch.float64, **params), inputs(shape, torch.float64)
    expected = torch.stack([definition(layer, sample, causal) for sample in x])
    close(layer(x, causal=causal), expected, 1e-10)


# -- the fused kernel ---------------------------------------------------------------------------
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_and_its_gradients_are_those_of_standard(causal, kv_heads):
    shape, dtype = (3, 33, 4, 8), torch.float64
    written = built("standard", shape, dtype, num_kv_heads=kv_heads)
    fused = built("sdpa", shape, dtype, num_kv_heads=kv_heads)
    fused.load_state_dict(written.state_dict())
    x = inputs(shape, dtype).requires_grad_()
    outputs = [layer(x, causal=causal) for layer in (written, fused)]
    close(*outputs, 1e-10)
    close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in outputs), 2e-9)


def test_causal_sdpa_counts_the_pairs_it_sees_and_five_products_backward():
    n, h, d = sympy.symbols("n h d", positive=True)
    for phase, each in (("forward", 2), ("backward", 5)):
        work = Workload(n, h, d, causal=True, phase=phase)
        products = attnprof.cost("sdpa", work, "core").matmul_flops
        assert sympy.expand(products - each * 2 * d * h * n * (n + 1) / 2) == 0


# -- slices and mixing --------------------------------------------------------------------------
@pytest.mark.parametrize("causal", [False, True])
def test_attend_takes_the_mixing_map_by_name(causal):
    q, k, v = drawn((2, 3, 5, 4))
    mixing = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    got = attnprof.attend("super", q, k, v, causal, weights={"mixing": mixing})
    mixed = (mixing.tril() if causal else mixing) @ v
    close(got, attnprof.attend("standard", q, k, mixed, causal))
    (gradient,) = torch.autograd.grad(got.sum(), mixing)
    above = gradient.triu(1).abs().sum()
    assert (above == 0) == causal


def test_super_refuses_a_length_it_was_not_built_for():
    layer = attnprof.build("super", 8, 2, 6)
    with pytest.raises(RequestError, match=r"built for 6 tokens and got 5.*seq_len=5"):
        layer(torch.randn(1, 5, 8))
    with pytest.raises(RequestError, match="give seq_len"):
        attnprof.build("super", 8, 2)
    state = layer.init_state(1)
    for token in torch.randn(6, 1, 8):
        layer.step(token, state)
    with pytest.raises(RequestError, match="built for 6 tokens and got 7"):
        layer.step(torch.randn(1, 8), state)


@pytest.mark.parametrize("name", ["optimised", "efficient"])
@torch.no_grad()
def test_columns_of_another_sequence_are_attended_where_keys_or_values_have_no_map(name):
    layer = attnprof.build(name, 6, 2)
    x, other = torch.randn(2, 4, 6), torch.randn(2, 7, 6)
    heads = []
    for columns in (slice(0, 3), slice(3, 6)):
        keys = layer.k_proj(other) if name == "optimised" else other
        scores = layer.q_proj(x)[..., columns] @ keys[..., columns].mT / 3**0.5
        heads.append(scores.softmax(-1) @ other[..., columns])
    expected = layer.o_proj(torch.cat(heads, -1))
    assert torch.allclose(layer(x, context=other), expected, atol=1e-5)
