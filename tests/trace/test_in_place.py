"""Peaks of what torch does in place as long as nobody watches are those of the allocator."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import attnprof
from attnprof.trace.events import at_least, peak
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import hints_for
from attnprof.trace.run.runs import record
from attnprof.trace.run.symbols import symbolic_sizes
from tests.oracles.memory import held
from tests.trace.checks import check_symbols, torchs_products

SIZES = {"B": 2, "N": 40}
SCALARS = 64
#: Runs on meta tensors, and on real ones.
WORLDS = ({"on_meta": True}, {"real": True})


def entries(x):
    return torch.zeros(x.shape, dtype=torch.int64)


def places(size):
    return torch.zeros(size, dtype=torch.int64)


def heads(x):
    return x.view(*x.shape[:2], 2, 8).transpose(1, 2)


def residual(x):
    y = x.sin()
    return y + y.cos() * y.exp() + y.tanh()


def shared(x):
    y = x.sin()
    return (y + x.cos()) + y


def met(x):
    y = x.sin()
    return y.view(-1).cos().view(y.shape) + y.exp() + y


def written(x):
    """Rows and parts of rows, each made of those before."""
    rows = torch.zeros_like(x)
    for i in range(1, 4):
        rows[:, i] = x[:, i].sin() + rows[:, i - 1].clone()
        rows[:, i, :i] = rows[:, i, :i].clone() * rows[:, :i, i].clone()
    rows[:, 4].mul_(x[:, 0])
    return rows


def halves(x):
    return torch.full(x.shape, 0.5)


#: Functions whose gradient torch computes in another way where no mode watches.
GRADIENTS = {
    "product": lambda x: x.prod(),
    "products kept": lambda x: x.sin().prod(-1, keepdim=True),
    "products so far": lambda x: x.sin().cumprod(1),
    "largest of all": lambda x: x.sin().max(),
    "median of all": lambda x: x.sin().median(),
    "clamped by tensors": lambda x: x.sin().clamp(x.cos() - 2, x.cos() + 2),
    "entropy with positive weights": lambda x: F.binary_cross_entropy_with_logits(
        x.sin(), halves(x), weight=halves(x), pos_weight=torch.ones(16)
    ),
    "entropy of trained targets": lambda x: F.binary_cross_entropy_with_logits(
        x.sin(), x.cos(), pos_weight=torch.ones(16)
    ),
    "entropy of logits": lambda x: F.binary_cross_entropy_with_logits(
        x.sin(), halves(x), weight=halves(x)
    ),
}
#: Losses and norms whose kernels hold more than their results.
KERNELS = {
    "entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), halves(x)),
    "squares": lambda x: F.mse_loss(x.sin(), halves(x)),
    "smooth": lambda x: F.smooth_l1_loss(x.sin(), halves(x), reduction="sum"),
    "batch norm": lambda x: F.batch_norm(x.sin(), None, None, training=True),
    "median": lambda x: x.sin().median(1).values,
}
#: Functions whose backward pass, or own last step, torch does in place on plain tensors.
FUNCTIONS = {
    "gather": lambda x: x.gather(1, entries(x)[:, :4]),
    "index": lambda x: x[:, places(4)],
    "index in two": lambda x: x[places(4), places(4)],
    "index_select": lambda x: x.index_select(1, places(4)),
    "take": lambda x: x.take(places(64)),
    "top": lambda x: x.topk(2, dim=-1).values,
    "sort": lambda x: x.sort(dim=1).values,
    "largest": lambda x: x.max(dim=1).values,
    "largest so far": lambda x: x.cummax(1).values,
    "kth": lambda x: x.kthvalue(3, 1).values,
    "trace": lambda x: torch.trace(x[0]),
    "three uses": lambda x: torch.addcmul(x, x, x),
    "a factor": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[1])),
    "checkpointed": lambda x: checkpoint(residual, x.sin(), use_reentrant=False).cos(),
    "a deviation and a mean": lambda x: torch.mul(*torch.std_mean(x.sin(), 1)),
    "residual": residual,
    "shared gradient": shared,
    "views meet": met,
    "written rows": written,
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.zeros(40, 40)
    ),
    "attention with a trained mask": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=x[0] @ x[0].mT
    ),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x), heads(x), attn_mask=torch.zeros(40, 40), dropout_p=0.1
    ),
    "put": lambda x: x.sin().index_put((torch.arange(2),), x.cos()),
    "scattered": lambda x: torch.zeros_like(x).scatter(1, entries(x), x.sin()),
    **GRADIENTS,
    **KERNELS,
}
#: Functions that run in another way under a mode, or that hold more than they show, forward.
FORWARDS = {
    "pooled": lambda x: F.max_pool1d(x, 2),
    "pooled in padded windows": lambda x: F.max_pool1d(x, 3, stride=2, padding=1),
    "pooled with places": lambda x: F.max_pool1d(x, 2, return_indices=True)[0],
    "distances": lambda x: torch.cdist(x, x),
    "distances one by one": lambda x: torch.cdist(x, x, 1.0),
    "repeated": lambda x: x.repeat(2, 3, 1),
    "picked by a mask": lambda x: x[torch.ones(x.shape[1:]).bool().tril().expand(x.shape)],
    "counted": lambda x: x.count_nonzero(-1),
}


class Layer(nn.Module):
    """A function of the input, and what a module makes of that."""

    def __init__(self, function, inner=None):
        super().__init__()
        self.function, self.inner = function, inner or nn.Identity()

    def forward(self, x):
        return self.inner(self.function(x))


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


#: Makers of layers whose kernels take memory inside themselves while they run.
WITH_WORKSPACE = {
    "convolution": lambda: Layer(
        lambda x: x.mT,
        nn.Sequential(nn.Conv1d(16, 16, 3, padding=1, groups=16), Layer(lambda x: x.mT)),
    ),
    "fourier": lambda: Layer(lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real),
    "norm": lambda: Layer(lambda x: x, nn.LayerNorm(16)),
    "encoder": lambda: Layer(
        lambda x: x, nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    ),
}
#: Makers of layers: of linear maps of a transposed input, and of heads, to many times the width.
TRAINED = (
    {name: partial(Layer, function) for name, function in FUNCTIONS.items()}
    | {
        "strided": lambda: Layer(lambda x: x.transpose(1, 2), nn.Linear(40, 160)),
        "heads": lambda: Layer(heads, nn.Linear(8, 64)),
        "recurrent": lambda: Recurrent(16, 16, batch_first=True),
    }
    | WITH_WORKSPACE
)
MAKERS = TRAINED | {name: partial(Layer, function) for name, function in FORWARDS.items()}


def instance(name):
    """A factory's target: what is built has no sizes of its own."""

    def build():
        return MAKERS[name]()

    return target_of(build, inputs=["x: B, N, 16"])


