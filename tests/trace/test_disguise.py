"""Code takes the way on fake tensors that it takes on real ones."""

import copy
import io
import pickle
from functools import cache

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from attnprof.trace.events import peak
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.disguise import EAGER
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from tests.oracles.memory import held

SIZES = {"B": 2, "N": 20}
SCALARS = 64


def target(layer, dims="x: B, N, 16"):
    return target_of(layer, inputs=[dims])


def asks_by_package(x):
    return isinstance(x, torch._subclasses.FakeTensor)


def asks_by_module(x):
    return torch._subclasses.fake_tensor.is_fake(x)


def asks_by_late_import(x):
    from torch._subclasses.fake_tensor import FakeTensor as Late

    return isinstance(x, Late)


def asks_by_early_import(x):
    return isinstance(x, FakeTensor)


def asks_by_mode(_):
    return torch._guards.detect_fake_mode() is not None


def asks_the_compiler(_):
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


@pytest.mark.parametrize(
    "asks",
    [
        asks_by_package, asks_by_module, asks_by_late_import, asks_by_early_import, asks_by_mode,
        asks_the_compiler,
    ],
)  # fmt: skip
def test_code_that_asks_for_fake_tensors_finds_none(asks):
    class Asking(nn.Module):
        def forward(self, x):
            return x @ x.mT @ x if asks(x) else x.sin()

    derivation = derived(target(Asking), ("forward",), {})
    assert derivation.expression("matmul_flops") == 0
    assert derivation.phases["forward"].method == "symbolic"


def test_torch_itself_still_knows_its_fake_tensors():
    record(target(Sine), SIZES, training=False)
    assert torch._subclasses.FakeTensor is FakeTensor
    assert type(torch._subclasses).__name__ == "module"


def copied(module):
    return copy.deepcopy(module)


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def saved(module):
    there = io.BytesIO()
    torch.save(module, there)
    there.seek(0)
    return torch.load(there, weights_only=False)


def copied_shallowly(module):
    again = nn.Linear(16, 16)
    again.weight, again.bias = copy.copy(module.weight), copy.copy(module.bias)
    return again


def cloned(module):
    again = nn.Linear(16, 16)
    again.weight = nn.Parameter(module.weight.clone().detach())
    again.bias = nn.Parameter(module.bias.detach().clone())
    return again


@pytest.mark.parametrize("clone", [copied, pickled, saved, copied_shallowly, cloned])
@pytest.mark.parametrize("phase", ["forward", "train"])
def test_weights_of_clones_are_weights(clone, phase):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(16, 16)
            self.other = clone(self.one)

        def forward(self, x):
            return self.other(self.one(x))

    module, x = Twice(), torch.zeros(2, 20, 16)
    seen = held(module, x, phase)
    trace = record(target(Twice), SIZES, training=phase == "train")
    assert trace.parameters == 2 * (16 * 16 + 16)
    assert peak(trace, phase) == pytest.approx(seen, abs=SCALARS)


def test_what_a_copied_layer_asks_of_a_size_is_a_condition():
    class Asking(nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.heads = heads

        def forward(self, x):
            return x.sin() if copy.deepcopy(self).heads % 2 else x @ x.mT @ x

    inputs = {"x": "B, N, h*d"}
    derivation = derived(target_of(Asking, {"heads": "h"}, inputs), ("forward",), {"h": 8})
    assert "2 divides h" in derivation.phases["forward"].domain


class Encoder(nn.Module):
    """The issue's example: layers that torch clones."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_the_peak_of_cloned_layers_is_the_allocators(phase):
    module, x = Encoder().train(phase == "train"), torch.zeros(2, 20, 64)
    seen = held(module, x, phase)
    trace = record(target(Encoder, "x: B, N, 64"), SIZES, training=phase == "train")
    rows = 4 * 32 * torch.get_num_threads()
    assert peak(trace, phase) == pytest.approx(seen, abs=SCALARS + rows)


@cache
def decorated(**settings):
    """Compiled before anything is derived, and not when this file is read: that takes seconds."""

    @torch.compile(**settings)
    def doubled(x):
        return x.sin() * 2

    return doubled


SETTINGS = {"dynamic": True, "fullgraph": True}


class CompiledInside(nn.Module):
    def forward(self, x):
        return torch.compile(lambda y: y.sin() * 2)(x)


class Sine(nn.Module):
    def forward(self, x):
        return x.sin() * 2


class CompiledPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.compile(Sine())

    def forward(self, x):
        return self.part(x)


class CompiledInPlace(CompiledPart):
    def __init__(self):
        nn.Module.__init__(self)
        self.part = Sine()
        self.part.compile()


class CallsDecorated(nn.Module):
    def forward(self, x):
        return decorated()(x)


class CallsDecoratedWithSettings(nn.Module):
    def forward(self, x):
        return decorated(**SETTINGS)(x)


class CompiledFlex(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        y = x[:, None]
        return torch.compile(flex_attention)(y, y, y)[:, 0]


COMPILED = [
    CompiledInside, CompiledPart, CompiledInPlace, CallsDecorated, CallsDecoratedWithSettings,
    CompiledFlex,
]  # fmt: skip


@pytest.mark.parametrize("layer", COMPILED)
def test_what_is_compiled_is_counted_as_it_was_written_and_said(layer):
    decorated(), decorated(**SETTINGS)
    phases = ("forward",) if layer is CompiledFlex else ("forward", "train")
    derivation = derived(target(layer), phases, {})
    for phase in phases:
        assert EAGER in derivation.phases[phase].notes
    if layer is not CompiledFlex:
        assert str(derivation.expression("multiplications")) == "16*B*N"


def test_a_module_that_was_compiled_before_is_counted_as_it_was_written():
    module = torch.compile(Sine())
    derivation = derived(target_of(module, inputs=["x: B, N, 16"]), ("train",), {})
    assert EAGER in derivation.phases["train"].notes


def test_nothing_is_said_of_compiling_where_nothing_is():
    assert EAGER not in derived(target(Sine), ("forward",), {}).phases["forward"].notes


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.a(x), {"more": self.b(x), "none": x.detach()}


def test_outputs_that_are_not_differentiated_are_said():
    forms = derived(target(TwoOutputs), ("forward", "train"), {}).phases
    said = [note for note in forms["train"].notes if "not differentiated" in note]
    assert len(said) == 1
    assert "(B, N, 16)" in said[0]
    assert "(B, N, 8)" in said[0]
    assert not any("differentiated" in note for note in forms["forward"].notes)


class WithLoss(TwoOutputs):
    def forward(self, x):
        return self.a(x).sum(), self.b(x)


def test_beside_a_loss_nothing_is_missed():
    notes = derived(target(WithLoss), ("train",), {}).phases["train"].notes
    assert not any("differentiated" in note for note in notes)
