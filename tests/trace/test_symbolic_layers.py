"""torch's own layers keep symbolic sizes: one run gives the formula, and numbers confirm it."""

import math

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as attention

import attnprof
from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import DEFAULT, Input, Target, parsed
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import PinnedError, run_symbolically
from tests.oracles.memory import held
from tests.trace.checks import torchs_products


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


class _Written(nn.Module):
    def forward(self, x):
        scores = x.new_empty(*x.shape[:2], x.shape[1])
        with torch.no_grad():
            torch.bmm(x, x.mT, out=scores)
        return scores @ x


class _Mixing(nn.Module):
    def forward(self, x):
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class _Seeded(nn.Module):
    def __init__(self, width):
        super().__init__()
        drawn = torch.Generator().manual_seed(1)
        self.register_buffer("features", torch.randn(width, width, generator=drawn))

    def forward(self, x):
        drawn = torch.Generator().manual_seed(2)
        n = x.shape[1]
        places = torch.randperm(n, generator=drawn) + torch.randint(0, 9, (n,), generator=drawn)
        noise = torch.rand(x.shape, generator=drawn) + torch.empty(n, 1).normal_(generator=drawn)
        return (x + noise) @ self.features * places.view(n, 1)


class _Turned(nn.Module):
    """Pairs of entries turned: as complex numbers, and apart, at random angles."""

    def forward(self, x):
        angles = torch.randn((x.shape[1], x.shape[2] // 2), device=None)
        turned = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        even, odd = x[..., ::2] * angles, x[..., 1::2] * angles
        return torch.view_as_real(pairs * turned).flatten(-2) + torch.stack(
            [even - odd, even + odd], -1
        ).flatten(-2)


class _Causal(nn.Module):
    """Causal attention, of a single token without a mask."""

    def forward(self, x):
        one = F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)
        return one + attention(x, x, x, is_causal=x.shape[1] > 1)


class _NormedChannels(nn.Module):
    """Batch norm over what lies in columns, between projections."""

    def __init__(self, width):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, 24), nn.BatchNorm1d(24), nn.Linear(24, 8)

    def forward(self, x):
        return self.down(F.relu(self.norm(self.up(x).mT).mT))


class _Placed(nn.Module):
    """Learned positions, fewer than the usual first length."""

    def __init__(self, width):
        super().__init__()
        self.positions = nn.Embedding(256, width)

    def forward(self, x):
        return x + self.positions(torch.arange(x.shape[1]))


class _Turns(nn.Module):
    """A width that is made an integer, before a loop over tokens."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, int(math.ceil(width / 16)))  # noqa: RUF046 - as others do

    def forward(self, x):
        rows = [self.inner(x[:, t]) for t in range(x.shape[1])]
        return torch.stack(rows, 1)


def target(make):
    dims = tuple(parsed(text, "") for text in ("B", "N", "h*d"))
    return Target("layer", lambda s: make(s["h"] * s["d"], s["h"]), (Input("x", dims),), DEFAULT)


LAYERS = {
    "random numbers of a generator": lambda width, _: _Seeded(width),
    "rms norm": lambda width, _: nn.RMSNorm(width),
    "multi-head attention": _Self,
    "encoder layer": lambda width, heads: nn.TransformerEncoderLayer(
        width, heads, 3 * width, batch_first=True, dropout=0.0
    ),
    "dropout": lambda *_: _Dropping(),
    "products written to a tensor": lambda *_: _Written(),
    "fourier mixing": lambda *_: _Mixing(),
    "rotary embedding": lambda *_: _Turned(),
    "attention that asks for a mask by its length": lambda *_: _Causal(),
    "batch norm of columns": lambda width, _: _NormedChannels(width),
    "a short table of positions": lambda width, _: _Placed(width),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_stays_symbolic(name):
    """Its backward pass; the forward passes of the next test take torch's fast paths."""
    forms = derived(target(LAYERS[name]), ("backward",)).phases["backward"]
    assert forms.method == "symbolic"
    assert len(forms.verified_at) >= 3
    assert not forms.uncounted
    assert all(form.expression is not None for form in forms.formulas.values())