@pytest.mark.parametrize("name", TRAINED)
def test_the_peak_of_training_is_the_unwatched_allocators(name):
    seen = held(MAKERS[name](), torch.randn(2, 40, 16), "train")
    trace = record(instance(name), SIZES, training=True)
    rows = 4 * 32 * torch.get_num_threads()
    assert peak(trace, "train") == pytest.approx(seen, abs=SCALARS + rows, rel=0)
    if name in WITH_WORKSPACE:
        assert any(call.workspace for call in trace.calls)
        assert not at_least(trace, "train")


@pytest.mark.parametrize("name", [
    "strided", "heads", "recurrent", "attention with a mask", "entropy of logits", "entropy",
    "entropy with positive weights", "smooth", "squares", "median", "median of all", *FORWARDS,
])  # fmt: skip
def test_the_peak_of_a_forward_pass_is_the_unwatched_allocators(name):
    seen = held(MAKERS[name](), torch.randn(2, 40, 16))
    trace = record(instance(name), SIZES, training=False, real="mask" in name)
    assert peak(trace, "forward") == pytest.approx(seen, abs=SCALARS, rel=0)


def test_pooling_in_one_dimension_is_one_kernel_whose_windows_are_compared():
    def pool(x):
        return F.max_pool1d(x, 4)

    derivation = attnprof.derive(pool, inputs={"x": "B, d, N"}, phases=["forward"])
    forms = derivation.phases["forward"]
    assert [call.op for call in forms.trace.calls] == ["max_pool1d"]
    assert derivation.at("other", B=2, d=3, N=40) == 2 * 3 * 10 * 4
    assert derivation.at("peak_bytes", B=2, d=3, N=40) == 2 * 3 * 10 * 4


