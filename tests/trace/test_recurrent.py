"""``nn.LSTM``, which oneDNN runs on the CPU: held against its allocations, and against symbols."""

from functools import partial

import pytest
import torch
from torch import nn

from attnprof.algebra.values import evaluate
from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import Subject
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.run.symbols import symbolic_sizes
from attnprof.trace.sizes import user_symbols
from tests.trace.checks import check_symbols

STEPS, BATCH = 13, 9


def layer(**how):
    """It and a target of it."""
    module = nn.LSTM(24, 40, **how)
    shape = "B, N, 24" if module.batch_first else "N, B, 24"
    return module, target_of(module, None, [f"input: {shape}"])


@pytest.mark.parametrize("how", [{}, {"num_layers": 2, "bidirectional": True}])
def test_training_takes_what_the_allocator_gives(how):
    module, target = layer(**how)
    x = torch.randn(STEPS, BATCH, 24, requires_grad=True)
    ones = torch.ones_like(module(x)[0])

    def clear():
        for leaf in (x, *module.parameters()):
            leaf.grad = None

    def train():
        result = module(x)
        result[0].backward(ones)

    torch.set_num_threads(1)
    seen = measure_peak(Subject(module, clear, clear, train), "cpu", torch).bytes
    trace = record(target, {"N": STEPS, "B": BATCH}, training=True)
    assert totals(trace, "train")["peak_bytes"] == seen
    assert not any(call.scratch or call.uncounted for call in trace.calls)


HOW = {
    "one direction": {"batch_first": True},
    "without biases": {"bias": False},
    "both directions into a second layer": {
        "num_layers": 2, "bidirectional": True, "batch_first": True,
    },
    "both, tokens first": {"num_layers": 2, "bidirectional": True},
}  # fmt: skip


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("how", HOW)
def test_formulas_of_a_run_on_symbols_are_what_a_run_on_real_tensors_counts(how, phase):
    _, target = layer(**HOW[how])
    counted = check_symbols(target, {"B": 5, "N": 7}, {"N": STEPS, "B": BATCH}, phase, real=True)
    if how == "one direction":
        # four gates, of the input and of the state, forward; twice as much backward
        passes = 3 if phase == "train" else 1
        assert counted["matmul_flops"] == passes * 2 * STEPS * BATCH * 160 * 64


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_takes_what_it_takes_without_symbols(kind):
    target = target_of(kind, ["input_size=d", "hidden_size=h*d"], ["input: B, d"])
    check_symbols(target, {"B": 5, "h": 3, "d": 7}, {"B": 6, "h": 4, "d": 3}, "train")


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, partial(nn.LSTM, proj_size=3)])
def test_layers_of_steps_take_what_they_take_without_symbols(kind):
    def build():
        return kind(8, 8, 2, batch_first=True, dropout=0.1, bidirectional=True)

    target, sizes = target_of(build, inputs=["input: B, N, 8"]), {"B": 4, "N": 3}
    environment, symbols, names = symbolic_sizes({"B": 4})
    numbers = record(target, sizes, training=True)
    with user_symbols(names):
        trace = record(target, {**sizes, **symbols}, training=True, environment=environment)
        taken = [[(c.op, evaluate(c.takes, sizes)) for c in run.calls if c.takes != 0]
                 for run in (trace, numbers)]  # fmt: skip
    if kind in (nn.GRU, nn.RNN):  # an LSTM's last states are stacked in another order
        assert taken[0] == taken[1]
    formulas = {name: evaluate(form, sizes) for name, form in totals(trace, "train").items()}
    assert formulas == totals(numbers, "train")