@pytest.mark.parametrize(
    ("name", "products", "heads"),
    [("multi-head attention", 4, 4), ("encoder layer", 10, 4), ("encoder layer", 10, 5)],
)
def test_fast_and_slow_paths_of_attention_have_the_same_products(name, products, heads):
    """An even number of heads takes torch's fast path."""
    asked = {"B": 3, "N": 64, "h": heads, "d": 16}
    derivation = derived(target(LAYERS[name]), ("forward",), asked)
    assert derivation.phases["forward"].method == "symbolic"
    b, n, h, d = map(symbol, "BNhd")
    expected = 2 * (products * b * n * (h * d) ** 2 + 2 * b * n**2 * h * d)
    assert sympy.expand(derivation.expression("matmul_flops") - expected) == 0


def test_an_integer_on_the_way_is_not_what_ends_a_run_on_symbols():
    layer = target(lambda width, _: _Turns(width))
    with pytest.raises(PinnedError) as error:
        run_symbolically(layer, {"B": 3, "N": 5, "h": 2, "d": 8}, ("forward",))
    assert {str(size) for pin in error.value.pins for size in pin.free_symbols} == {"N"}


def test_heads_that_stay_a_number_ask_that_they_divide_the_width():
    layer = target(lambda width, _: nn.TransformerEncoderLayer(width, 4, 64, batch_first=True))
    derivation = derived(layer, ("forward", "backward"))
    for forms in derivation.phases.values():
        assert forms.method == "symbolic"
        assert "4 divides d*h" in forms.domain
        assert "floor" not in str(forms.formulas["flops"].expression)
        assert not forms.holds({"B": 2, "N": 8, "h": 3, "d": 3})


def test_a_batch_of_products_changed_in_place_is_no_view():
    def scores(q, k):
        return (q @ k.mT).div_(2)

    derivation = attnprof.derive(scores, inputs=dict.fromkeys("qk", "B, h, N, d"), phases="train")
    forms = derivation.phases["train"]
    assert (forms.method, forms.formulas["bytes_moved"].withheld) == ("symbolic", "")
    assert "_unsafe_view" in [call.op for call in forms.trace.calls]


def test_a_power_by_a_size_is_so_many_products():
    def decayed(x):
        return x ** x.shape[1]

    derivation = attnprof.derive(decayed, inputs={"x": "B, N"}, phases="forward")
    assert str(derivation.expression("multiplications")) == "B*N**2 - B*N"


