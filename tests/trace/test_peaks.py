"""Derived peaks are the allocator's, kernels' own memory included; what is not known is named."""

from itertools import product

import pytest
import torch
from torch import nn

import attnprof
from attnprof.trace.events import at_least, peak
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from tests.oracles.memory import allocator_peak, held
from tests.trace.checks import counted_at, torchs_products
from tests.trace.test_state import OnItself

#: Bytes of numbers that torch wraps on the way.
SCALARS = 64


class Convolved(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.inner = nn.Conv1d(width, width, 3, padding=1, groups=groups)

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def convolved(groups):
    return target_of(Convolved, ["width=h*d", f"groups={groups}"], ["x: B, N, h*d"])


def test_a_dense_convolutions_gradient_is_named_and_at_least():
    trace = record(convolved("1"), {"B": 2, "N": 40, "h": 2, "d": 8}, training=True)
    seen = held(Convolved(16, 1), torch.randn(2, 40, 16), "train")
    assert peak(trace, "train") <= seen + SCALARS
    assert "aten.convolution_backward" in at_least(trace, "train")[0]
    assert not at_least(trace, "forward")


def test_a_depthwise_convolutions_gradient_has_a_formula_though_threads_sum_up():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        target = convolved("h*d")
        derivation = derived(target, ("train",), {})
        for width in (8, 24, 40):
            sizes = {"B": 3, "N": 50, "h": 1, "d": width}
            peak_bytes = counted_at(target, sizes, "train")["peak_bytes"]
            assert derivation.at("peak_bytes", "train", **sizes) == peak_bytes
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("code", "dtype", "phase", "named"),
    [
        (lambda x: x @ x.mT @ x, "float32", "train", ""),
        (lambda x: x @ x.mT @ x, "bfloat16", "train", "aten.bmm"),  # left to the processor
        (lambda x: x @ x.mT @ x, "float16", "forward", "aten.bmm"),
        (lambda x: x @ torch.linalg.qr(x.mT @ x)[0], "float32", "forward", "aten.linalg_qr"),
    ],
)
def test_a_peak_that_leaves_memory_out_says_of_which_operation_and_at_least(
    code, dtype, phase, named
):
    derivation = attnprof.derive(code, inputs={"x": "B, N, d"}, phases=[phase], dtype=dtype)
    bounds = {record.quantity: record.bound for record in derivation.report().records}
    said = [note for note in derivation.phases[phase].notes if "the peak is at least" in note]
    assert bounds["peak_bytes"] == ("at least" if named else "exact")
    assert [named in note for note in said] == [True] * bool(named)
    if "qr" not in named:  # which is not counted either
        assert (bounds["flops"], bounds["bytes_moved"]) == ("exact", "exact")


class Normed(nn.Module):
    """A map whose results a batch norm takes; the peak is while that runs."""

    def __init__(self, d):
        super().__init__()
        self.map, self.norm = nn.Linear(d, 4 * d, bias=False), nn.BatchNorm1d(4 * d)

    def forward(self, x):
        return self.norm(self.map(x))


@pytest.mark.parametrize(
    ("kind", "args", "sizes", "phases"),
    [(Normed, ["d"], "N, d", ["train"]), (OnItself, [], "B, N, d", ["forward", "train"])],
)
def test_a_peak_is_that_of_a_call_after_the_first_one(kind, args, sizes, phases):
    args_by_name = {name: name for name in args}
    derivation = attnprof.derive(kind, inputs={"x": sizes}, args=args_by_name, phases=phases)
    for phase, shape in product(phases, ({"B": 2, "N": 24, "d": 8}, {"B": 3, "N": 9, "d": 16})):
        forms = derivation.phases[phase]
        assert not any("changes between" in condition for condition in forms.domain)
        assert not any("of the same module" in note for note in forms.notes)
        assert not forms.formulas["peak_bytes"].withheld
        dims = {name: shape[name] for name in sizes.split(", ")}
        module = kind(*(shape[name] for name in args)).train(phase == "train")
        seen = held(module, torch.randn(*dims.values()), phase)
        assert derivation.at("peak_bytes", phase, **dims) == pytest.approx(seen, abs=SCALARS, rel=0)


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
    first = torchs_products(module, x, training=True)
    with pytest.raises(RuntimeError, match="a second time"):
        module(x).sum().backward()
    assert derivation.at("matmul_flops", "train", B=2, N=5, d=8) == first
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


def test_code_that_sets_itself_up_once_is_counted_as_it_is_from_then_on():
    derivation = attnprof.derive(SetUp, inputs={"x": "B, N, d"}, args={"d": "d"}, phases="train")
    module, x = SetUp(8), torch.randn(2, 5, 8, requires_grad=True)
    products = [torchs_products(module, x, training=True) for _ in range(3)]
    assert products[0] > products[1] == products[2]
    assert derivation.at("matmul_flops", "train", B=2, N=5, d=8) == products[1]
    assert derivation.phases["train"].method == "symbolic"
    assert any("a later one" in note for note in derivation.phases["train"].notes)


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
