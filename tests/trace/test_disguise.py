"""Code takes the way on fake tensors that it takes on real ones."""

import copy
import io
import pickle
from dataclasses import dataclass
from functools import cache
from importlib import import_module

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
from tests.trace.checks import shown

SIZES = {"B": 2, "N": 20}
SCALARS = 64
DIMS = ["x: B, N, 16"]


def target(layer):
    return target_of(layer, inputs=DIMS)


def by_late_import(x):
    from torch._subclasses.fake_tensor import FakeTensor as Late

    return isinstance(x, Late)


#: Ways in which code asks whether it runs on fake tensors, or is compiled.
ASKS = {
    "by package": lambda x: isinstance(x, torch._subclasses.FakeTensor),
    "by module": lambda x: torch._subclasses.fake_tensor.is_fake(x),  # noqa: PLW0108 - late
    "by late import": by_late_import,
    "by early import": lambda x: isinstance(x, FakeTensor),
    "by mode": lambda _: torch._guards.detect_fake_mode() is not None,
    "the compiler": lambda _: torch.compiler.is_compiling() or torch.jit.is_tracing(),
}


def test_code_that_asks_for_fake_tensors_finds_none():
    def asking(x):
        answers = [name for name, asks in ASKS.items() if asks(x)]
        assert not answers, answers
        return x.sin()

    _, derivation = shown(asking)
    assert derivation.phases["forward"].method == "symbolic"


def test_torch_itself_still_knows_its_fake_tensors():
    record(target(Sine), SIZES, training=False)
    assert torch._subclasses.FakeTensor is FakeTensor
    assert type(torch._subclasses).__name__ == "module"


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


def twice(clone):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(16, 16)
            self.other = clone(self.one)

        def forward(self, x):
            return self.other(self.one(x))

    return Twice


class Encoder(nn.Module):
    """Layers that torch clones."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


COPIES = (
    copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved, copied_shallowly, cloned
)  # fmt: skip
CLONED = [*map(twice, COPIES), Encoder]


@pytest.mark.parametrize("layer", CLONED)
def test_weights_of_clones_are_weights_and_their_peak_is_the_allocators(layer):
    module, x = layer(), torch.zeros(2, 20, 16)
    seen = held(module, x, "train")
    trace = record(target(layer), SIZES, training=True)
    assert trace.parameters == sum(weight.numel() for weight in module.parameters())
    rows = 4 * 32 * torch.get_num_threads() * (layer is Encoder)
    assert peak(trace, "train") == pytest.approx(seen, abs=SCALARS + rows)


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


@cache
def decorated(**settings):
    """Compiled before anything is derived, and not when this file is read: that takes seconds."""

    @torch.compile(**settings)
    def doubled(x):
        return x.sin() * 2

    return doubled


SETTINGS = {"dynamic": True, "fullgraph": True}


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


def compiled_inside(x):
    return torch.compile(lambda y: y.sin() * 2)(x)


def compiled_flex(x):
    from torch.nn.attention.flex_attention import flex_attention

    y = x[:, None]
    return torch.compile(flex_attention)(y, y, y)[:, 0]


COMPILED = [
    compiled_inside, CompiledPart, CompiledInPlace,
    lambda x: decorated()(x),  # noqa: PLW0108 - compiled when it is called
    lambda x: decorated(**SETTINGS)(x),  # noqa: PLW0108 - the same
]  # fmt: skip


def test_what_is_compiled_is_counted_as_it_was_written_and_said():
    decorated(), decorated(**SETTINGS)
    _, plain = shown(Sine, inputs=DIMS, phase="train")
    assert EAGER not in plain.phases["train"].notes
    for layer in (*COMPILED, torch.compile(Sine())):  # the last one before it is derived
        _, derivation = shown(layer, inputs=DIMS, phase="train")
        assert EAGER in derivation.phases["train"].notes, layer
        for quantity in ("multiplications", "other", "bytes_moved", "peak_bytes"):
            mine, written = (d.expression(quantity, "train") for d in (derivation, plain))
            assert mine == written, (layer, quantity)


def test_compiled_flexible_attention_is_counted_as_it_was_written():
    _, derivation = shown(compiled_flex, inputs=DIMS)
    assert EAGER in derivation.phases["forward"].notes


KEEPING = """
import torch
from torch.nn.init import normal_

DRAWING, graphs = {"ones": torch.nn.init.ones_}, []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

@torch.compile(backend=backend)
def doubled(x):
    return x.sin() * 2
"""


def test_what_code_keeps_that_is_imported_in_a_run_draws_and_compiles_afterwards(
    monkeypatch, tmp_path
):
    """As transformers' table of initialisers: models of its would keep arbitrary weights."""
    (tmp_path / "keeping_names.py").write_text(KEEPING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # also in a world after the one in which it is imported
        _, derivation = shown(lambda x: import_module("keeping_names").doubled(x), inputs=DIMS)
        assert EAGER in derivation.phases["forward"].notes
    keeping = import_module("keeping_names")
    weight = torch.zeros(64)
    assert keeping.normal_(weight).unique().numel() > 1
    assert keeping.DRAWING["ones"](weight).eq(1).all()
    assert not keeping.graphs
    x = torch.ones(3)
    assert torch.equal(keeping.doubled(x), x.sin() * 2)
    assert keeping.graphs


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.a(x), {"more": self.b(x), "none": x.detach()}


def test_outputs_that_are_not_differentiated_are_said():
    forms = derived(target(TwoOutputs), ("forward", "train")).phases
    said = [note for note in forms["train"].notes if "not differentiated" in note]
    assert len(said) == 1
    assert "(B, N, 16)" in said[0]
    assert "(B, N, 8)" in said[0]
    assert not any("differentiated" in note for note in forms["forward"].notes)


@dataclass
class Output:
    loss: torch.Tensor | None
    hidden: torch.Tensor


class InAnObject(TwoOutputs):
    def forward(self, x):
        return Output(None, self.a(x))


def test_an_output_may_be_an_object_that_torch_does_not_know():
    derivation = derived(target(InAnObject), ("train",))
    assert not derivation.phases["train"].notes
    assert str(derivation.expression("matmul_flops", "train")) == "1536*B*N"


class WithLoss(TwoOutputs):
    def forward(self, x):
        return self.a(x).sum(), self.b(x)


def test_beside_a_loss_nothing_is_missed():
    notes = shown(WithLoss, inputs=DIMS, phase="train")[1].phases["train"].notes
    assert not any("differentiated" in note for note in notes)
