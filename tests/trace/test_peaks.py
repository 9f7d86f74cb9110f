"""Derived peaks are the allocator's, kernels' own memory included; what is not known is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import registry
from attnprof.trace.events import at_least, peak
from attnprof.trace.request.lookup import mechanism_target, target_of
from attnprof.trace.request.target import Expression, Input, Target
from attnprof.trace.run.runs import record
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from tests.mechanisms.cases import built, causals, inputs, params
from tests.oracles.memory import allocator_peak, held

SHAPE = (2, 40, 2, 8)
SIZES = dict(zip("BNhd", SHAPE, strict=True))
#: Numbers that torch wraps on the way; row sums of a thread that the profiler does not see.
SCALARS, ROW_SUMS = 64, 4 * 32 * torch.get_num_threads()


@pytest.mark.parametrize("name", registry.names())
def test_the_derived_peak_is_the_allocators(name):
    spec = registry.get(name, **params(name))
    for causal in causals(name):
        target = mechanism_target(spec, causal=causal)
        layer, x = built(name, SHAPE), inputs(SHAPE)
        for phase in ("forward", "train"):
            seen = held(layer, x, phase, causal=causal)
            derived = peak(record(target, SIZES, training=phase == "train"), phase)
            slack = SCALARS + ROW_SUMS * (name == "sdpa" and phase == "train")
            assert derived == pytest.approx(seen, abs=slack, rel=0), (causal, phase)
        assert derived == pytest.approx(seen, abs=slack, rel=0), causal


def wrapped(make):
    """A module on (B, N, h·d) as something to derive."""
    x = Input("x", tuple(map(Expression, ("B", "N", "h*d"))))
    return Target("it", lambda s: make(s["h"] * s["d"]), (x,), tuple("BNhd"))


class Convolved(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1, groups=groups)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Mixed(nn.Module):
    def forward(self, x):
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


class Factored(nn.Module):
    def forward(self, x):
        return x @ torch.linalg.qr(x.transpose(1, 2) @ x)[0]


MODULES = {
    "convolution": lambda width: Convolved(width, width),
    "fourier": lambda _: Mixed(),
    "norm": nn.LayerNorm,
    "encoder": lambda width: nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_kernels_own_memory_is_in_the_peak(name):
    module, x = MODULES[name](16), inputs(SHAPE)
    seen = held(module, x, "train")
    trace = record(wrapped(MODULES[name]), SIZES, training=True)
    assert not at_least(trace, "train")
    assert any(call.workspace for call in trace.calls)
    assert peak(trace, "train") == pytest.approx(seen, abs=SCALARS + ROW_SUMS, rel=0)


def test_a_dense_convolutions_gradient_is_named_and_at_least():
    module, x = Convolved(16, 1), inputs(SHAPE)
    seen = held(module, x, "train")
    trace = record(wrapped(lambda width: Convolved(width, 1)), SIZES, training=True)
    assert peak(trace, "train") <= seen + SCALARS
    assert "aten.convolution_backward" in at_least(trace, "train")[0]
    assert not at_least(trace, "forward")


def test_a_depthwise_convolutions_gradient_has_a_formula_though_threads_sum_up():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        target = wrapped(lambda width: Convolved(width, width))
        derivation = derived(target, ("train",), {})
        for width in (8, 24, 40):
            sizes = {"B": 3, "N": 50, "h": 1, "d": width}
            held = peak(record(target, sizes, training=True), "train")
            assert derivation.at("peak_bytes", "train", **sizes) == held
    finally:
        torch.set_num_threads(before)


def test_operations_that_take_an_unknown_amount_are_named_in_the_derivation():
    forms = derived(wrapped(lambda _: Factored()), ("forward",), SIZES).phases["forward"]
    assert any("at least" in note and "aten.linalg_qr" in note for note in forms.notes)


def test_half_precision_products_are_left_to_the_processor():
    target = mechanism_target(registry.get("standard"), dtype="bfloat16")
    trace = record(target, SIZES, training=False)
    assert "aten.addmm" in at_least(trace, "forward")[0]


@pytest.mark.parametrize(
    ("dtype", "phase", "bound"),
    [("bfloat16", "train", "at least"), ("float16", "forward", "at least"),
     ("float32", "train", "exact")],
)  # fmt: skip
def test_a_peak_whose_note_says_at_least_is_not_called_exact(dtype, phase, bound):
    derivation = attnprof.derive(
        lambda x: x @ x.mT @ x, inputs={"x": "B, N, d"}, phases=[phase], dtype=dtype
    )
    bounds = {record.quantity: record.bound for record in derivation.report().records}
    said = any("at least" in note for note in derivation.phases[phase].notes)
    assert said == (bound == "at least")
    assert bounds["peak_bytes"] == bound
    assert (bounds["flops"], bounds["bytes_moved"]) == ("exact", "exact")


class Normed(nn.Module):
    """A map whose results a batch norm takes; the peak is while that runs."""

    def __init__(self, d):
        super().__init__()
        self.map, self.norm = nn.Linear(d, 4 * d, bias=False), nn.BatchNorm1d(4 * d)

    def forward(self, x):
        return self.norm(self.map(x))


class Cached(nn.Module):
    """Attention with a table of distances that the first call makes."""

    def __init__(self, d):
        super().__init__()
        self.map = nn.Linear(d, d)
        self.tables = {}

    def forward(self, x):
        n = x.shape[1]
        if n not in self.tables:
            places = torch.arange(n, dtype=x.dtype)
            self.tables[n] = (places[:, None] - places).abs().log1p()
        return (self.map(x) @ x.mT - self.tables[n]).softmax(-1) @ x


class Grown(nn.Module):
    """Attention to the tokens of this call and of the one before, if there was one."""

    def __init__(self, d):
        super().__init__()
        self.map = nn.Linear(d, d)
        self.before = None

    def forward(self, x):
        tokens = x if self.before is None else torch.cat([self.before, x], 1)
        self.before = x.detach() * 1
        return (self.map(x) @ tokens.mT).softmax(-1) @ tokens


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize(("kind", "sizes"), [(Normed, "N, d"), (Cached, "B, N, d")])
def test_a_peak_is_that_of_a_call_after_the_first_one(kind, sizes, phase):
    derivation = attnprof.derive(kind, inputs={"x": sizes}, args={"d": "d"}, phases=phase)
    assert not derivation.phases[phase].formulas["peak_bytes"].withheld
    for shape in ({"B": 2, "N": 24, "d": 8}, {"B": 3, "N": 9, "d": 16}):
        dims = [shape[name] for name in sizes.split(", ")]
        module, x = kind(shape["d"]).train(phase == "train"), torch.randn(*dims)
        peak_bytes = derivation.at("peak_bytes", phase, **{n: shape[n] for n in sizes.split(", ")})
        assert abs(peak_bytes - held(module, x, phase)) <= SCALARS


def test_code_that_keeps_tokens_is_counted_at_its_first_call():
    derivation = attnprof.derive(Grown, inputs={"x": "B, N, d"}, args={"d": "d"}, phases="forward")
    assert str(derivation.expression("matmul_flops")) == "4*B*N**2*d + 2*B*N*d**2"


class Carried(nn.Module):
    """Begins where the call before ended, with its graph: it has one backward pass."""

    def __init__(self, d):
        super().__init__()
        self.map = nn.Linear(d, d)
        self.state = None

    def forward(self, x):
        out = self.map(x) if self.state is None else self.map(x) + self.state
        self.state = out[:, -1:]
        return out * out


def test_code_that_has_one_backward_pass_is_counted_at_that():
    derivation = attnprof.derive(Carried, inputs={"x": "B, N, d"}, args={"d": "d"}, phases="train")
    module, x = Carried(8), torch.randn(2, 5, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        module(x).sum().backward()
    assert derivation.at("matmul_flops", "train", B=2, N=5, d=8) == counter.get_total_flops()
    assert not any("a later one" in note for note in derivation.phases["train"].notes)


class SetUp(nn.Module):
    """Attention to middles of the tokens, which the first call looks for in so many turns."""

    def __init__(self, d):
        super().__init__()
        self.map = nn.Linear(d, d)
        self.register_buffer("middles", torch.randn(4, d))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                for _ in range(40):
                    shares = (self.middles @ x.mT).softmax(-1)
                    self.middles.data.copy_((shares @ x).mean(0))
                self.ready.data.copy_(torch.tensor(True))
        return (self.map(x) @ self.middles.T).softmax(-1) @ self.middles


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_code_that_sets_itself_up_once_is_counted_as_it_is_from_then_on(phase):
    derivation = attnprof.derive(SetUp, inputs={"x": "B, N, d"}, args={"d": "d"}, phases=phase)
    module, x = SetUp(8).train(phase == "train"), torch.randn(2, 5, 8, requires_grad=True)
    products = []
    for _ in range(3):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(phase == "train"):
            out = module(x)
            if phase == "train":
                out.sum().backward()
        products.append(counter.get_total_flops())
    assert products[0] > products[1] == products[2]
    assert derivation.at("matmul_flops", phase, B=2, N=5, d=8) == products[1]
    assert derivation.phases[phase].method == "symbolic"
    assert any("a later one" in note for note in derivation.phases[phase].notes)


class Rows:
    __slots__ = ("keys",)


class Replacing(nn.Module):
    """Layers that put all keys, the new one too, where the old ones were: in an object, a list."""

    def __init__(self, in_objects):
        super().__init__()
        self.in_objects = in_objects

    def init_state(self, batch_size):
        states = [Rows() if self.in_objects else [None] for _ in range(4)]
        for state in states:
            self._put(state, torch.zeros(batch_size, 0, 8))
        return states

    def forward(self, x):
        for _ in range(4):
            x = x @ x.transpose(1, 2) @ x
        return x

    def step(self, x, states):
        for state in states:
            old = state.keys if self.in_objects else state[0]
            self._put(state, torch.cat([old, x], 1))
            del old
            keys = state.keys if self.in_objects else state[0]
            x = x @ keys.transpose(1, 2) @ keys
        return x, states

    def _put(self, state, keys):
        if self.in_objects:
            state.keys = keys
        else:
            state[0] = keys


@pytest.mark.parametrize("in_objects", [False, True])
def test_a_step_frees_the_rows_that_it_replaces(in_objects):
    step = target_of(lambda: Replacing(in_objects), inputs=["x: B, N, 8"]).step
    sizes = {"B": 2, "N": 20}
    peak_bytes = peak(count(step, sizes, "decode"), "decode")
    x = torch.randn(2, 1, 8)
    with torch.no_grad():
        assert peak_bytes == allocator_peak(lambda made: made(x), lambda: step.make(sizes))
    assert peak_bytes < 3 * 2 * 20 * 8 * 4  # not the rows of every layer