class Windows(nn.Module):
    """Windows of seven pixels over an image that is resized at last."""

    def forward(self, x):
        high, wide = x.shape[2:]
        x = F.pad(x, (0, -wide % 7, 0, -high % 7))
        b, c, high, wide = x.shape
        x = x.view(b, c, high // 7, 7, wide // 7, 7).permute(0, 2, 4, 1, 3, 5).flatten(4)
        scores = (x.mT @ x).flatten(1, 2).transpose(1, 2)
        return F.interpolate(scores, size=(high - 1, wide + 2), mode="bilinear")


def test_images_in_windows_and_of_another_size_keep_their_symbols():
    derivation = derived(target_of(Windows, inputs={"x": "B, h, H, W"}), ("train",))
    assert derivation.phases["train"].method == "symbolic"
    x = torch.randn(2, 3, 9, 17, requires_grad=True)
    theirs = torchs_products(Windows(), x, training=True)
    assert derivation.at("matmul_flops", "train", B=2, h=3, H=9, W=17) == theirs


class Chunks(nn.Module):
    """Whole chunks alone, their number worked out by tensors, and heads by a float."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads, self.head = num_heads, int(dim / num_heads)
        self.map = nn.Linear(dim, num_heads * self.head)

    def forward(self, x):
        batch, tokens, _ = x.shape
        if tokens % 64:
            raise ValueError("whole chunks")
        many = torch.div(tokens, 64, rounding_mode="trunc") - 1 + 1
        q = self.map(x).view(batch, many, 64, self.heads, self.head).transpose(2, 3)
        return (q @ q.mT).softmax(-1) @ q


def test_a_quotient_of_sizes_that_is_a_tensor_is_a_size_again():
    derivation = derived(target_of(Chunks), ("train",))
    forms = derivation.phases["train"]
    assert forms.method == "symbolic"
    assert "64 divides N" in forms.domain
    assert not forms.holds({"B": 2, "N": 100, "h": 3, "d": 4})
    x = torch.randn(2, 128, 12, requires_grad=True)
    theirs = torchs_products(Chunks(12, 3), x, training=True)
    assert derivation.at("matmul_flops", "train", B=2, N=128, h=3, d=4) == theirs


class Conditional(nn.Module):
    """A map on long inputs alone, by ``torch.cond``."""

    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.cond(x.shape[1] > 64, lambda x: self.map(x) @ x.mT, torch.sin, (x,))


def test_a_branch_that_cond_takes_by_a_size_is_a_condition_in_training_too():
    derivation = derived(target_of(Conditional), ("train",))
    forms = derivation.phases["train"]
    assert forms.method == "symbolic"
    assert "N > 64" in forms.domain
    x = torch.randn(2, 70, 6, requires_grad=True)
    theirs = torchs_products(Conditional(6), x, training=True)
    assert derivation.at("matmul_flops", "train", B=2, N=70, h=2, d=3) == theirs


class Causal(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, num_heads, 2 * dim, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(x, src_mask=mask, is_causal=True)


def test_the_fast_path_with_a_mask_is_symbolic_and_its_peak_the_allocators():
    derivation = derived(target_of(Causal), ("forward",))
    forms = derivation.phases["forward"]
    assert forms.method == "symbolic"
    sizes = {"B": 3, "N": 100, "h": 4, "d": 8}
    assert forms.holds(sizes)
    products = 4 * 3 * 100**2 * 32 + (8 + 8) * 3 * 100 * 32**2  # dense, as the kernel works
    assert derivation.at("matmul_flops", **sizes) == products
    peak = held(Causal(32, 4).eval(), torch.randn(3, 100, 32))
    assert derivation.at("peak_bytes", **sizes) == peak


def written(rows, x):
    rows[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2] = x[..., 1::2]
    return rows


FIXED_BY_TORCH = {
    "softshrink": lambda x: F.softshrink(x, 0.1),
    "hardshrink": lambda x: F.hardshrink(x, 0.2),
    "linspace": lambda x: x * torch.linspace(0, 1, x.shape[1])[:, None],
    "logspace": lambda x: x * torch.logspace(0, 1, x.shape[2], dtype=torch.float32),
    "max_pool1d": lambda x: F.max_pool1d(x.mT, 3, 2, padding=1),
    "instance_norm": lambda x: F.instance_norm(x, eps=1e-3),
    "fold": lambda x: F.fold(F.unfold(x[None], 3, padding=1), x.shape[1:], 3, padding=1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (None, 4)),
    "slice of all rows": lambda x: F.glu(x[None, ..., : x.shape[2] // 2 * 2], -1),
    "write to all rows": lambda x: written(torch.zeros_like(x), x.sin()),
    "cumprod": lambda x: x.sin().cumprod(1),
    "take_along_dim": lambda x: x.take_along_dim(x[:, :1].argsort(-1), 2),
    "kron": lambda x: torch.kron(x[0], x[:, 0]),
}


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", FIXED_BY_TORCH)
def test_functions_that_torch_decomposes_or_fixes_under_symbols_cost_what_real_tensors_cost(
    name, phase
):
    target, shape = (
        target_of(FIXED_BY_TORCH[name], None, ["x: B, N, d"]),
        {"B": 3, "N": 12, "d": 10},
    )
    run = run_symbolically(target, {"B": 5, "N": 14, "d": 18}, [phase])
    assert run.holds(shape)
    real = totals(record(target, shape, training=phase == "train", real=True), phase)
    assert {kind: evaluate(form, shape) for kind, form in run.forms[phase].items()} == real


def test_an_image_folded_of_columns_keeps_their_storage_as_the_allocator_sees():
    layer, columns = nn.Fold((6, 7), 3, padding=1), torch.randn(2, 4 * 9, 6 * 7)
    counted = totals(
        record(target_of(layer, None, ["input: B, 36, 42"]), {"B": 2}, training=False), "forward"
    )
    assert counted["peak_bytes"] == held(layer, columns)
