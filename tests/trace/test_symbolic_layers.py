"""Layers keep symbolic sizes, alike ones are worked out once, sizes may come late."""

import math
import random

import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attention

import attnprof
from attnprof.algebra.expressions import symbol
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import DEFAULT, Input, Target, hints_for, parsed
from attnprof.trace.run import remembered
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import PinnedError, run_symbolically
from tests.oracles.memory import held
from tests.trace import hazards
from tests.trace.checks import check_symbols, counted_at, shown, torchs_products
from tests.trace.samples import SelfAttention


def dropping(x):
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    return F.dropout(scores.softmax(-1), 0.1, training=True) @ x


def written(x):
    scores = x.new_empty(*x.shape[:2], x.shape[1])
    with torch.no_grad():
        torch.bmm(x, x.mT, out=scores)
    return scores @ x


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


def turned(x):
    """Pairs of entries turned: as complex numbers, and apart, at random angles."""
    angles = torch.randn((x.shape[1], x.shape[2] // 2), device=None)
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    even, odd = x[..., ::2] * angles, x[..., 1::2] * angles
    return torch.view_as_real(pairs * turns).flatten(-2) + torch.stack(
        [even - odd, even + odd], -1
    ).flatten(-2)


def causal_unless_single(x):
    """Causal attention, of a single token without a mask."""
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
        return torch.stack([self.inner(x[:, t]) for t in range(x.shape[1])], 1)


def target(make):
    dims = tuple(parsed(text, "") for text in ("B", "N", "h*d"))
    return Target("layer", lambda s: make(s["h"] * s["d"], s["h"]), (Input("x", dims),), DEFAULT)


LAYERS = {
    "random numbers of a generator": lambda width, _: _Seeded(width),
    "rms norm": lambda width, _: nn.RMSNorm(width),
    "multi-head attention": SelfAttention,
    "encoder layer": lambda width, heads: nn.TransformerEncoderLayer(
        width, heads, 3 * width, batch_first=True, dropout=0.0
    ),
    "dropout": lambda *_: dropping,
    "products written to a tensor": lambda *_: written,
    "fourier mixing": lambda *_: lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    "rotary embedding": lambda *_: turned,
    "attention that asks for a mask by its length": lambda *_: causal_unless_single,
    "batch norm of columns": lambda width, _: _NormedChannels(width),
    "a short table of positions": lambda width, _: _Placed(width),
    "a function compiled by torch.jit": lambda *_: hazards.scripted,
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


class Conditional(nn.Module):
    """A map on long inputs alone, by ``torch.cond``."""

    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return torch.cond(x.shape[1] > 64, lambda x: self.map(x) @ x.mT, torch.sin, (x,))


#: A class and its arguments, sizes, the shape of its input, a condition, sizes that do not meet it.
TRAINED = {
    "images in windows": (
        Windows, (), {"x": "B, h, H, W"}, {"B": 2, "h": 3, "H": 9, "W": 17}, (2, 3, 9, 17), "", {}),
    "a quotient of sizes that is a tensor": (
        Chunks, (12, 3), None, {"B": 2, "N": 128, "h": 3, "d": 4}, (2, 128, 12), "64 divides N",
        {"N": 100}),
    "a branch that cond takes by a size": (
        Conditional, (6,), None, {"B": 2, "N": 70, "h": 2, "d": 3}, (2, 70, 6), "N > 64",
        {"N": 64}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_has_a_formula_of_its_products_and_its_conditions(name):
    layer, arguments, inputs, sizes, shape, condition, outside = TRAINED[name]
    derivation = derived(target_of(layer, inputs=inputs), ("train",))
    forms = derivation.phases["train"]
    assert forms.method == "symbolic"
    assert condition in ("", *forms.domain)
    assert not outside or not forms.holds({**sizes, **outside})
    x = torch.randn(shape, requires_grad=True)
    theirs = torchs_products(layer(*arguments), x, training=True)
    assert derivation.at("matmul_flops", "train", **sizes) == theirs


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


def written_by_slices(rows, x):
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
    "all rows as a whole index": lambda x: x.transpose(0, 2)[: x.shape[2] // 2 * 2].sin(),
    "write to all rows": lambda x: written_by_slices(torch.zeros_like(x), x.sin()),
    "cumprod": lambda x: x.sin().cumprod(1),
    "take_along_dim": lambda x: x.take_along_dim(x[:, :1].argsort(-1), 2),
    "kron": lambda x: torch.kron(x[0], x[:, 0]),
    "windows": lambda x: (2 * x).as_strided(
        (x.shape[1] - 2, 3, x.shape[2]), (*2 * x.stride()[1:2], 1)
    ),
    "stft": lambda x: torch.stft(
        x[0], 4, 2, 3, torch.ones(3), center=False, return_complex=True
    ).abs(),
    "tril_indices": lambda x: (x @ x.mT)[0][(*torch.tril_indices(x.shape[1], x.shape[1], -1),)],
    "triu_indices": lambda x: (x @ x.mT)[0][(*torch.triu_indices(x.shape[1], x.shape[1], 1),)],
    "causal_lower_right": lambda x: F.scaled_dot_product_attention(
        x[:, None, 3:], x[:, None], x[:, None], causal_lower_right(x.shape[1] - 3, x.shape[1])
    ),
}


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("name", FIXED_BY_TORCH)
def test_functions_that_torch_decomposes_or_fixes_under_symbols_cost_what_real_tensors_cost(
    name, phase
):
    target = target_of(FIXED_BY_TORCH[name], None, ["x: B, N, d"])
    sizes = {"B": 3, "N": 12, "d": 10}
    check_symbols(target, {"B": 5, "N": 14, "d": 18}, sizes, phase, real=True)


def test_an_image_folded_of_columns_keeps_their_storage_as_the_allocator_sees():
    layer, columns = nn.Fold((6, 7), 3, padding=1), torch.randn(2, 4 * 9, 6 * 7)
    subject = target_of(layer, None, ["input: B, 36, 42"])
    assert counted_at(subject, {"B": 2}, "forward")["peak_bytes"] == held(layer, columns)


class Layers(nn.Module):
    def __init__(self, d_model, num_layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d_model, 2 * d_model) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            one, other = layer(x).tanh_().chunk(2, -1)
            x = torch.cat([x, one.relu() @ other.mT @ x], 1)[:, : x.shape[1]] + x
        return x


def test_what_is_remembered_changes_nothing(monkeypatch):
    target = target_of(Layers, {"d_model": "d"}, {"x": "B, N, d"})
    hints = hints_for(target.symbols, {})

    def runs():
        run = run_symbolically(target, hints, ["backward", "train"])
        numbers = [record(target, hints, training=True, on_meta=meta) for meta in (False, True)]
        return run.forms, run.guards.conditions, run.trace, *numbers

    with_memory = runs()
    monkeypatch.setattr(remembered, "_is_made_again", lambda _: False)
    assert runs() == with_memory


def test_views_that_torch_is_not_asked_for_lie_as_its_own():
    chance, plain = random.Random(5), 0
    for _ in range(400):
        sizes = [chance.choice((2, 3, 4, 6)) for _ in range(3)]
        x = torch.empty(*sizes, device="meta").permute(chance.sample(range(3), 3))
        x = x.narrow(1, 0, chance.choice((2, x.shape[1])))
        x = x.expand(*chance.choice(((2,), ())), *x.shape)
        one, other, *more = x.shape
        shape = chance.choice((x.shape, (one * other, *more), (one, other, math.prod(more))))
        strides = remembered._viewed_strides(x, shape, stretched=False)
        if strides is not None:
            assert strides == x.view(shape).stride()
            plain += 1
    assert 100 < plain < 300


def recurrence(x):
    state, rows = x[:, 0], []
    for token in range(x.shape[1]):
        state = torch.tanh(x[:, token] @ x[:, token : token + 2].mT.sum(-1) + state)
        rows.append(state[:, None].expand(-1, 2, -1)[:, 1])
    x[:, : len(rows)] = torch.stack(rows, 1)
    return torch.as_strided(x[:, 1], (2, 2), (1, 1), 1)


@pytest.mark.parametrize("on_meta", [False, True])
def test_turns_of_a_loop_over_tokens_are_those_that_torch_makes(monkeypatch, on_meta):
    target = target_of(recurrence, None, {"x": "4, N, 4"})
    trace = record(target, {"N": 24}, training=False, on_meta=on_meta)
    monkeypatch.setattr(remembered, "_is_made_again", lambda _: False)
    assert record(target, {"N": 24}, training=False, on_meta=on_meta) == trace


def test_where_an_operand_begins_decides_what_complex_views_raise():
    target = target_of(
        lambda x: [torch.view_as_complex(x[i : i + 2]) for i in (0, 1)], {}, {"x": "N"}
    )
    with pytest.raises(RuntimeError, match="storage_offset"):
        record(target, {"N": 8}, training=False)


def test_a_remembered_view_of_a_conjugate_is_no_conjugate_itself():
    def transformed(x):  # the transform is itself a conjugate of one
        return sum(torch.fft.ifft(1j * y, dim=1).real for y in (x, x + 1))

    target, sizes = target_of(transformed, {}, {"x": "B, N, d"}), {"B": 2, "N": 6, "d": 4}
    runs = [record(target, sizes, training=True, real=real) for real in (False, True)]
    assert totals(runs[0], "train") == totals(runs[1], "train")


def marked(x):
    with torch.profiler.record_function("ours"), torch.cuda.nvtx.range("theirs"):
        torch._assert(x.dim() == 3, "tokens")
        torch.profiler.itt.mark("here")
        return torch.relu(x)


def test_markers_of_profilers_take_nothing_and_leave_totals_exact():
    _, derivation = shown(marked, phase="train")
    forms = derivation.phases["train"]
    assert not forms.uncounted
    assert not any("at least" in note for note in forms.notes)
    assert str(derivation.expression("flops", "train")) == "2*B*N*d"


@pytest.mark.parametrize(
    ("lazy", "settled", "given", "width", "shape"),
    [
        (nn.LazyLinear, nn.Linear, {"out_features": 8}, {"in_features": "d"}, "B, 5, d"),
        (nn.LazyConv1d, nn.Conv1d, {"out_channels": 8, "kernel_size": 3}, {"in_channels": 5},
         "B, 5, N"),
        (nn.LazyBatchNorm1d, nn.BatchNorm1d, {}, {"num_features": 5}, "B, 5, N"),
    ],
)  # fmt: skip
def test_lazy_layers_cost_what_layers_of_their_sizes_cost(lazy, settled, given, width, shape):
    targets = [
        target_of(layer, arguments, [f"input: {shape}"])
        for layer, arguments in ((lazy, given), (settled, given | width))
    ]
    formulas = [derived(target, ("train",)).phases["train"].formulas for target in targets]
    assert formulas[0] == formulas[1]


def test_a_lazy_module_that_exists_stays_lazy():
    module = nn.LazyLinear(8)
    derivation = derived(target_of(module, inputs=["input: B, 24"]), ("forward",), {})
    assert derivation.at("matmul_flops", B=2) == 2 * 2 * 24 * 8
    assert module.has_uninitialized_params()