def test_singular_values_are_found_without_singular_vectors():
    def largest(x):
        return torch.linalg.matrix_norm(x @ x.mT, 2)

    sizes = {"B": 2, "N": 9, "d": 4}
    target = target_of(largest, inputs=["x: B, N, d"])
    for training, entries in ((False, 2 * 9), (True, 2 * (9 + 2 * 81))):
        calls = record(target, sizes, training=training).calls
        assert next(call.takes for call in calls if call.op == "_linalg_svd") == 4 * entries


def test_linear_maps_inside_vmap_add_out_of_place():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 64)

        def forward(self, x):
            return torch.vmap(self.linear)(x)

    trace = record(target_of(Mapped, inputs=["x: B, N, 16"]), SIZES, training=True)
    assert not any(call.op == "add_" for call in trace.part("forward"))


def test_symbolic_runs_do_the_same_in_place():
    target = instance("residual")
    numbers = record(target, SIZES, training=True)
    environment, sizes, _ = symbolic_sizes(SIZES)
    symbols = record(target, sizes, training=True, environment=environment)
    assert [call.op for call in symbols.calls] == [call.op for call in numbers.calls]
    assert "add_" in {call.op for call in symbols.calls if call.part == "backward"}


def derived(function):
    return attnprof.derive(function, inputs={"x": "B, N, d"}, phases=["train"]).phases["train"]


@pytest.mark.parametrize("name", ["product", "products kept", "products so far"])
def test_gradients_that_depend_on_zeros_say_so(name):
    assert any("none of which is zero" in note for note in derived(GRADIENTS[name]).notes)


def test_entries_that_a_gradient_picks_out_are_left_out_and_named():
    def filled(x):
        return x.sin().masked_fill(torch.ones(x.shape, dtype=torch.bool), x.sum())

    derivation = derived(filled)
    assert derivation.bound("peak_bytes") == "at least"
    assert any("aten.masked_select" in note for note in derivation.notes)


def test_products_inside_a_checkpoint_are_counted_as_outside():
    def products(x):
        return x.sin().prod(1)

    def kept(x):
        return checkpoint(products, x, use_reentrant=False)

    ways = []
    for function in (products, kept):
        target = target_of(function, inputs=["x: B, N, 16"])
        ways.append([call.op for call in record(target, SIZES, training=True).part("backward")])
    assert "cumprod" not in ways[1]
    assert ways[0].count("div") == ways[1].count("div") == 1


def test_a_write_to_a_view_does_on_fake_tensors_what_it_does_on_others():
    target = target_of(written, inputs=["x: B, N, N"])
    sizes = {"B": 2, "N": 6}
    runs = [record(target, sizes, training=True, **how) for how in ({}, *WORLDS)]
    assert runs[0].calls == runs[1].calls
    shown = [[(call.op, call.shape, call.born, call.died) for call in run.calls] for run in runs]
    assert shown[0] == shown[2]


class Adapted(nn.Module):
    """Weights are moved along the gradient of a loss of their own before they are used."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        def loss(weight, bias):
            return (nn.functional.linear(x, weight, bias) - x).square().mean()

        steps = torch.func.grad(loss, argnums=(0, 1))(self.weight, self.bias)
        return nn.functional.linear(x, self.weight - steps[0], self.bias - steps[1])


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_a_gradient_inside_the_forward_pass_keeps_sizes_symbolic(phase):
    target, training = target_of(Adapted, ["width=d"], ["x: B, N, d"]), phase == "train"
    hints = hints_for(target.symbols, {})
    counted = check_symbols(target, hints, {"B": 2, "N": 5, "d": 8}, phase)
    x = torch.randn(2, 5, 8, requires_grad=training)
    assert counted["matmul_flops"] == torchs_products(Adapted(8), x, training=training)
