"""torch's own layers keep symbolic sizes: one run gives the formula, and numbers confirm it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnprof.trace.request.target import DEFAULT, Input, Target, parsed
from attnprof.trace.solve.derive import derived


class _Self(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class _Dropping(nn.Module):
    def forward(self, x):
        scores = x @ x.mT / math.sqrt(x.shape[-1])
        return F.dropout(scores.softmax(-1), 0.1, training=True) @ x


class _Mixing(nn.Module):
    def forward(self, x):
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


def target(make):
    dims = tuple(parsed(text, "") for text in ("B", "N", "h*d"))
    return Target("layer", lambda s: make(s["h"] * s["d"], s["h"]), (Input("x", dims),), DEFAULT)


LAYERS = {
    "layer norm": lambda width, _: nn.LayerNorm(width),
    "rms norm": lambda width, _: nn.RMSNorm(width),
    "multi-head attention": _Self,
    "encoder layer": lambda width, heads: nn.TransformerEncoderLayer(
        width, heads, 3 * width, batch_first=True, dropout=0.0
    ),
    "encoder of two layers": lambda width, heads: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, heads, 64, batch_first=True), 2
    ),
    "dropout": lambda *_: _Dropping(),
    "fourier mixing": lambda *_: _Mixing(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_stays_symbolic(name):
    found = derived(target(LAYERS[name]), ("forward", "backward"))
    for phase in ("forward", "backward"):
        assert found.phases[phase].method == "symbolic"
        assert len(found.phases[phase].verified_at) >= 3
        assert not found.phases[phase].uncounted


def test_heads_that_stay_a_number_ask_that_they_divide_the_width():
    layer = target(lambda width, _: nn.TransformerEncoderLayer(width, 4, 64, batch_first=True))
    found = derived(layer, ("forward", "backward"))
    for forms in found.phases.values():
        assert forms.method == "symbolic"
        assert "4 divides d*h" in forms.domain
        assert "floor" not in str(forms.formulas["flops"].expression)
        assert not forms.holds({"B": 2, "N": 8, "h": 3, "d": 3})


@pytest.mark.parametrize(("name", "products"), [("multi-head attention", 4), ("encoder layer", 10)])
@pytest.mark.parametrize("heads", [4, 5])
def test_fast_and_slow_paths_of_attention_have_the_same_products(name, products, heads):
    """An even number of heads takes torch's fast path."""
    import sympy

    asked = {"B": 3, "N": 64, "h": heads, "d": 16}
    found = derived(target(LAYERS[name]), ("forward",), asked)
    assert found.phases["forward"].method == "symbolic"
    b, n, h, d = (sympy.Symbol(s, positive=True) for s in "BNhd")
    expected = 2 * (products * b * n * (h * d) ** 2 + 2 * b * n**2 * h * d)
    assert sympy.expand(found.expression("matmul_flops") - expected) == 0
